// The rule that every encoder follows, as numpy does: to the nearest whole number, of two the even one.

#ifndef ONNXQ_BASE_ROUNDING_H_
#define ONNXQ_BASE_ROUNDING_H_

#include "clones.h"

namespace onnxq {
namespace {

// Adding 1.5 · 2^23 (2^52) leaves no bits for what is behind the point, and the sum is rounded so. For |x| < 2^22 (2^51).
ONNXQ_INLINE constexpr float round_half_even(float x) { return (x + 12582912.0f) - 12582912.0f; }
ONNXQ_INLINE constexpr double round_half_even(double x) { return (x + 6755399441055744.0) - 6755399441055744.0; }

static_assert(round_half_even(2.5f) == 2.0f && round_half_even(3.5f) == 4.0f && round_half_even(-0.75f) == -1.0f, "float");
static_assert(round_half_even(2.5) == 2.0 && round_half_even(3.5) == 4.0 && round_half_even(-0.75) == -1.0, "double");

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_BASE_ROUNDING_H_
