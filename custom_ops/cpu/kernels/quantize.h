// Activations as 8-bit integers, with a scale for every U = 32 of them, or for every 16 or 8 where there are outliers.
//
// Rounding to steps of amax / 127 leaves an error of step / √12 in every number. Of 32 normally distributed ones this is
// 0.0053 of their norm; of S numbers √(S / 12) / 127 at most, reached where one is much larger than all others: 0.0129 for
// 32, 0.0091 for 16, 0.0064 for 8. Where a row would lose more than kAllowed of its norm, as many of its largest U are
// quantized by 16, or by 8, as it takes: so have all products a relative error of about kAllowed at most, whatever outliers
// there are.
//
// Where a block of the weight is no multiple of 32, U is 16. Packed for tiles of R rows, each tile followed by the next:
//
//     float sum[blocks of the weight][R]   minus the sum of scale · q, which a zero point multiplies
//     uint8 size[K / U]                    S: these U are U / S records
//     records, (8 + S) · R bytes each:
//       int32 start[R]                     minus the middle code times the sum of q: what the dot product begins with
//       float scale[R]                     of q, times the unit of the weight's table of levels
//       int8  q[S / 4][R][4]               four k of every row, beside each other

#ifndef ONNXQ_CPU_KERNELS_QUANTIZE_H_
#define ONNXQ_CPU_KERNELS_QUANTIZE_H_

#include <immintrin.h>

#include "../../base/rounding.h"
#include "streams.h"

