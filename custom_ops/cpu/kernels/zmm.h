// Registers of 512 bits: a vector is one line of a tile, all its 16 rows. AVX512 F, BW, DQ and VL.

#ifndef ONNXQ_CPU_KERNELS_ZMM_H_
#define ONNXQ_CPU_KERNELS_ZMM_H_

#include <immintrin.h>

#include "../kernel.h"

namespace onnxq {
namespace {

struct Zmm {
  static constexpr int kLanes = 16;
  static constexpr int kFloatRows = 12;  // × 2 vectors: 24 of 32 registers are sums
  static constexpr int kDirectRows = 8;
  static constexpr int kIntegerRows = 6;  // × 2 vectors × (integers, sum): 24 of 32 registers
  using I = __m512i;
  using F = __m512;

  static I load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static I broadcast(const int32_t* p) { return _mm512_set1_epi32(*p); }
  static F broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static I set(int8_t value) { return _mm512_set1_epi8(value); }
  static I zero_integer() { return _mm512_setzero_si512(); }
  static F zero() { return _mm512_setzero_ps(); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F subtract(F a, F b) { return _mm512_sub_ps(a, b); }
  static F multiply(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F load(const float* p, int64_t lanes) { return _mm512_maskz_loadu_ps(mask(lanes), p); }
  static void store(float* p, F a, int64_t lanes) { _mm512_mask_storeu_ps(p, mask(lanes), a); }

  // Nibbles of every byte.
  static I low(I a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
  static I high(I a) { return low(_mm512_srli_epi32(a, 4)); }
  // table[nibble], bytes; each nibble in a byte of its own.
  static I table(const int8_t* table16) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16))); }
  static I look_up(I table, I nibbles) { return _mm512_shuffle_epi8(table, nibbles); }
  static I flip_sign_bit(I a) { return _mm512_xor_si512(a, _mm512_set1_epi8(-128)); }

  // Codes as floats: those at bits 4i…4i + 3 (8i…8i + 7) of every 32-bit lane.
  struct Table {
    F values;
  };
  static Table table(const float* table16) { return {load(table16)}; }
  template <int i>
  static F nibble(const Table& table, I line) {
    return _mm512_permutexvar_ps(i ? _mm512_srli_epi32(line, 4 * i) : line, table.values);  // reads four bits of an index
  }
  template <int i>
  static F byte(I line) {
    const __m128i alone = _mm_setr_epi8(i, -1, -1, -1, 4 + i, -1, -1, -1, 8 + i, -1, -1, -1, 12 + i, -1, -1, -1);
    return to_float(_mm512_shuffle_epi8(line, _mm512_broadcast_i32x4(alone)));
  }

  // bfloat16 at bits 16i…16i + 15 of every lane.
  template <int i>
  static F pair(I line) {
    return (F)(i ? _mm512_and_si512(line, _mm512_set1_epi32(-0x10000)) : _mm512_slli_epi32(line, 16));
  }

  // float16 there.
  template <int i>
  static F half(I line) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(i ? _mm512_srli_epi32(line, 16) : line));
  }

  static F from_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static I from_bytes(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static F from_e8m0(const uint8_t* p) {
    const I u = from_bytes(p);
    const I power = _mm512_max_epi32(_mm512_slli_epi32(u, 23), _mm512_set1_epi32(0x00400000));  // 2^-127 is subnormal
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(power, _mm512_cmpeq_epi32_mask(u, _mm512_set1_epi32(255)),
                                                     _mm512_set1_epi32(0x7FC00000)));
  }

 private:
  static __mmask16 mask(int64_t lanes) { return static_cast<__mmask16>((1u << lanes) - 1); }
};

// Without VNNI: pairs of products in 16 bits, which hold u4 × s8 and s8 × s8, but not u8 × s8.
struct ZmmPairs : Zmm {
  static constexpr bool kSignedBytes = true;

  // Nibbles: eight pairs fit into 16 bits (8 × 2 × 15 × 127 < 2^15).
  static I dot_nibbles(I sum, I u, I q) { return _mm512_add_epi16(sum, _mm512_maddubs_epi16(u, q)); }
  static I start_nibbles(I) { return zero_integer(); }
  static I finish_nibbles(I sum, I start) {
    return _mm512_add_epi32(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)), start);
  }
  static I dot_bytes(I sum, I w, I q) {
    const I signed_q = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(w), zero_integer(), q);
    const I pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_q);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

#if defined(__AVX512VNNI__)
struct ZmmVnni : Zmm {
  static constexpr bool kSignedBytes = false;

  static I dot_nibbles(I sum, I u, I q) { return _mm512_dpbusd_epi32(sum, u, q); }
  static I start_nibbles(I start) { return start; }
  static I finish_nibbles(I sum, I) { return sum; }
  static I dot_bytes(I sum, I u, I q) { return _mm512_dpbusd_epi32(sum, u, q); }
};
#endif

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_ZMM_H_
