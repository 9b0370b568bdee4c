// Activations as 8-bit integers, quantized afresh for every 16 of them.
//
// Why 16: rounding to amax / 127 has an error of amax / 127 / √12 in every number, and the signal of the block is at least
// amax, so the relative error of any block of B numbers is below √(B / 12) / 127: 0.0091 for 16, whatever outliers there
// are. Blocks of 32 reach 0.0129.
//
// Packed for tiles of R rows, each tile followed by the next; records of 24 · R bytes, one for every 16 k:
//
//     int32 start[R]       minus the middle code times the sum of q: what the dot product begins with
//     float scale[R]       of q, times the unit of the weight's table of levels
//     int8  q[4][R][4]     four k of every row, beside each other
//
// behind which, for each block of the weight, float sum[R]: minus the sum of scale · q, which a zero point multiplies.

#ifndef ONNXQ_CPU_KERNELS_QUANTIZE_H_
#define ONNXQ_CPU_KERNELS_QUANTIZE_H_

#include <immintrin.h>

#include "streams.h"

namespace onnxq {
namespace {

constexpr int64_t kSub = 16;
constexpr int64_t kRecord = 24;

constexpr int64_t packed_row_bytes(const Problem& p) {
  return padded(p.K, p.block) / kSub * kRecord + blocks(p.K, p.block) * 4;
}

// Levels of a table as bytes: value ≈ (level - zero) · unit.
struct Levels {
  int8_t level[16];
  float zero, unit;
};

// MXFP4's levels are integers when doubled. The others are rounded; unit and zero are those of least error for normally
// distributed weights in blocks of 32 … 128 (relative 0.0033 for NF4, 0.0034 for FP4; 0.0058 with 127 and 0).
inline Levels rounded_levels(int32_t format) {
  Levels levels = {};
  const float steps = format == kNf4 ? 124.1f : format == kFp4 ? 120.0f : 2.0f;
  levels.unit = 1.0f / steps;
  levels.zero = format == kNf4 ? 0.15f : 0.0f;
  for (int i = 0; i < 16; ++i) {
    const float exact = kLevels[format][i] * steps + levels.zero;
    levels.level[i] = static_cast<int8_t>(exact + (exact < 0 ? -0.5f : 0.5f));
  }
  return levels;
}

// What one row of a record gets: 16 numbers of which `count` are there.
inline void quantize_sub(const float* x, int64_t count, float unit, int32_t middle, int64_t row, int64_t rows, char* record,
                         float* sum) {
  float held[kSub] = {};
  if (count < kSub) {
    memcpy(held, x, static_cast<size_t>(count > 0 ? count : 0) * sizeof(float));
    x = held;
  }
  const __m256 low = _mm256_loadu_ps(x), high = _mm256_loadu_ps(x + 8);
  // The largest magnitude, compared as integers: a NaN is larger than all and makes the scale NaN.
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i eight = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(low), magnitude),
                                         _mm256_and_si256(_mm256_castps_si256(high), magnitude));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  const float amax = _mm_cvtss_f32(_mm_castsi128_ps(four));
  const float step = amax * (1.0f / 127.0f);
  const float scale = step < 1.17549435e-38f ? 1.17549435e-38f : step;  // its inverse must be finite
  const __m256 inverse = _mm256_set1_ps(1.0f / scale);
  const __m256i q16 = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(low, inverse)),
                                         _mm256_cvtps_epi32(_mm256_mul_ps(high, inverse)));
  const __m128i mixed = _mm_packs_epi16(_mm256_castsi256_si128(q16), _mm256_extracti128_si256(q16, 1));
  const __m128i q = _mm_shuffle_epi32(mixed, 0xD8);  // 0 2 1 3: back in the order of k
  const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), q);
  __m128i total = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
  total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4E));
  total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0xB1));
  const int32_t count_q = _mm_cvtsi128_si32(total), start = -middle * count_q;
  const float scaled = scale * unit;
  memcpy(record + row * 4, &start, 4);
  memcpy(record + (rows + row) * 4, &scaled, 4);
  int32_t lanes[4];
  memcpy(lanes, &q, sizeof lanes);
  for (int64_t i = 0; i < 4; ++i) {
    memcpy(record + (2 * rows + i * rows + row) * 4, &lanes[i], 4);
  }
  *sum -= scaled * static_cast<float>(count_q);
}

// Rows [first, first + rows) of x into one packed tile. `middle`: the code (or level) that stands for zero.
inline void quantize_tile(const Problem& p, int64_t first, int64_t rows, float unit, int32_t middle, char* packed) {
  const int64_t subs = p.block / kSub, records = padded(p.K, p.block) / kSub;
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = p.x + (first + row) * p.K;
    float sum = 0.0f;
    for (int64_t i = 0; i < records; ++i) {
      const int64_t left = p.K - i * kSub;
      quantize_sub(left > 0 ? x + i * kSub : x, left, unit, middle, row, rows, packed + i * rows * kRecord, &sum);
      if ((i + 1) % subs == 0) {
        memcpy(packed + records * rows * kRecord + (i / subs * rows + row) * 4, &sum, 4);
        sum = 0.0f;
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_QUANTIZE_H_
