// From float32 in planes to codes with channels last, and back: 16 pixels of four channels at once, whose codes are the
// bytes of 16 words.

#ifndef ONNXQ_REGION_BORDER_ZMM_H_
#define ONNXQ_REGION_BORDER_ZMM_H_

#include <string.h>

#include "planes.h"
#include "zmm.h"

namespace onnxq {
namespace {

// 16 numbers to codes in 32 bits each.
struct QuantizeNumbers {
  __m512 scale, reciprocal, low, high;
  __m512i zero;

  explicit QuantizeNumbers(const Border& p)
      : scale(_mm512_set1_ps(p.scale)),
        reciprocal(_mm512_set1_ps(1.0f / p.scale)),
        low(_mm512_set1_ps(static_cast<float>(-p.zero))),
        high(_mm512_set1_ps(static_cast<float>(255 - p.zero))),
        zero(_mm512_set1_epi32(p.zero)) {}

  __m512i operator()(__m512 x) const {
    // By the definition numbers are divided. A product with the reciprocal is off by 2^-22 of itself at most, which
    // makes another code only next to a tie, and where there is no reciprocal.
    __m512 steps = _mm512_mul_ps(x, reciprocal);
    const __m512 rest = _mm512_sub_ps(steps, _mm512_roundscale_ps(steps, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    const __mmask16 inside = _mm512_cmp_ps_mask(_mm512_abs_ps(steps), _mm512_set1_ps(512.0f), _CMP_LT_OQ);
    const __mmask16 plain = _mm512_mask_cmp_ps_mask(inside, _mm512_abs_ps(rest), _mm512_set1_ps(0.499f), _CMP_LT_OQ);
    if (plain != 0xFFFF) {
      steps = _mm512_div_ps(x, scale);
    }
    // With the bound second, it is what no number becomes: as in simple.h.
    return _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(steps, low), high)), zero);
  }
};

inline int64_t at_most(int64_t most, int64_t size) { return size < most ? size : most; }

// 16 pixels of four channels at most, as words.
inline __m512i quantized_words(const QuantizeNumbers& codes, const RowPiece& piece, int64_t c, int64_t channels, int64_t x,
                               __mmask16 mask) {
  __m512i all = _mm512_setzero_si512();
  for (int64_t i = channels - 1; i >= 0; --i) {
    all = _mm512_or_si512(_mm512_slli_epi32(all, 8), codes(_mm512_maskz_loadu_ps(mask, piece.floats(c + i) + x)));
  }
  return all;
}

// 16 pixels of 16 channels: four words of a pixel are stored at once.
inline void quantize_square(const QuantizeNumbers& codes, const RowPiece& piece, int64_t c, int64_t x, int64_t pixels) {
  const __mmask16 mask = first_lanes(pixels);
  __m512i w[4];
  for (int64_t i = 0; i < 4; ++i) {
    w[i] = quantized_words(codes, piece, c + 4 * i, 4, x, mask);
  }
  const __m512i low0 = _mm512_unpacklo_epi32(w[0], w[1]), high0 = _mm512_unpackhi_epi32(w[0], w[1]);
  const __m512i low1 = _mm512_unpacklo_epi32(w[2], w[3]), high1 = _mm512_unpackhi_epi32(w[2], w[3]);
  alignas(64) uint8_t rows[4][64];  // pixels i, 4 + i, 8 + i, 12 + i
  _mm512_store_si512(rows[0], _mm512_unpacklo_epi64(low0, low1));
  _mm512_store_si512(rows[1], _mm512_unpackhi_epi64(low0, low1));
  _mm512_store_si512(rows[2], _mm512_unpacklo_epi64(high0, high1));
  _mm512_store_si512(rows[3], _mm512_unpackhi_epi64(high0, high1));
  const int64_t C = piece.border->codes.C;
  for (int64_t i = 0; i < pixels; ++i) {
    memcpy(piece.codes + (x + i) * C + c, rows[i % 4] + i / 4 * 16, 16);
  }
}

inline void quantize_zmm(const Border& p, int64_t first, int64_t last) {
  const QuantizeNumbers codes(p);
  const int64_t C = p.codes.C;
  alignas(64) uint32_t words[16];
  in_pieces(p, first, last, [&](const RowPiece& piece) {
    int64_t c = 0;
    for (; C - c >= 16; c += 16) {
      for (int64_t x = 0; x < piece.pixels; x += 16) {
        fetch<_MM_HINT_T0>(piece.floats(c) + x, piece.plane, 16);
        quantize_square(codes, piece, c, x, at_most(16, piece.pixels - x));
      }
    }
    for (; c < C; c += 4) {
      const size_t channels = static_cast<size_t>(at_most(4, C - c));
      for (int64_t x = 0; x < piece.pixels; x += 16) {
        const int64_t pixels = at_most(16, piece.pixels - x);
        const __mmask16 mask = first_lanes(pixels);
        const __m512i all = quantized_words(codes, piece, c, static_cast<int64_t>(channels), x, mask);
        uint8_t* const to = piece.codes + x * C + c;
        if (C == 1) {
          _mm_mask_storeu_epi8(to, mask, _mm512_cvtepi32_epi8(all));
          continue;
        }
        _mm512_store_si512(words, all);
        // Whole words where what they have too much is written next, or nothing: the last pixel is none of these.
        const int64_t in_words = C < 4 || channels == 4 ? pixels - 1 : 0;
        for (int64_t i = 0; i < in_words; ++i) {
          memcpy(to + i * C, words + i, 4);
        }
        for (int64_t i = in_words; i < pixels; ++i) {
          memcpy(to + i * C, words + i, channels);
        }
      }
    }
  });
}

// 16 codes of words to 16 numbers each of four channels, at most.
inline void dequantize_words(const Operand& numbers, const RowPiece& piece, int64_t c, int64_t channels, int64_t x,
                             __mmask16 mask, __m512i words) {
  for (int64_t i = 0; i < channels; ++i, words = _mm512_srli_epi32(words, 8)) {
    const __m512 found = numbers.number(_mm512_and_si512(words, _mm512_set1_epi32(255)));
    float* const to = piece.floats(c + i) + x;
    mask == 0xFFFF ? _mm512_storeu_ps(to, found) : _mm512_mask_storeu_ps(to, mask, found);
  }
}

// 16 pixels of 16 channels: four words of a pixel are loaded at once.
inline void dequantize_square(const Operand& numbers, const RowPiece& piece, int64_t c, int64_t x) {
  const int64_t C = piece.border->codes.C;
  __m512i rows[4];  // pixels i, 4 + i, 8 + i, 12 + i
  for (int64_t i = 0; i < 4; ++i) {
    const uint8_t* const from = piece.codes + (x + i) * C + c;
    const auto four = [&](int64_t pixel) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + pixel * C)); };
    rows[i] = _mm512_inserti32x4(_mm512_castsi128_si512(four(0)), four(4), 1);
    rows[i] = _mm512_inserti32x4(_mm512_inserti32x4(rows[i], four(8), 2), four(12), 3);
  }
  const __m512i low0 = _mm512_unpacklo_epi32(rows[0], rows[1]), high0 = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i low1 = _mm512_unpacklo_epi32(rows[2], rows[3]), high1 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  dequantize_words(numbers, piece, c, 4, x, 0xFFFF, _mm512_unpacklo_epi64(low0, low1));
  dequantize_words(numbers, piece, c + 4, 4, x, 0xFFFF, _mm512_unpackhi_epi64(low0, low1));
  dequantize_words(numbers, piece, c + 8, 4, x, 0xFFFF, _mm512_unpacklo_epi64(high0, high1));
  dequantize_words(numbers, piece, c + 12, 4, x, 0xFFFF, _mm512_unpackhi_epi64(high0, high1));
}

