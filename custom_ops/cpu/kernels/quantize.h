// Activations as 8-bit integers, quantized afresh for every 16 of them, twice where one of the 16 outshines the others.
//
// Rounding to steps of amax / 127 leaves an error of step / √12 in every number: up to √(16 / 12) / 127 = 0.0091 of the
// norm of the 16, reached where one is much larger than the rest. Above kAllowed of it, what rounding has left is
// quantized once more, to steps 254 times smaller. So every 16 numbers, and any product, have a relative error below
// kAllowed, whatever outliers there are; normally distributed ones 0.0047.
//
// Packed for tiles of R rows, each tile followed by the next; records of 24 · R bytes, one or two for every 16 k:
//
//     int32 start[R]       minus the middle code times the sum of q: what the dot product begins with
//     float scale[R]       of q, times the unit of the weight's table of levels
//     int8  q[4][R][4]     four k of every row, beside each other
//
// behind the room for two of each: float sum[blocks of the weight][R], minus the sum of scale · q, which a zero point
// multiplies; and uint8 again[K / 16], whether a second record follows for the same 16 k.

#ifndef ONNXQ_CPU_KERNELS_QUANTIZE_H_
#define ONNXQ_CPU_KERNELS_QUANTIZE_H_

#include <immintrin.h>

#include "streams.h"

namespace onnxq {
namespace {

constexpr int64_t kSub = 16;
constexpr int64_t kRecord = 24;

constexpr float kAllowed = 0.0075f;

// Parts of a packed tile of `rows`.
struct Packed {
  char* records;
  float* sums;
  uint8_t* again;
};

constexpr int64_t packed_row_bytes(const Problem& p) {  // a multiple of 4, for the tile that follows
  const int64_t subs = padded(p.K, p.block) / kSub;
  return subs * 2 * kRecord + blocks(p.K, p.block) * 4 + (subs + 3) / 4 * 4;
}

inline Packed packed_tile(const Problem& p, int64_t first, int64_t rows, char* workspace) {
  char* const records = workspace + first * packed_row_bytes(p);
  char* const sums = records + padded(p.K, p.block) / kSub * 2 * kRecord * rows;
  return {records, reinterpret_cast<float*>(sums), reinterpret_cast<uint8_t*>(sums + blocks(p.K, p.block) * 4 * rows)};
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

// Sixteen numbers, as two vectors.
struct Sixteen {
  __m256 low, high;
};

inline Sixteen load_sixteen(const float* x, int64_t count) {
  float held[kSub] = {};
  if (count < kSub) {
    memcpy(held, x, static_cast<size_t>(count) * sizeof(float));
    x = held;
  }
  return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}

// As bits: a NaN is larger than every number.
inline float largest_magnitude(const Sixteen& x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i eight = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x.low), magnitude),
                                         _mm256_and_si256(_mm256_castps_si256(x.high), magnitude));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(four));
}

// Whether Σx² < amax² · bound, with x / amax for x so that no square overflows. False for NaN and infinity.
inline bool outshone(const Sixteen& x, float inverse_amax, float bound) {
  const __m256 inverse = _mm256_set1_ps(inverse_amax);
  const __m256 low = _mm256_mul_ps(x.low, inverse), high = _mm256_mul_ps(x.high, inverse);
  const __m256 eight = _mm256_fmadd_ps(low, low, _mm256_mul_ps(high, high));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1))) < bound;
}

// One row of a record. Returns what rounding to multiples of `scale` has left.
struct Row {
  int64_t row, rows;
  float unit;
  int32_t middle;
  float* sum;
};