namespace onnxq {
namespace {

constexpr float kAllowed = 0.0075f;
constexpr int kLeastSize = 8;  // S
constexpr int64_t kRowsOfTile = 8;  // at most

constexpr int unit_k(const Problem& p) { return p.block % 32 == 0 ? 32 : 16; }  // U
constexpr int64_t record_bytes(int64_t sub) { return 8 + sub; }                 // of one row

// Parts of a packed tile.
struct Packed {
  float* sums;
  uint8_t* sizes;
  char* records;
};

// Of one row, if all its records are of the least size: a multiple of 4, for the tile that follows.
constexpr int64_t packed_row_bytes(const Problem& p) {
  const int64_t Kp = padded(p.K, p.block);
  return blocks(p.K, p.block) * 4 + (Kp / unit_k(p) + 3) / 4 * 4 + Kp / kLeastSize * record_bytes(kLeastSize);
}

inline Packed packed_tile(const Problem& p, int64_t first, int64_t rows, char* workspace) {
  char* const tile = workspace + first * packed_row_bytes(p);
  char* const sizes = tile + blocks(p.K, p.block) * 4 * rows;
  return {reinterpret_cast<float*>(tile), reinterpret_cast<uint8_t*>(sizes),
          sizes + (padded(p.K, p.block) / unit_k(p) + 3) / 4 * 4};
}

// Levels of a table as bytes: value ≈ (level - zero) · unit.
struct Levels {
  int8_t level[16];
  float zero, unit;
};

// How a table is rounded: level = value · steps + zero.
struct Steps {
  float steps, zero;
};

// MXFP4's levels are integers when doubled. The others are rounded; unit and zero are those of least error for normally
// distributed weights in blocks of 32 … 128 (relative 0.0033 for NF4, 0.0034 for FP4; 0.0058 with 127 and 0).
constexpr Steps kSteps[kFormats] = {{}, {}, {124.1f, 0.15f}, {120.0f, 0.0f}, {2.0f, 0.0f}};

constexpr bool all_tables_have_steps() {
  for (int32_t format = 0; format < kFormats; ++format) {
    for (int i = 0; i < 16; ++i) {
      const float level = kLevels[format][i] * kSteps[format].steps + kSteps[format].zero;
      if (is_affine(format) != (kSteps[format].steps == 0.0f) || level < -127.0f || level > 127.0f) {
        return false;
      }
    }
  }
  return true;
}
static_assert(all_tables_have_steps(), "every table of levels has steps of its own in kSteps, of which 127 hold its levels");

// Of a format whose codes index a table.
inline Levels rounded_levels(int32_t format) {
  const Steps by = kSteps[format];
  Levels levels = {{}, by.zero, 1.0f / by.steps};
  for (int i = 0; i < 16; ++i) {
    const float exact = kLevels[format][i] * by.steps + by.zero;
    levels.level[i] = static_cast<int8_t>(round_half_even(exact));
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

// One row of a record: x in multiples of `scale`.
template <int S>
void write_row(const Sub<S>& sub, float scale, float inverse, const Row& at, char* record) {
  const __m256 inverses = _mm256_set1_ps(inverse);
  const __m256i ones = _mm256_set1_epi16(1), in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  static_assert(S <= 32, "four vectors of eight");
  __m256i q[4] = {};
  for (int i = 0; i < sub.kEights; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(sub.x[i], inverses));
  }
  const __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order);
  const int32_t sum_q = sum_of_lanes(_mm256_madd_epi16(_mm256_add_epi16(low, high), ones)), start = -at.middle * sum_q;
  const float scaled = scale * at.unit;
  memcpy(record + at.row * 4, &start, 4);
  memcpy(record + (at.rows + at.row) * 4, &scaled, 4);
  if (at.rows == 1) {
    memcpy(record + 8, &bytes, S);
  } else {
    int32_t lanes[8];
    memcpy(lanes, &bytes, sizeof lanes);
    for (int64_t i = 0; i < S / 4; ++i) {
      memcpy(record + (2 * at.rows + i * at.rows + at.row) * 4, &lanes[i], 4);
    }
  }
  *at.sum -= scaled * static_cast<float>(sum_q);
}

inline float sum_of_lanes(__m256 eight) {
  float lanes[8], sum = 0.0f;
  _mm256_storeu_ps(lanes, eight);
  for (float lane : lanes) {
    sum += lane;
  }
  return sum;
}

// How a row is quantized: U numbers with one of `limit` or more by `size`, the others by U.
struct Choice {
  float limit;
  int size;
};

constexpr float kSmallest = 1.17549435e-38f, kLargest = 3.40282347e38f;

// amax / 127, or the least number whose inverse is finite.
inline float step_of(float amax) {
  const float step = amax * (1.0f / 127.0f);
  return step < kSmallest ? kSmallest : step;
}

// The square of what rounding S numbers to steps of amax / 127 loses.
template <int S>
float loss(const Sub<S>& sub, float amax) {
  const float step = step_of(amax), inverse = 1.0f / step;
  __m256 squares = _mm256_setzero_ps();
  for (int i = 0; i < sub.kEights; ++i) {
    const __m256 whole = _mm256_round_ps(_mm256_mul_ps(sub.x[i], _mm256_set1_ps(inverse)), _MM_FROUND_TO_NEAREST_INT);
    const __m256 rest = _mm256_fnmadd_ps(whole, _mm256_set1_ps(step), sub.x[i]);
    squares = _mm256_fmadd_ps(rest, rest, squares);
  }
  return sum_of_lanes(squares);
}

template <int U>
Choice choose(const float* x, int64_t K) {
  constexpr Choice kAllByU = {2.0f * kLargest, U};
  float estimate = 0.0f;
  __m256 squares[U / 8] = {};  // several sums, as one would wait for itself
  for (int64_t k = 0; k < K; k += U) {
    const Sub<U> sub = load_sub<U>(x + k, K - k);
    const float step = largest_magnitude(sub) * (1.0f / 127.0f);
    estimate += U / 12.0f * step * step;
    for (int i = 0; i < sub.kEights; ++i) {
      squares[i] = _mm256_fmadd_ps(sub.x[i], sub.x[i], squares[i]);
    }
  }
  for (int i = 1; i < U / 8; ++i) {
    squares[0] = _mm256_add_ps(squares[0], squares[i]);
  }
  const float allowed = kAllowed * kAllowed * sum_of_lanes(squares[0]);
  if (!(estimate > allowed && estimate <= kLargest)) {
    return kAllByU;
  }
  // Often it is less: whole numbers lose nothing, and what is rounded to zero no more than itself.
  float lost = 0.0f, lost_by_16 = 0.0f;
  float of_exponent[256] = {};  // the part of `lost` where amax has this exponent
  for (int64_t k = 0; k < K; k += U) {
    const Sub<U> sub = load_sub<U>(x + k, K - k);
    const float amax = largest_magnitude(sub), here = loss(sub, amax);
    lost += here;
    of_exponent[float_to_bits(amax) >> 23] += here;
    for (int64_t i = k; i < k + U && i < K; i += 16) {
      const Sub<16> half = load_sub<16>(x + i, K - i);
      lost_by_16 += loss(half, largest_magnitude(half));
    }
  }
  if (lost <= allowed) {
    return kAllByU;
  }
  const int size = U > 16 && lost_by_16 <= allowed ? 16 : kLeastSize;
  uint32_t exponent = 255;
  while (lost > allowed && exponent > 0) {  // one outlier among U costs only the S around it their precision
    lost -= of_exponent[--exponent] * (1.0f - static_cast<float>(size) / U);
  }
  return {bits_to_float(exponent << 23), size};
}

// One row of S k in steps of amax / 127.
template <int S>
void quantize_sub(Sub<S> sub, float amax, const Row& at, char* record) {
  const bool is_finite = amax <= kLargest;
  if (!is_finite) {  // infinities become the largest code of an infinite scale; NaN is in the scale and need not be in the codes
    for (int i = 0; i < sub.kEights; ++i) {
      sub.x[i] = _mm256_max_ps(_mm256_min_ps(sub.x[i], _mm256_set1_ps(kLargest)), _mm256_set1_ps(-kLargest));
    }
  }
  const float scale = step_of(is_finite ? amax : kLargest);
  write_row(sub, is_finite ? scale : amax, 1.0f / scale, at, record);
}

// Of numbers k…k + S of a row those that there are, zeros behind.
template <int S>
Sub<S> sub_at(const float* row, int64_t K, int64_t k) {
  return load_sub<S>(k < K ? row + k : row, k < K ? K - k : 0);
}

// Some rows of x, and how each is quantized where its tile is now.
struct Rows {
  const float* x;
  int64_t K, count;
  int sizes[kRowsOfTile];
  float amax[kRowsOfTile];  // of U
};

// U numbers from k on, as records of S; rows of a larger size have the same scale in several of them.
template <int S, int U>
char* write_records(const Rows& rows, int64_t k, float unit, int32_t middle, float* sums, char* record) {
  for (int64_t end = k + U; k < end; k += S, record += rows.count * record_bytes(S)) {
    for (int64_t r = 0; r < rows.count; ++r) {
      const float* const row = rows.x + r * rows.K;
      const Sub<S> sub = sub_at<S>(row, rows.K, k);
      const int size = rows.sizes[r];
      const float amax = size == U   ? rows.amax[r]
                         : size == S ? largest_magnitude(sub)
                                     : largest_magnitude(sub_at<16>(row, rows.K, k / 16 * 16));
      quantize_sub(sub, amax, {r, rows.count, unit, middle, sums + r}, record);
    }
  }
  return record;
}

// Rows [first, first + count) of x into one packed tile. `middle`: the code (or level) that stands for zero.
template <int U>
void quantize_tile(const Problem& p, int64_t first, int64_t count, float unit, int32_t middle, const Packed& packed) {
  Rows rows = {p.x + first * p.K, p.K, count, {}, {}};
  Choice choices[kRowsOfTile];
  for (int64_t r = 0; r < count; ++r) {
    choices[r] = choose<U>(rows.x + r * p.K, p.K);
  }
  char* record = packed.records;
  for (int64_t k = 0; k < padded(p.K, p.block); k += U) {
    float* const sums = packed.sums + k / p.block * count;
    int least = U;
    for (int64_t r = 0; r < count; ++r) {
      sums[r] = k % p.block == 0 ? 0.0f : sums[r];
      rows.amax[r] = largest_magnitude(sub_at<U>(rows.x + r * p.K, p.K, k));
      rows.sizes[r] = rows.amax[r] >= choices[r].limit ? choices[r].size : U;
      least = rows.sizes[r] < least ? rows.sizes[r] : least;
    }
    packed.sizes[k / U] = static_cast<uint8_t>(least);
    const auto write = least == U ? write_records<U, U> : least == 16 ? write_records<16, U> : write_records<kLeastSize, U>;
    record = write(rows, k, unit, middle, sums, record);
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_QUANTIZE_H_
