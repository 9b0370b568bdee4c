// How the formats find a scale and codes, for one block or for many side by side: what encode_rows.cc runs over a weight.
// Everything here is inlined into the clones that it compiles for each processor.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../base/format.h"
#include "../base/rounding.h"
#include "above.h"

namespace onnxq {
namespace encoding {
namespace {

// How a scale follows from a block, and a code from a weight and its scale. Numbers are part of the C ABI: the formats in
// onnxq/formats name the same ones.
enum Rule : int32_t {
  kRange = 0,     // [min, max] with zero over 0…qmax; zero point
  kAbsmax = 1,    // largest magnitude on qmax
  kExtreme = 2,   // weight of largest magnitude, with its sign, on -qmax - 1
  kLevels = 3,    // largest magnitude times one of 16 levels
  kMicro = 4,     // 16 levels times a power of two: OCP MX
  kGgufSigned = 5,  // as kExtreme, rounded as ggml does
  kGgufAbsmax = 6,  // as kAbsmax with 127, rounded as ggml does
};

enum Type : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kFloat64 = 3 };

constexpr double kLargest = 3.4028e38;  // as in onnxq/formats/kinds/affine.py
constexpr float kTiny = std::numeric_limits<float>::min();
constexpr uint32_t kInfinite = 0x7f800000;
struct Job {
  const void* w;  // [rows, k, inner]
  int32_t type;
  int64_t rows, k, inner, block;
  int32_t rule, qmax;
  const float* middles;  // between ascending levels, 15 of them
  uint8_t* codes;        // [rows, k, inner]
  float* scales;         // [rows, ceil(k / block), inner]
  uint8_t* zeros;        // as scales; kRange only
  // Codes of the ascending levels, the first in the lowest nibble.
  bool is_sorted;
  uint32_t order_low, order_high;
};

// The largest and the smallest number of a block, as magnitudes; 0 where there is none of that sign.
struct Span {
  uint32_t high = 0, low = 0;
  uint32_t largest() const { return std::max(high, low); }
};

// Among the non-negative bit patterns signed order is that of magnitude; among all, unsigned order puts the negative
// numbers on top.
ONNXQ_INLINE Span span(const float* x, int64_t n) {
  int32_t high = 0;
  uint32_t low = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = float_to_bits(x[i]);
    high = std::max(high, static_cast<int32_t>(bits));
    low = std::max(low, bits);
  }
  return {static_cast<uint32_t>(high), low >> 31 ? low & 0x7fffffffu : 0u};
}

ONNXQ_INLINE uint32_t largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, float_to_bits(x[i]) & 0x7fffffffu);
  }
  return largest;
}

// The weight of largest magnitude, with its sign, of elements `stride` apart; of equal magnitudes the first.
inline float extreme(const float* x, int64_t stride, Span s) {
  if (s.high != s.low) {
    return s.high > s.low ? bits_to_float(s.high) : -bits_to_float(s.low);
  }
  while ((float_to_bits(*x) & 0x7fffffffu) != s.high) {
    x += stride;
  }
  return *x;
}

inline float usable_scale(double scale, double qmax) {
  if (scale < kTiny && scale > -kTiny) {
    return 1.0f;
  }
  const double limit = kLargest / qmax;
  return static_cast<float>(std::max(-limit, std::min(limit, scale)));
}

inline float reciprocal(float d) { return d >= kTiny || d <= -kTiny ? 1.0f / d : 0.0f; }

// What codes are computed with: of one block, or of many side by side. `factor` is the divisor of a weight, for ggml's
// rules what it is multiplied by.
struct OneBlock {
  float value;
  int32_t zero_point;
  float factor(int64_t) const { return value; }
  int32_t zero(int64_t) const { return zero_point; }
};

struct ManyBlocks {
  const float* values;
  const int32_t* zero_points;
  float factor(int64_t i) const { return values[i]; }
  int32_t zero(int64_t i) const { return zero_points[i]; }
};

template <typename Blocks>
ONNXQ_INLINE void integers(const float* __restrict x, int64_t n, Blocks b, int32_t low, int32_t high,
                           uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t q = static_cast<int32_t>(round_half_even(x[i] / b.factor(i))) + b.zero(i);
    codes[i] = static_cast<uint8_t>(std::min(std::max(q, low), high));
  }
}