inline Sixteen write_row(const Sixteen& x, float scale, float inverse, const Row& at, char* record) {
  const __m256 inverses = _mm256_set1_ps(inverse), scales = _mm256_set1_ps(scale);
  const __m256i q_low = _mm256_cvtps_epi32(_mm256_mul_ps(x.low, inverses));
  const __m256i q_high = _mm256_cvtps_epi32(_mm256_mul_ps(x.high, inverses));
  const __m256i q16 = _mm256_packs_epi32(q_low, q_high);
  const __m128i mixed = _mm_packs_epi16(_mm256_castsi256_si128(q16), _mm256_extracti128_si256(q16, 1));
  const __m128i q = _mm_shuffle_epi32(mixed, 0xD8);  // 0 2 1 3: back in the order of k
  __m128i total = _mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), q), _mm_set1_epi16(1));
  total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4E));
  total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0xB1));
  const int32_t sum_q = _mm_cvtsi128_si32(total), start = -at.middle * sum_q;
  const float scaled = scale * at.unit;
  memcpy(record + at.row * 4, &start, 4);
  memcpy(record + (at.rows + at.row) * 4, &scaled, 4);
  int32_t lanes[4];
  memcpy(lanes, &q, sizeof lanes);
  for (int64_t i = 0; i < 4; ++i) {
    memcpy(record + (2 * at.rows + i * at.rows + at.row) * 4, &lanes[i], 4);
  }
  *at.sum -= scaled * static_cast<float>(sum_q);
  return {_mm256_fnmadd_ps(_mm256_cvtepi32_ps(q_low), scales, x.low),
          _mm256_fnmadd_ps(_mm256_cvtepi32_ps(q_high), scales, x.high)};
}

// One row of 16 k: the first record, and the second if it is wanted. Returns whether it is.
inline bool quantize_sub(Sixteen x, const Row& at, char* record) {
  constexpr float kSmallest = 1.17549435e-38f, kLargest = 3.40282347e38f;
  const float amax = largest_magnitude(x);
  // Infinities become the largest code of an infinite scale; NaN is in the scale and need not be in the codes.
  const __m256 most = _mm256_set1_ps(kLargest), least = _mm256_set1_ps(-kLargest);
  x = {_mm256_max_ps(_mm256_min_ps(x.low, most), least), _mm256_max_ps(_mm256_min_ps(x.high, most), least)};
  const float finite = amax < kLargest ? amax : kLargest;
  const float step = finite * (1.0f / 127.0f), scale = step < kSmallest ? kSmallest : step;  // whose inverse is finite
  const float inverse = 1.0f / scale;
  const Sixteen rest = write_row(x, amax <= kLargest ? scale : amax, inverse, at, record);
  record += at.rows * kRecord;
  constexpr float kBound = 16.0f / 12.0f / (127.0f * 127.0f) / (kAllowed * kAllowed);
  if (amax <= kLargest && step > 254.0f * kSmallest && outshone(x, inverse * (1.0f / 127.0f), kBound)) {
    write_row(rest, scale * (1.0f / 254.0f), inverse * 254.0f, at, record);
    return true;
  }
  write_row({_mm256_setzero_ps(), _mm256_setzero_ps()}, 0.0f, 0.0f, at, record);
  return false;
}

// Rows [first, first + rows) of x into one packed tile. `middle`: the code (or level) that stands for zero.
inline void quantize_tile(const Problem& p, int64_t first, int64_t rows, float unit, int32_t middle, const Packed& packed) {
  const int64_t subs = p.block / kSub, count = padded(p.K, p.block) / kSub;
  char* record = packed.records;
  for (int64_t b = 0; b < blocks(p.K, p.block); ++b) {
    float* const sums = packed.sums + b * rows;
    for (int64_t row = 0; row < rows; ++row) {
      sums[row] = 0.0f;
    }
    for (int64_t i = b * subs; i < (b + 1) * subs && i < count; ++i) {
      const int64_t left = p.K - i * kSub;
      bool again = false;
      for (int64_t row = 0; row < rows; ++row) {
        const float* const x = p.x + (first + row) * p.K + (left > 0 ? i * kSub : 0);
        again |= quantize_sub(load_sixteen(x, left > 0 ? left : 0), {row, rows, unit, middle, sums + row}, record);
      }
      packed.again[i] = again;
      record += (again ? 2 : 1) * rows * kRecord;  // an unused second one is overwritten
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_QUANTIZE_H_
