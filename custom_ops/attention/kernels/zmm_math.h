// What attention needs of registers of 512 bits besides what products need (cpu/kernels/zmm.h).

#ifndef ONNXQ_ATTENTION_KERNELS_ZMM_MATH_H_
#define ONNXQ_ATTENTION_KERNELS_ZMM_MATH_H_

#include "../../cpu/kernels/zmm.h"

namespace onnxq {
namespace {

struct ZmmMath : Zmm {
  // The second where either is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static bool any_above(F a, float bound) { return _mm512_cmp_ps_mask(a, _mm512_set1_ps(bound), _CMP_NLE_UQ) != 0; }
  static float largest(F a) { return _mm512_reduce_max_ps(a); }
  static float sum(F a) { return _mm512_reduce_add_ps(a); }

  // e^x for x ≤ 0, NaN where x is, 0 where it would be subnormal (which takes the processor a hundred times as long); within
  // 2^-22.
  static F exp(F x) {
    const F lowest = _mm512_set1_ps(-87.0f), least = _mm512_max_ps(lowest, x);
    const __mmask16 is_more = _mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ);
    const F n = _mm512_roundscale_ps(_mm512_mul_ps(least, _mm512_set1_ps(1.44269504f)), 8);
    F r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), least);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    F y = _mm512_set1_ps(1.0f / 720);
    constexpr float kFactors[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (const float factor : kFactors) {
      y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(factor));
    }
    return _mm512_maskz_scalef_ps(is_more, y, n);
  }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_ATTENTION_KERNELS_ZMM_MATH_H_
