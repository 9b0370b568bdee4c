#include "convert.h"

#include "clones.h"
#include "format.h"

namespace onnxq {
namespace {

// In an anonymous namespace, as compilers show the resolvers of others to the world.

ONNXQ_CLONES void from_half_array(const uint16_t* __restrict from, float* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    to[i] = half_to_float(from[i]);
  }
}

ONNXQ_CLONES void from_bfloat16_array(const uint16_t* __restrict from, float* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    to[i] = bfloat16_to_float(from[i]);
  }
}

ONNXQ_CLONES void from_double_array(const double* __restrict from, float* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    to[i] = static_cast<float>(from[i]);
  }
}

ONNXQ_CLONES void to_half_array(const float* __restrict from, uint16_t* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = float_to_bits(from[i]), magnitude = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
    // Normal halves: another exponent bias, then rounding of the 13 bits that fall away. A carry goes where it should,
    // and from 65520 on it makes infinity.
    const uint32_t shifted = magnitude - 0x38000000u;
    const uint32_t normal = (shifted + 0x0FFF + (shifted >> 13 & 1)) >> 13;
    // Subnormal ones: adding 0.5 leaves multiples of 2^-24 in the last bits, rounded by the processor.
    const uint32_t subnormal = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3F000000u;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t infinite = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    to[i] = static_cast<uint16_t>(sign | (magnitude >= 0x47800000u ? infinite : finite));
  }
}

ONNXQ_CLONES void to_bfloat16_array(const float* __restrict from, uint16_t* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = float_to_bits(from[i]);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000u;
    to[i] = static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : rounded);
  }
}

}  // namespace

void from_half(const uint16_t* from, float* to, int64_t size) { from_half_array(from, to, size); }

void from_bfloat16(const uint16_t* from, float* to, int64_t size) { from_bfloat16_array(from, to, size); }

void from_double(const double* from, float* to, int64_t size) { from_double_array(from, to, size); }

void to_half(const float* from, uint16_t* to, int64_t size) { to_half_array(from, to, size); }

void to_bfloat16(const float* from, uint16_t* to, int64_t size) { to_bfloat16_array(from, to, size); }

}  // namespace onnxq
