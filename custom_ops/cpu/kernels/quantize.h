// Activations as 8-bit integers, quantized afresh for every S = 32 of them (16 where a block of the weight is no multiple
// of 32), twice where one of the S outshines the others.
//
// Rounding to steps of amax / 127 leaves an error of step / √12 in every number: up to √(32 / 12) / 127 = 0.0129 of the
// norm of the S, reached where one is much larger than the rest. Above kAllowed of it, what rounding has left is
// quantized once more, to steps 254 times smaller. So every S numbers, and any product, have a relative error below
// kAllowed, whatever outliers there are; normally distributed ones 0.0053.
//
// Packed for tiles of R rows, each tile followed by the next; records of (8 + S) · R bytes, one or two for every S k:
//
//     int32 start[R]         minus the middle code times the sum of q: what the dot product begins with
//     float scale[R]         of q, times the unit of the weight's table of levels
//     int8  q[S / 4][R][4]   four k of every row, beside each other
//
// behind the room for two of each: float sum[blocks of the weight][R], minus the sum of scale · q, which a zero point
// multiplies; and uint8 last[], of each record whether the next one is for other k: 1, or 0 before a second record.

#ifndef ONNXQ_CPU_KERNELS_QUANTIZE_H_
#define ONNXQ_CPU_KERNELS_QUANTIZE_H_

#include <immintrin.h>

#include "streams.h"

namespace onnxq {
namespace {

constexpr int64_t sub_k(const Problem& p) { return p.block % 32 == 0 ? 32 : 16; }
constexpr int64_t record_bytes(int64_t sub) { return 8 + sub; }  // of one row

constexpr float kAllowed = 0.009f;

// Parts of a packed tile of `rows`.
struct Packed {
  char* records;
  float* sums;
  uint8_t* last;
};

constexpr int64_t packed_row_bytes(const Problem& p) {  // a multiple of 4, for the tile that follows
  const int64_t subs = padded(p.K, p.block) / sub_k(p);
  return subs * 2 * record_bytes(sub_k(p)) + blocks(p.K, p.block) * 4 + (2 * subs + 3) / 4 * 4;
}

inline Packed packed_tile(const Problem& p, int64_t first, int64_t rows, char* workspace) {
  char* const records = workspace + first * packed_row_bytes(p);
  char* const sums = records + padded(p.K, p.block) / sub_k(p) * 2 * record_bytes(sub_k(p)) * rows;
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

// S numbers of a row.
template <int S>
struct Sub {
  static constexpr int kEights = S / 8;
  __m256 x[kEights];
};

template <int S>
Sub<S> load_sub(const float* x, int64_t count) {
  float held[S] = {};
  if (count < S) {
    memcpy(held, x, static_cast<size_t>(count) * sizeof(float));
    x = held;
  }
  Sub<S> sub;
  for (int i = 0; i < sub.kEights; ++i) {
    sub.x[i] = _mm256_loadu_ps(x + 8 * i);
  }
  return sub;
}

// As bits: a NaN is larger than every number.
template <int S>
float largest_magnitude(const Sub<S>& sub) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i eight = _mm256_and_si256(_mm256_castps_si256(sub.x[0]), magnitude);
  for (int i = 1; i < sub.kEights; ++i) {
    eight = _mm256_max_epi32(eight, _mm256_and_si256(_mm256_castps_si256(sub.x[i]), magnitude));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(four));
}

inline int32_t sum_of_lanes(__m256i eight) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtsi128_si32(four);
}

// Where one row of a record goes.
struct Row {
  int64_t row, rows;
  float unit;
  int32_t middle;
  float* sum;
};

// One row of a record: x in multiples of `scale`. Returns the sum of the squares of those.
template <int S>
int32_t write_row(const Sub<S>& sub, float scale, float inverse, const Row& at, char* record) {
  const __m256 inverses = _mm256_set1_ps(inverse);
  const __m256i ones = _mm256_set1_epi16(1), in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  static_assert(S <= 32, "four vectors of eight");
  __m256i q[4] = {};
  for (int i = 0; i < sub.kEights; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(sub.x[i], inverses));
  }
  const __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
  const __m256i squares = _mm256_add_epi32(_mm256_madd_epi16(low, low), _mm256_madd_epi16(high, high));
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order);
  int32_t lanes[8];
  memcpy(lanes, &bytes, sizeof lanes);
  const int32_t sum_q = sum_of_lanes(_mm256_madd_epi16(_mm256_add_epi16(low, high), ones)), start = -at.middle * sum_q;
  const float scaled = scale * at.unit;
  memcpy(record + at.row * 4, &start, 4);
  memcpy(record + (at.rows + at.row) * 4, &scaled, 4);
  for (int64_t i = 0; i < S / 4; ++i) {
    memcpy(record + (2 * at.rows + i * at.rows + at.row) * 4, &lanes[i], 4);
  }
  *at.sum -= scaled * static_cast<float>(sum_q);
  return sum_of_lanes(squares);
}

