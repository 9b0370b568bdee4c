// Resize between pixels in registers of 512 bits: the numbers of interpolate.h, in the same order.

#ifndef ONNXQ_REGION_INTERPOLATE_ZMM_H_
#define ONNXQ_REGION_INTERPOLATE_ZMM_H_

#include "interpolate.h"
#include "zmm.h"

namespace onnxq {
namespace {

struct Between {
  const Interpolation& p;
  const Tap& rows;
  Operand operand;
  ToCodes codes;
  __m512 scale;
  const uint8_t *upper, *lower;
  uint8_t* to;

  Between(const Interpolation& given, int64_t row)
      : p(given), rows(given.rows[row % given.y.H]), operand(given.x_zero, given.x_scale), codes(given.codes), scale(_mm512_set1_ps(given.scale)) {
    const uint8_t* const image = p.x.data + row / p.y.H * p.x.image;
    upper = image + rows.first * p.x.row;
    lower = image + rows.second * p.x.row;
    to = p.y.data + row / p.y.H * p.y.image + row % p.y.H * p.y.row;
  }

  // Pixels [x, end), which lie between the same ones, in 16 · V channels from `at` on; of the last ones those of `mask`.
  template <int V>
  void run(int64_t x, int64_t end, int64_t at, __mmask16 mask) const {
    const int64_t C = p.y.C, left = p.columns[x].first * C + at, right = p.columns[x].second * C + at;
    __m512 a[V], b[V], c[V], d[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      a[v] = operand.load(upper + left + 16 * v, mask);
      b[v] = operand.load(upper + right + 16 * v, mask);
      c[v] = operand.load(lower + left + 16 * v, mask);
      d[v] = operand.load(lower + right + 16 * v, mask);
    }
    for (int64_t pixel = x; pixel < end; ++pixel) {
      const Weights w(rows, p.columns[pixel]);
      const __m512 wa = _mm512_set1_ps(w.a), wb = _mm512_set1_ps(w.b), wc = _mm512_set1_ps(w.c), wd = _mm512_set1_ps(w.d);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const __m512 upper_sum = _mm512_add_ps(_mm512_mul_ps(wa, a[v]), _mm512_mul_ps(wb, b[v]));
        const __m512 sum = _mm512_add_ps(_mm512_add_ps(upper_sum, _mm512_mul_ps(wc, c[v])), _mm512_mul_ps(wd, d[v]));
        store_some(to + pixel * C + at + 16 * v, mask, codes(_mm512_div_ps(sum, scale)));
      }
    }
  }
};

inline void interpolate_zmm(const Interpolation& p, int64_t first, int64_t last) {
  constexpr int64_t kTogether = 64;
  for (int64_t row = first; row < last; ++row) {
    const Between between(p, row);
    for (int64_t x = 0, end = 0; x < p.y.W; x = end) {
      end = end_of_run(p.columns, x, p.y.W);
      int64_t at = 0;
      for (; at + kTogether <= p.y.C; at += kTogether) {
        between.run<4>(x, end, at, 0xFFFF);
      }
      for (; at < p.y.C; at += 16) {
        between.run<1>(x, end, at, first_lanes(p.y.C - at));
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_INTERPOLATE_ZMM_H_
