// Tables of 256 codes in four registers: VPERMI2B takes 64 codes from two of them at once.

#ifndef ONNXQ_REGION_LOOKUP_VBMI_H_
#define ONNXQ_REGION_LOOKUP_VBMI_H_

#include "zmm.h"

namespace onnxq {
namespace {

inline void lookup_vbmi(const Lookup& p, int64_t first, int64_t last) {
  if (!p.table || p.by_channel) {
    return lookup_simple(p, first, last);
  }
  const __m512i t0 = _mm512_loadu_si512(p.table), t1 = _mm512_loadu_si512(p.table + 64);
  const __m512i t2 = _mm512_loadu_si512(p.table + 128), t3 = _mm512_loadu_si512(p.table + 192);
  // Where pixels follow each other in both, rows are one line.
  const bool is_line = p.x.C == p.y.C;
  const int64_t size = is_line ? p.x.W * p.x.C : p.x.C, lines = is_line ? 1 : p.x.W;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.x.H, y = row % p.x.H;
    const uint8_t* x = p.x.data + n * p.x.image + y * p.x.row;
    uint8_t* to = p.y.data + n * p.y.image + y * p.y.row;
    for (int64_t line = 0; line < lines; ++line, x += p.x.C, to += p.y.C) {
      for (int64_t i = 0; i < size; i += 64) {
        const __mmask64 mask = size - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (size - i)) - 1;
        const __m512i codes = _mm512_maskz_loadu_epi8(mask, x + i);
        const __m512i low = _mm512_permutex2var_epi8(t0, codes, t1), high = _mm512_permutex2var_epi8(t2, codes, t3);
        _mm512_mask_storeu_epi8(to + i, mask, _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high));
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_LOOKUP_VBMI_H_