// Words of 16 pixels at most, of four channels at most; what is behind those is anything.
inline __m512i words_of(const uint8_t* from, int64_t C, int64_t channels, int64_t pixels) {
  alignas(64) uint32_t words[16] = {};
  if (pixels == 16) {
    uint32_t last = 0;  // behind it nothing may be
    memcpy(&last, from + 15 * C, static_cast<size_t>(channels));
    const auto word = [&](int64_t i) {
      int32_t found;
      memcpy(&found, from + i * C, 4);
      return found;
    };
    return _mm512_setr_epi32(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7), word(8), word(9),
                             word(10), word(11), word(12), word(13), word(14), static_cast<int32_t>(last));
  }
  for (int64_t i = 0; i < pixels; ++i) {
    memcpy(words + i, from + i * C, static_cast<size_t>(channels));
  }
  return _mm512_load_si512(words);
}

inline void dequantize_zmm(const Border& p, int64_t first, int64_t last) {
  const Operand numbers(p.zero, p.scale);
  const int64_t C = p.codes.C;
  in_pieces(p, first, last, [&](const RowPiece& piece) {
    int64_t c = 0;
    for (; C - c >= 16; c += 16) {
      int64_t x = 0;
      for (; piece.pixels - x >= 16; x += 16) {
        fetch<_MM_HINT_ET0>(piece.floats(c) + x, piece.plane, 16);
        dequantize_square(numbers, piece, c, x);
      }
      for (int64_t i = c; x < piece.pixels && i < c + 16; i += 4) {
        const int64_t pixels = piece.pixels - x;
        dequantize_words(numbers, piece, i, 4, x, first_lanes(pixels), words_of(piece.codes + x * C + i, C, 4, pixels));
      }
    }
    for (; c < C; c += 4) {
      const int64_t channels = at_most(4, C - c);
      for (int64_t x = 0; x < piece.pixels; x += 16) {
        const int64_t pixels = at_most(16, piece.pixels - x);
        const __mmask16 mask = first_lanes(pixels);
        const uint8_t* const from = piece.codes + x * C + c;
        fetch<_MM_HINT_ET0>(piece.floats(c) + x, piece.plane, channels);
        dequantize_words(numbers, piece, c, channels, x, mask,
                         C == 1 ? _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, from)) : words_of(from, C, channels, pixels));
      }
    }
  });
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_BORDER_ZMM_H_
