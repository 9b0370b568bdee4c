// Sums and products of two tensors, and of one with a number for each channel, 16 codes at once. What has one pixel, or one
// channel, is made float once for all that it goes with.

#ifndef ONNXQ_REGION_BINARY_ZMM_H_
#define ONNXQ_REGION_BINARY_ZMM_H_

#include "zmm.h"

namespace onnxq {
namespace {

template <bool multiplies, bool divides>
struct Join {
  Operand left, right;
  ToCodes codes;
  __m512 scale;

  // `swapped`: the first operand is the second one, which changes no sum and no product.
  Join(const Binary& p, bool swapped)
      : left(swapped ? p.b_zero : p.a_zero, swapped ? p.b_scale : p.a_scale),
        right(swapped ? p.a_zero : p.b_zero, swapped ? p.a_scale : p.b_scale),
        codes(p.codes),
        scale(_mm512_set1_ps(divides ? p.scale : 1.0f / p.scale)) {}

  void operator()(const uint8_t* x, __m512 with, uint8_t* to, __mmask16 mask) const {
    const __m512 number = left.load(x, mask);
    const __m512 value = multiplies ? _mm512_mul_ps(number, with) : _mm512_add_ps(number, with);
    store_some(to, mask, codes(divides ? _mm512_div_ps(value, scale) : _mm512_mul_ps(value, scale)));
  }
};

template <bool multiplies, bool divides>
void binary_lines(const Binary& p, int64_t first, int64_t last) {
  const bool swapped = p.a.W < p.b.W || p.a.C < p.b.C;
  const Image &a = swapped ? p.b : p.a, &b = swapped ? p.a : p.b;
  const Join<multiplies, divides> join(p, swapped);
  const int64_t C = p.y.C, W = p.y.W;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.y.H, y = row % p.y.H;
    const uint8_t *x = row_of(a, n, y), *with = row_of(b, n, y);
    uint8_t* const to = p.y.data + n * p.y.image + y * p.y.row;
    if (b.C == C && b.W == W) {
      for (int64_t i = 0; i < W * C; i += 16) {
        const __mmask16 mask = first_lanes(W * C - i);
        join(x + i, join.right.load(with + i, mask), to + i, mask);
      }
    } else if (b.C == C) {
      for (int64_t c = 0; c < C; c += 16) {
        const __mmask16 mask = first_lanes(C - c);
        const __m512 number = join.right.load(with + c, mask);
        for (int64_t i = c; i < W * C; i += C) {
          join(x + i, number, to + i, mask);
        }
      }
    } else {
      for (int64_t pixel = 0; pixel < W; ++pixel) {
        const __m512 number = join.right.all(with[b.W == 1 ? 0 : pixel]);
        for (int64_t c = 0; c < C; c += 16) {
          join(x + pixel * C + c, number, to + pixel * C + c, first_lanes(C - c));
        }
      }
    }
  }
}

inline void binary_zmm(const Binary& p, int64_t first, int64_t last) {
  // Neither has all pixels and all channels.
  const bool is_plain = (p.a.W == p.y.W && p.a.C == p.y.C) || (p.b.W == p.y.W && p.b.C == p.y.C);
  if (!is_plain) {
    return binary_simple(p, first, last);
  }
  const auto lines = p.multiplies ? (p.divides ? binary_lines<true, true> : binary_lines<true, false>)
                                  : (p.divides ? binary_lines<false, true> : binary_lines<false, false>);
  lines(p, first, last);
}

template <bool is_bent>
void affine_lines(const Affine& p, int64_t first, int64_t last) {
  const ToCodes codes(p.codes);
  const int64_t C = p.x.C, size = p.x.W * C;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.x.H, y = row % p.x.H;
    const uint8_t* const x = row_of(p.x, n, y);
    uint8_t* const to = p.y.data + n * p.y.image + y * p.y.row;
    for (int64_t c = 0; c < C; c += 16) {
      const __mmask16 mask = first_lanes(C - c);
      const auto at = [&](const float* numbers) { return _mm512_maskz_loadu_ps(mask, numbers + c); };
      const __m512 factor = at(p.factor), start = at(p.start);
      const __m512 factor2 = is_bent ? at(p.factor + C) : factor, start2 = is_bent ? at(p.start + C) : start;
      const __m512 knee = is_bent ? at(p.knee) : start;
      for (int64_t i = c; i < size; i += C) {
        const __m512 number = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, x + i)));
        const __mmask16 behind = is_bent ? _mm512_cmp_ps_mask(number, knee, _CMP_GE_OQ) : __mmask16{0};
        const __m512 slope = _mm512_mask_blend_ps(behind, factor, factor2);
        const __m512 sum = _mm512_add_ps(_mm512_mul_ps(number, slope), _mm512_mask_blend_ps(behind, start, start2));
        store_some(to + i, mask, codes(sum));
      }
    }
  }
}

inline void affine_zmm(const Affine& p, int64_t first, int64_t last) {
  (p.knee ? affine_lines<true> : affine_lines<false>)(p, first, last);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_BINARY_ZMM_H_
