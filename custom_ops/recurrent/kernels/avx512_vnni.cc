#include "../../cpu/kernels/zmm.h"
#include "cells.h"

namespace onnxq {
namespace {

struct Wide : Zmm {
  static constexpr int kSums = 24;  // of 32 registers
  using U = I;
  using W = I;

  // --- numbers ------------------------------------------------------------------------------------------------------------

  using Zmm::load;
  using Zmm::store;
  static F all(float a) { return _mm512_set1_ps(a); }
  static F divide(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F a) { return _mm512_roundscale_ps(a, 8); }
  static F times_power(F a, F n) { return _mm512_scalef_ps(a, n); }
  static F magnitude(F a) { return _mm512_abs_ps(a); }
  static F with_sign_of(F a, F size) { return _mm512_or_ps(size, _mm512_and_ps(a, all(-0.0f))); }
  static F when_negative(F x, F a, F b) { return _mm512_mask_mov_ps(b, _mm512_movepi32_mask(_mm512_castps_si512(x)), a); }

  // --- codes --------------------------------------------------------------------------------------------------------------

  static U no_bits() { return zero_integer(); }
  static U magnitude_bits(F a) { return _mm512_castps_si512(magnitude(a)); }
  static U larger(U a, U b) { return _mm512_max_epu32(a, b); }
  static uint32_t largest(U a) { return _mm512_reduce_max_epu32(a); }
  static F finite(F a) { return max(min(a, all(kLargest)), all(-kLargest)); }
  static I nearest(F a) { return _mm512_cvtps_epi32(a); }
  static I high_of(I a) { return _mm512_srai_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(64)), 7); }
  static I low_of(I a, I high) { return _mm512_sub_epi32(a, _mm512_slli_epi32(high, 7)); }
  static I no_sum() { return zero_integer(); }
  static I sum(I a, I b) { return _mm512_add_epi32(a, b); }
  static int32_t total(I a) { return _mm512_reduce_add_epi32(a); }
  static void store_bytes(char* to, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
  }
  static void store_pairs(char* to, I high, I low) {
    const __m128i h = _mm512_cvtepi32_epi8(high), l = _mm512_cvtepi32_epi8(low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi32(h, l));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm_unpackhi_epi32(h, l));
  }

  // --- sums ---------------------------------------------------------------------------------------------------------------

  static W weights(const uint8_t* p) { return load(p); }
  static I broadcast(const char* p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static I start(int32_t bytes) { return _mm512_set1_epi32(-128 * bytes); }
  static I dot(I sum, W w, I bytes) { return _mm512_dpbusd_epi32(sum, w, bytes); }
  static void renew(I& sum) { __asm__("" : "+v"(sum)); }
};

}  // namespace

extern const RecurrentKernel recurrent_avx512_vnni;
constexpr RecurrentKernel recurrent_avx512_vnni = {"avx512_vnni", kAvx512 | kAvx512Vnni, 15, run_job<Wide>};

}  // namespace onnxq
