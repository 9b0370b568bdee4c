// Stores of the first lanes of a register. A mask takes some processors ten times as long, all lanes or not.

#ifndef ONNXQ_REGION_STORE_ZMM_H_
#define ONNXQ_REGION_STORE_ZMM_H_

#include <immintrin.h>
#include <stdint.h>

namespace onnxq {
namespace {

inline void store_some(uint8_t* to, __mmask16 mask, __m128i bytes) {
  if (mask == 0xFFFF) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  } else {
    _mm_mask_storeu_epi8(to, mask, bytes);
  }
}

inline void store_some(uint8_t* to, __mmask64 mask, __m512i bytes) {
  if (mask == ~__mmask64{0}) {
    _mm512_storeu_si512(to, bytes);
  } else if (mask == 0xFFFFFFFF) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(bytes));
  } else {
    _mm512_mask_storeu_epi8(to, mask, bytes);
  }
}

inline void store_some(uint16_t* to, __mmask32 mask, __m512i halves) {
  if (mask == 0xFFFFFFFF) {
    _mm512_storeu_si512(to, halves);
  } else {
    _mm512_mask_storeu_epi16(to, mask, halves);
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_STORE_ZMM_H_