template <typename Blocks>
ONNXQ_INLINE void levels(const float* __restrict x, int64_t n, Blocks b, const Job& job, uint8_t* __restrict codes) {
  float middles[15];
  std::memcpy(middles, job.middles, sizeof middles);
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(above<15>(x[i] / b.factor(i), middles));
  }
  if (job.is_sorted) {
    return;
  }
  // A table of 16 nibbles fits two registers, and shifting them is faster than looking up.
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t position = codes[i];
    const uint32_t half = position < 8 ? job.order_low : job.order_high;
    codes[i] = static_cast<uint8_t>((half >> (4 * (position & 7))) & 15);
  }
}

template <typename Blocks>
ONNXQ_INLINE void gguf_signed(const float* __restrict x, int64_t n, Blocks b, int32_t half,
                              uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    const double step = static_cast<double>(x[i]) * static_cast<double>(b.factor(i)) + (half + 0.5);
    const int32_t q = std::min(static_cast<int32_t>(step), 2 * half - 1);
    codes[i] = static_cast<uint8_t>(q - half);
  }
}

template <typename Blocks>
ONNXQ_INLINE void gguf_absmax(const float* __restrict x, int64_t n, Blocks b, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    const float step = x[i] * b.factor(i);
    const float size = std::min(bits_to_float(float_to_bits(step) & 0x7fffffffu), 127.0f);
    const int32_t down = static_cast<int32_t>(size);
    const int32_t rounded = down + static_cast<int32_t>(2.0f * (size - static_cast<float>(down)));
    codes[i] = static_cast<uint8_t>(step < 0.0f ? -rounded : rounded);
  }
}

template <typename Blocks>
ONNXQ_INLINE void encode(const Job& job, const float* x, int64_t n, Blocks b, uint8_t* codes) {
  switch (job.rule) {
    case kRange:
      return integers(x, n, b, 0, job.qmax, codes);
    case kAbsmax:
      return integers(x, n, b, -job.qmax, job.qmax, codes);
    case kExtreme:
      return integers(x, n, b, -job.qmax - 1, job.qmax, codes);
    case kGgufSigned:
      return gguf_signed(x, n, b, job.qmax + 1, codes);
    case kGgufAbsmax:
      return gguf_absmax(x, n, b, codes);
    default:
      return levels(x, n, b, job, codes);
  }
}

// The scale of a block of elements `stride` apart, and what its codes are computed with. Returns whether all of them are
// finite.
inline bool find_scale(const Job& job, Span s, const float* x, int64_t stride, float* scale, OneBlock* block) {
  if (s.largest() >= kInfinite) {
    return false;
  }
  const double qmax = job.qmax;
  *block = {1.0f, 0};
  switch (job.rule) {
    case kRange: {
      const double low = -static_cast<double>(bits_to_float(s.low)), high = static_cast<double>(bits_to_float(s.high));
      *scale = usable_scale((high - low) / qmax, qmax);
      const double middle = round_half_even(-low / static_cast<double>(*scale));  // never below zero
      block->zero_point = static_cast<int32_t>(std::min(middle, qmax));
      break;
    }
    case kAbsmax:
      *scale = usable_scale(static_cast<double>(bits_to_float(s.largest())) / qmax, qmax);
      break;
    case kExtreme: {
      // Of equal magnitudes the negative number, as onnxruntime; ggml takes the first.
      const double outermost = s.high > s.low ? bits_to_float(s.high) : -bits_to_float(s.low);
      *scale = usable_scale(outermost / (-qmax - 1), qmax + 1);
      break;
    }
    case kLevels:
      *scale = bits_to_float(s.largest());
      break;
    case kMicro: {
      const uint32_t exponent = std::max<uint32_t>(s.largest() >> 23, 2) - 2;
      *scale = exponent ? bits_to_float(exponent << 23) : bits_to_float(0x00400000);
      break;
    }
    case kGgufSigned:
      *scale = extreme(x, stride, s) / static_cast<float>(-job.qmax - 1);
      block->value = reciprocal(*scale);
      return true;
    default:
      *scale = bits_to_float(s.largest()) / 127.0f;
      block->value = reciprocal(*scale);
      return true;
  }
  block->value = *scale == 0.0f ? 1.0f : *scale;
  return true;
}

}  // namespace
}  // namespace encoding
}  // namespace onnxq
