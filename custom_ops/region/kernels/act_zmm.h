// Activations of float32 in a register of 512 bits, as act.h defines them; good to 2^-20 too.

#ifndef ONNXQ_REGION_ACT_ZMM_H_
#define ONNXQ_REGION_ACT_ZMM_H_

#include <immintrin.h>

#include "act.h"

namespace onnxq {
namespace {

inline __m512 all_of(float x) { return _mm512_set1_ps(x); }

// NaN stays NaN: of two numbers of which one is none, the second is taken.
inline __m512 bounded(__m512 x, float low, float high) { return _mm512_min_ps(all_of(high), _mm512_max_ps(all_of(low), x)); }

inline __m512 exp_of(__m512 x) {
  const __m512 y = bounded(x, -87.0f, 88.0f);
  const __m512 k = _mm512_roundscale_ps(_mm512_mul_ps(y, all_of(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_fmadd_ps(k, all_of(2.12194440e-4f), _mm512_fnmadd_ps(k, all_of(0.693359375f), y));
  constexpr float kSeries[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  __m512 p = all_of(1.0f / 720);
  for (const float each : kSeries) {
    p = _mm512_fmadd_ps(p, r, all_of(each));
  }
  return _mm512_scalef_ps(p, k);
}

// 1 / x of normal numbers: from 14 bits, those of a step of Newton's.
inline __m512 reciprocal(__m512 x) {
  const __m512 first = _mm512_rcp14_ps(x);
  return _mm512_mul_ps(first, _mm512_fnmadd_ps(x, first, all_of(2.0f)));
}

inline __m512 sigmoid_of(__m512 x) {
  return reciprocal(_mm512_add_ps(all_of(1.0f), exp_of(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

inline __m512 tanh_of(__m512 x) {
  const __m512 e = exp_of(_mm512_add_ps(bounded(x, -20.0f, 20.0f), bounded(x, -20.0f, 20.0f))), square = _mm512_mul_ps(x, x);
  const __m512 series = _mm512_fnmadd_ps(square, all_of(2.0f / 15), all_of(1.0f / 3));
  const __m512 small = _mm512_mul_ps(x, _mm512_fnmadd_ps(square, series, all_of(1.0f)));
  const __m512 large = _mm512_mul_ps(_mm512_sub_ps(e, all_of(1.0f)), reciprocal(_mm512_add_ps(e, all_of(1.0f))));
  return _mm512_mask_mov_ps(large, _mm512_cmp_ps_mask(square, all_of(0.01f), _CMP_LT_OQ), small);
}

// Of kinds behind kClip. Not part of its callers, of which there are many.
[[gnu::noinline]] __m512 curved(const Act& act, __m512 x) {
  const __m512 a = all_of(act.a);
  switch (act.kind) {
    case kLeakyRelu: return _mm512_mask_mul_ps(x, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), a, x);
    case kHardSigmoid: return bounded(_mm512_add_ps(_mm512_mul_ps(a, x), all_of(act.b)), 0.0f, 1.0f);
    case kSigmoid: return sigmoid_of(x);
    case kTanh: return tanh_of(x);
    case kSilu: return _mm512_mul_ps(x, sigmoid_of(_mm512_mul_ps(a, x)));
    case kHardSwish: {
      const __m512 line = _mm512_add_ps(_mm512_mul_ps(x, all_of(1.0f / 6)), all_of(0.5f));
      return _mm512_mul_ps(x, bounded(line, 0.0f, 1.0f));
    }
    default: return x;
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_ACT_ZMM_H_
