// Rows of numbers in registers of sixteen, whatever the processor makes of these: what is written here once is compiled for
// each ISA, without contraction, so all give the same bits.

#ifndef ONNXQ_REGION_ROWS_H_
#define ONNXQ_REGION_ROWS_H_

#include <math.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "../../base/unrolled.h"
#include "../row_kernel.h"

namespace onnxq {
namespace {

constexpr int64_t kLanes = 16;
typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint8_t B __attribute__((vector_size(16)));

ONNXQ_INLINE inline F all(float a) { return F{} + a; }

// Lanes that are not there are zeros, and are not stored.
ONNXQ_INLINE inline F load(const float* p) {
  F a;
  memcpy(&a, p, sizeof a);
  return a;
}
ONNXQ_INLINE inline F load(const float* p, int64_t lanes) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), p);
#else
  F a = {};
  memcpy(&a, p, static_cast<size_t>(lanes) * sizeof(float));
  return a;
#endif
}
ONNXQ_INLINE inline void store(float* p, F a) { memcpy(p, &a, sizeof a); }
ONNXQ_INLINE inline void store(float* p, F a, int64_t lanes) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << lanes) - 1), (__m512)a);
#else
  memcpy(p, &a, static_cast<size_t>(lanes) * sizeof(float));
#endif
}
ONNXQ_INLINE inline F numbers(B codes) { return __builtin_convertvector(__builtin_convertvector(codes, I), F); }
ONNXQ_INLINE inline F load(const uint8_t* p) {
  B a;
  memcpy(&a, p, sizeof a);
  return numbers(a);
}
ONNXQ_INLINE inline F load(const uint8_t* p, int64_t lanes) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  return numbers((B)_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << lanes) - 1), p));
#else
  B a = {};
  memcpy(&a, p, static_cast<size_t>(lanes));
  return numbers(a);
#endif
}
ONNXQ_INLINE inline void store(uint8_t* p, B a) { memcpy(p, &a, sizeof a); }
ONNXQ_INLINE inline void store(uint8_t* p, B a, int64_t lanes) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  _mm_mask_storeu_epi8(p, static_cast<__mmask16>((1u << lanes) - 1), (__m128i)a);
#else
  memcpy(p, &a, static_cast<size_t>(lanes));
#endif
}

// The second where either is no number.
ONNXQ_INLINE inline F larger(F a, F b) { return a > b ? a : b; }
ONNXQ_INLINE inline F smaller(F a, F b) { return a < b ? a : b; }

// The first lanes of a; the others are `rest`.
ONNXQ_INLINE inline F first_of(F a, int64_t lanes, float rest) {
  const I number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return number < static_cast<int32_t>(lanes) ? a : all(rest);
}

// Of all lanes, in halves.
ONNXQ_INLINE inline float total(F a) {
  float lanes[kLanes];
  memcpy(lanes, &a, sizeof a);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}
ONNXQ_INLINE inline float largest(F a) {
  float lanes[kLanes];
  memcpy(lanes, &a, sizeof a);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
  }
  return lanes[0];
}

// Codes of numbers in steps of their scale: as QuantizeLinear rounds.
struct ToBytes {
  F low, high;
  int32_t zero;

  explicit ToBytes(const Codes& range)
      : low(all(static_cast<float>(range.low - range.zero))),
        high(all(static_cast<float>(range.high - range.zero))),
        zero(range.zero) {}

  ONNXQ_INLINE I integers(F steps) const {
    const F bounded = steps > low ? smaller(steps, high) : low;
    // 1.5 · 2^23: leaves no bits behind the point, rounded half to even; the integer is in the last bits then.
    return (I)(bounded + 12582912.0f) - (0x4B400000 - zero);
  }
  ONNXQ_INLINE B operator()(F steps) const { return __builtin_convertvector(integers(steps), B); }
};

// e^x for x ≤ 0, within 2^-22 of itself; 0 where it would be subnormal; no number of none.
ONNXQ_INLINE inline F exponential(F x) {
  const F lowest = all(-87.0f), least = larger(x, lowest);
  const F shifted = least * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const F r = (least - n * 0.693359375f) + n * 2.12194440e-4f;
  F y = all(1.0f / 720);
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  const F power = (F)(((I)shifted - 0x4B400000 + 127) << 23);
  return x < lowest ? F{} : (x == x ? y * power : x);
}

// work(i, lanes) for all of a row: with a constant where the register is full.
template <typename Work>
ONNXQ_INLINE inline void each_vector(int64_t C, const Work& work) {
  int64_t i = 0;
  for (; i + kLanes <= C; i += kLanes) {
    work(i, std::integral_constant<bool, true>(), kLanes);
  }
  if (i < C) {
    work(i, std::integral_constant<bool, false>(), C - i);
  }
}

// A row that is read, of floats or of codes.
template <typename Number>
struct RowOf {
  const Number* at;
  float zero, scale;

  RowOf(const RowsIn& x, int64_t row, int64_t C) : zero(static_cast<float>(x.zero)), scale(x.scale) {
    if constexpr (sizeof(Number) == 1) {
      at = x.codes + row * C;
    } else {
      at = x.floats + row * C;
    }
  }
  template <bool whole>
  ONNXQ_INLINE F operator()(int64_t i, int64_t lanes) const {
    F found;
    if constexpr (whole) {
      found = load(at + i);
    } else {
      found = load(at + i, lanes);
    }
    if constexpr (sizeof(Number) == 1) {
      return (found - zero) * scale;
    } else {
      return found;
    }
  }
};

// A row that is made.
template <bool makes_codes>
struct RowTo {
  const RowsOut& y;
  const ToBytes bytes;
  const float steps;  // of a number
  int64_t at = 0;

  explicit RowTo(const RowsOut& y) : y(y), bytes(y.range), steps(1.0f / y.scale) {}

  template <bool whole>
  ONNXQ_INLINE void put(int64_t i, int64_t lanes, F value) const {
    if constexpr (makes_codes) {
      const B codes = bytes(value * steps);
      whole ? store(y.codes + at + i, codes) : store(y.codes + at + i, codes, lanes);
    } else {
      whole ? store(y.floats + at + i, value) : store(y.floats + at + i, value, lanes);
    }
  }
};

// Rows<float or codes, makes codes>::run: what all rows share is known when this is compiled.
template <template <typename, bool> class Rows, class Problem>
inline void by_kind(const Problem& p, int64_t first, int64_t last) {
  if (p.x.codes) {
    p.y.codes ? Rows<uint8_t, true>::run(p, first, last) : Rows<uint8_t, false>::run(p, first, last);
  } else {
    p.y.codes ? Rows<float, true>::run(p, first, last) : Rows<float, false>::run(p, first, last);
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_ROWS_H_