// What rounding to multiples of `scale` leaves.
template <int S>
Sub<S> left_over(const Sub<S>& sub, float scale, float inverse) {
  Sub<S> rest;
  for (int i = 0; i < sub.kEights; ++i) {
    const __m256 whole = _mm256_round_ps(_mm256_mul_ps(sub.x[i], _mm256_set1_ps(inverse)), _MM_FROUND_TO_NEAREST_INT);
    rest.x[i] = _mm256_fnmadd_ps(whole, _mm256_set1_ps(scale), sub.x[i]);
  }
  return rest;
}

// One row of S k: the first record, and the second if it is wanted. Returns whether it is.
template <int S>
bool quantize_sub(Sub<S> sub, const Row& at, char* record) {
  constexpr float kSmallest = 1.17549435e-38f, kLargest = 3.40282347e38f;
  const float amax = largest_magnitude(sub);
  const bool is_finite = amax <= kLargest;
  if (!is_finite) {  // infinities become the largest code of an infinite scale; NaN is in the scale and need not be in the codes
    for (int i = 0; i < sub.kEights; ++i) {
      sub.x[i] = _mm256_max_ps(_mm256_min_ps(sub.x[i], _mm256_set1_ps(kLargest)), _mm256_set1_ps(-kLargest));
    }
  }
  const float finite = is_finite ? amax : kLargest;
  const float step = finite * (1.0f / 127.0f), scale = step < kSmallest ? kSmallest : step;  // whose inverse is finite
  const float inverse = 1.0f / scale;
  const int32_t squares = write_row(sub, is_finite ? scale : amax, inverse, at, record);
  record += at.rows * record_bytes(S);
  // The squares of the S, in steps, below which the S · step² / 12 that rounding loses is too much of them.
  constexpr float kBound = S / 12.0f / (kAllowed * kAllowed);
  if (is_finite && step > 254.0f * kSmallest && static_cast<float>(squares) < kBound) {
    write_row(left_over(sub, scale, inverse), scale * (1.0f / 254.0f), inverse * 254.0f, at, record);
    return true;
  }
  return false;
}

// A second record of a row that needs none, beside one that does.
template <int S>
void write_nothing(const Row& at, char* record) {
  write_row(Sub<S>{}, 0.0f, 0.0f, at, record);
}

// Rows [first, first + rows) of x into one packed tile. `middle`: the code (or level) that stands for zero.
template <int S>
void quantize_tile(const Problem& p, int64_t first, int64_t rows, float unit, int32_t middle, const Packed& packed) {
  const int64_t subs = p.block / S;
  char* record = packed.records;
  uint8_t* last = packed.last;
  for (int64_t b = 0; b < blocks(p.K, p.block); ++b) {
    float* const sums = packed.sums + b * rows;
    for (int64_t row = 0; row < rows; ++row) {
      sums[row] = 0.0f;
    }
    for (int64_t i = b * subs; i < (b + 1) * subs; ++i) {
      const int64_t left = p.K - i * S;
      uint32_t again = 0;  // a bit for every row
      for (int64_t row = 0; row < rows; ++row) {
        const float* const x = p.x + (first + row) * p.K + (left > 0 ? i * S : 0);
        const Row at = {row, rows, unit, middle, sums + row};
        again |= static_cast<uint32_t>(quantize_sub(load_sub<S>(x, left > 0 ? left : 0), at, record)) << row;
      }
      record += rows * record_bytes(S);
      *last++ = again == 0;
      if (again) {
        *last++ = 1;
        for (int64_t row = 0; row < rows; ++row) {
          if (!(again >> row & 1)) {
            write_nothing<S>({row, rows, unit, middle, sums + row}, record);
          }
        }
        record += rows * record_bytes(S);
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_QUANTIZE_H_
