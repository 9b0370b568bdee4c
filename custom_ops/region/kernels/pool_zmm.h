// The largest of a window, 64 channels in a register while all its pixels pass.

#ifndef ONNXQ_REGION_POOL_ZMM_H_
#define ONNXQ_REGION_POOL_ZMM_H_

#include <immintrin.h>

#include "simple.h"
#include "store_zmm.h"

namespace onnxq {
namespace {

inline void max_pool_row(const Pool& p, int64_t n, int64_t y) {
  const int64_t y0 = y * p.stride_y - p.top;
  const Inside rows(y0, p.kernel_y, p.dilation_y, 0, p.x.H);
  const uint8_t* const image = p.x.data + n * p.x.image;
  const int64_t next_y = p.dilation_y * p.x.row, next_x = p.dilation_x * p.x.C;
  uint8_t* to = p.y.data + n * p.y.image + y * p.y.row;
  for (int64_t ox = 0; ox < p.y.W; ++ox, to += p.y.C) {
    const int64_t x0 = ox * p.stride_x - p.left;
    const Inside columns(x0, p.kernel_x, p.dilation_x, 0, p.x.W);
    const uint8_t* const window =
        image + (y0 + rows.first * p.dilation_y) * p.x.row + (x0 + columns.first * p.dilation_x) * p.x.C;
    for (int64_t c = 0; c < p.y.C; c += 64) {
      const int64_t left = p.y.C - c;
      const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
      __m512i codes = _mm512_setzero_si512();
      const uint8_t* line = window + c;
      for (int64_t ky = rows.first; ky < rows.last; ++ky, line += next_y) {
        const uint8_t* pixel = line;
        for (int64_t kx = columns.first; kx < columns.last; ++kx, pixel += next_x) {
          codes = _mm512_max_epu8(codes, _mm512_maskz_loadu_epi8(mask, pixel));
        }
      }
      store_some(to + c, mask, codes);
    }
  }
}

inline void pool_zmm(const Pool& p, int64_t first, int64_t last) {
  if (p.average) {
    return pool_simple(p, first, last);
  }
  for (int64_t row = first; row < last; ++row) {
    max_pool_row(p, row / p.y.H, row % p.y.H);
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_POOL_ZMM_H_
