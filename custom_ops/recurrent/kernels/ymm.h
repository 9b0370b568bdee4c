// Registers of 256 bits: half a tile's line.

#ifndef ONNXQ_RECURRENT_KERNELS_YMM_H_
#define ONNXQ_RECURRENT_KERNELS_YMM_H_

#include "../../cpu/kernels/ymm.h"
#include "cells.h"

namespace onnxq {
namespace {

struct Half : Ymm {
  static constexpr int kSums = 8;  // of 16 registers
  using U = I;

  // --- numbers ------------------------------------------------------------------------------------------------------------

  using Ymm::load;
  using Ymm::store;
  static F all(float a) { return _mm256_set1_ps(a); }
  static F divide(F a, F b) { return _mm256_div_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F round(F a) { return _mm256_round_ps(a, 8); }
  static F times_power(F a, F n) {
    const I exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return multiply(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  static F magnitude(F a) { return _mm256_andnot_ps(all(-0.0f), a); }
  static F with_sign_of(F a, F size) { return _mm256_or_ps(size, _mm256_and_ps(a, all(-0.0f))); }
  static F when_negative(F x, F a, F b) { return _mm256_blendv_ps(b, a, x); }

  // --- codes --------------------------------------------------------------------------------------------------------------

  static U no_bits() { return zero_integer(); }
  static U magnitude_bits(F a) { return _mm256_castps_si256(magnitude(a)); }
  static U larger(U a, U b) { return _mm256_max_epu32(a, b); }
  static uint32_t largest(U a) {
    const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 1))));
  }
  static F finite(F a) { return max(min(a, all(kLargest)), all(-kLargest)); }
  static I nearest(F a) { return _mm256_cvtps_epi32(a); }
  static I high_of(I a) { return _mm256_srai_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(64)), 7); }
  static I low_of(I a, I high) { return _mm256_sub_epi32(a, _mm256_slli_epi32(high, 7)); }
  static I no_sum() { return zero_integer(); }
  static I sum(I a, I b) { return _mm256_add_epi32(a, b); }
  static int32_t total(I a) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
  }
  // Packing leaves fours in their halves of the register: of the first two halves the first fours are neighbours.
  static void store_bytes(char* to, I a) {
    const I words = _mm256_packs_epi32(a, a), bytes = _mm256_packs_epi16(words, words);
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), both);
  }
  static void store_pairs(char* to, I high, I low) {
    const I words = _mm256_packs_epi32(high, low), bytes = _mm256_packs_epi16(words, words);
    const __m128i both = _mm_unpacklo_epi64(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), both);
  }

  // --- sums ---------------------------------------------------------------------------------------------------------------

  static I broadcast(const char* p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static void renew(I& sum) { __asm__("" : "+x"(sum)); }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_KERNELS_YMM_H_
