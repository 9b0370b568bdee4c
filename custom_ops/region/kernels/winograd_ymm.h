// What registers of 256 bits have in common in winograd.h.

#ifndef ONNXQ_REGION_KERNELS_WINOGRAD_YMM_H_
#define ONNXQ_REGION_KERNELS_WINOGRAD_YMM_H_

#include <immintrin.h>

#include "winograd.h"

namespace onnxq {
namespace {

struct YmmSquares {
  static constexpr int kSquares = 6;
  using Words = uint32_t __attribute__((vector_size(32)));
  using Signed = int32_t __attribute__((vector_size(32)));

  static __m256i weights_of_pairs(const int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static __m256i pair(const int16_t* p) {
    int32_t both;
    memcpy(&both, p, 4);
    return _mm256_set1_epi32(both);
  }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_KERNELS_WINOGRAD_YMM_H_
