// Registers of 256 bits: a vector is half a line of a tile, 8 of its 16 rows. AVX2, FMA and F16C.

#ifndef ONNXQ_CPU_KERNELS_YMM_H_
#define ONNXQ_CPU_KERNELS_YMM_H_

#include <immintrin.h>

#include "../kernel.h"

namespace onnxq {
namespace {

struct Ymm {
  static constexpr int kLanes = 8;
  static constexpr int kFloatRows = 6;  // × 2 vectors: 12 of 16 registers are sums
  static constexpr int kDirectRows = 4;
  static constexpr int kIntegerRows = 3;  // × 2 vectors × (integers, sum): 12 of 16 registers
  using I = __m256i;
  using F = __m256;

  static I load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static I broadcast(const int32_t* p) { return _mm256_set1_epi32(*p); }
  static F broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static I set(int8_t value) { return _mm256_set1_epi8(value); }
  static I zero_integer() { return _mm256_setzero_si256(); }
  static F zero() { return _mm256_setzero_ps(); }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F subtract(F a, F b) { return _mm256_sub_ps(a, b); }
  static F multiply(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static F load(const float* p, int64_t lanes) { return _mm256_maskload_ps(p, mask(lanes)); }
  static void store(float* p, F a, int64_t lanes) { _mm256_maskstore_ps(p, mask(lanes), a); }

  // Nibbles of every byte.
  static I low(I a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
  static I high(I a) { return low(_mm256_srli_epi32(a, 4)); }
  // table[nibble], bytes; each nibble in a byte of its own.
  static I table(const int8_t* table16) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16))); }
  static I look_up(I table, I nibbles) { return _mm256_shuffle_epi8(table, nibbles); }
  static I flip_sign_bit(I a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }

  // Codes as floats: those at bits 4i…4i + 3 (8i…8i + 7) of every 32-bit lane.
  struct Table {
    F low, high;
  };
  static Table table(const float* table16) { return {load(table16), load(table16 + 8)}; }
  template <int i>
  static F nibble(const Table& table, I line) {
    const I index = i ? _mm256_srli_epi32(line, 4 * i) : line;  // vpermps reads three bits of an index
    const F fourth_bit = _mm256_castsi256_ps(_mm256_slli_epi32(line, 28 - 4 * i));  // and a blend the sign
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index), _mm256_permutevar8x32_ps(table.high, index),
                            fourth_bit);
  }
  template <int i>
  static F byte(I line) {
    return to_float(_mm256_and_si256(_mm256_srli_epi32(line, 8 * i), _mm256_set1_epi32(255)));
  }

  // bfloat16 at bits 16i…16i + 15 of every lane.
  template <int i>
  static F pair(I line) {
    return _mm256_castsi256_ps(i ? _mm256_and_si256(line, _mm256_set1_epi32(-0x10000)) : _mm256_slli_epi32(line, 16));
  }

  // float16 there. The low halves of lanes are what two packs leave of both halves of the register.
  template <int i>
  static F half(I line) {
    const I alone = i ? _mm256_srli_epi32(line, 16) : _mm256_and_si256(line, _mm256_set1_epi32(0xFFFF));
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(alone, alone), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }

  static F from_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static I from_bytes(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
  static F from_e8m0(const uint8_t* p) {
    const I u = from_bytes(p);
    const I power = _mm256_max_epi32(_mm256_slli_epi32(u, 23), _mm256_set1_epi32(0x00400000));  // 2^-127 is subnormal
    return _mm256_castsi256_ps(_mm256_blendv_epi8(power, _mm256_set1_epi32(0x7FC00000),
                                                  _mm256_cmpeq_epi32(u, _mm256_set1_epi32(255))));
  }

 private:
  static I mask(int64_t lanes) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

// Without VNNI: pairs of products in 16 bits, which hold u4 × s8 and s8 × s8, but not u8 × s8.
struct YmmPairs : Ymm {
  static constexpr bool kSignedBytes = true;

  // Nibbles: eight pairs fit into 16 bits (8 × 2 × 15 × 127 < 2^15).
  static I dot_nibbles(I sum, I u, I q) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(u, q)); }
  static I start_nibbles(I) { return zero_integer(); }
  static I finish_nibbles(I sum, I start) {
    return _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), start);
  }
  static I dot_bytes(I sum, I w, I q) {
    const I pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

#if defined(__AVXVNNI__)
struct YmmVnni : Ymm {
  static constexpr bool kSignedBytes = false;

  static I dot_nibbles(I sum, I u, I q) { return _mm256_dpbusd_avx_epi32(sum, u, q); }
  static I start_nibbles(I start) { return start; }
  static I finish_nibbles(I sum, I) { return sum; }
  static I dot_bytes(I sum, I u, I q) { return _mm256_dpbusd_avx_epi32(sum, u, q); }
};
#endif

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_YMM_H_
