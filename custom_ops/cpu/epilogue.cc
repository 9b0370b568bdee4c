#include "epilogue.h"

#include <cstring>

#include "../base/clones.h"
#include "../base/export.h"
#include "../base/format.h"

namespace onnxq {
namespace {

// --- one number, without branches, so that compilers make vectors of it ------------------------------------------------

// e^x within 2^-22 for |x| ≤ 87, which others are cut to; NaN stays NaN.
ONNXQ_INLINE float exp_of(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: what is added to it is rounded to a whole number
  x = x > 87.0f ? 87.0f : x;
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;  // Cephes, expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const uint32_t power = (float_to_bits(shifted) << 23) + 0x3F800000u;
  return (p * r * r + r + 1.0f) * bits_to_float(power);
}

ONNXQ_INLINE float relu(float x) { return x < 0.0f ? 0.0f : x; }

// x · (1 + erf(x / √2)) / 2, where erfc(a) = e^(-a²) · polynomial(1 / (1 + p a)): Abramowitz and Stegun, 7.1.26.
ONNXQ_INLINE float gelu(float x) {
  const float size = x < 0.0f ? -x : x, cut = size > 13.0f ? 13.0f : size;
  const float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * cut);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float rest = 0.5f * cut * (p * t) * exp_of(-0.5f * cut * cut);
  return (x < 0.0f ? 0.0f : x) - rest;
}

// x / (1 + e^-s): the numerator is cut where the quotient is nothing any more.
ONNXQ_INLINE float weighed(float x, float s) { return (x < -87.0f ? -87.0f : x) / (1.0f + exp_of(-s)); }

ONNXQ_INLINE float tanh_gelu(float x) { return weighed(x, 1.5957691216f * (x + 0.044715f * x * x * x)); }

ONNXQ_INLINE float silu(float x) { return weighed(x, x); }

// --- arrays --------------------------------------------------------------------------------------------------------------

#define ONNXQ_ARRAY(name)                                                  \
  ONNXQ_CLONES void name##_array(float* __restrict y, int64_t size) {      \
    for (int64_t i = 0; i < size; ++i) {                                   \
      y[i] = name(y[i]);                                                   \
    }                                                                      \
  }
ONNXQ_ARRAY(relu)
ONNXQ_ARRAY(gelu)
ONNXQ_ARRAY(tanh_gelu)
ONNXQ_ARRAY(silu)
#undef ONNXQ_ARRAY

ONNXQ_CLONES void add_array(const float* __restrict more, float* __restrict y, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    y[i] += more[i];
  }
}

ONNXQ_CLONES void multiply_array(const float* __restrict by, float* __restrict y, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    y[i] *= by[i];
  }
}

constexpr const char* kWords[kActivations] = {"none", "relu", "gelu", "gelu_tanh", "silu"};

// Where the element of an array of `shape` lies that element `index` of y is made of.
int64_t source(const std::vector<int64_t>& shape, const std::vector<int64_t>& y_shape, int64_t index) {
  int64_t at = 0, step = 1;
  for (size_t d = 0; d < y_shape.size(); ++d) {  // from the last dimension on
    const int64_t size = y_shape[y_shape.size() - 1 - d], i = index % size;
    index /= size;
    if (d < shape.size()) {
      const int64_t mine = shape[shape.size() - 1 - d];
      at += mine == 1 ? 0 : i * step;
      step *= mine;
    }
  }
  return at;
}

// A row of y: each operand has one number for all of it, or one for each.
ONNXQ_CLONES void combine_row(const float* a, bool one_a, const float* b, bool one_b, bool times, float* __restrict y, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const float one = a[one_a ? 0 : i], two = b[one_b ? 0 : i];
    y[i] = times ? one * two : one + two;
  }
}

}  // namespace

Activation activation_of(const std::string& word) {
  int32_t found = 0;
  while (found < kActivations && word != kWords[found]) {
    ++found;
  }
  return static_cast<Activation>(found);
}

void finish(Activation activation, const float* other, bool times, float* y, int64_t size) {
  switch (activation) {
    case kRelu: relu_array(y, size); break;
    case kGelu: gelu_array(y, size); break;
    case kTanhGelu: tanh_gelu_array(y, size); break;
    case kSilu: silu_array(y, size); break;
    default: break;
  }
  if (other) {
    (times ? multiply_array : add_array)(other, y, size);
  }
}

std::vector<int64_t> sum_shape(const std::vector<int64_t>& a, const std::vector<int64_t>& b, bool& fits) {
  const std::vector<int64_t>&longer = a.size() < b.size() ? b : a, &shorter = a.size() < b.size() ? a : b;
  std::vector<int64_t> shape = longer;
  fits = true;
  for (size_t d = 0; d < shorter.size(); ++d) {
    int64_t& size = shape[shape.size() - 1 - d];
    const int64_t other = shorter[shorter.size() - 1 - d];
    fits = fits && (size == other || size == 1 || other == 1);
    size = size == 1 ? other : size;
  }
  return shape;
}

void combine(const std::vector<int64_t>& a_shape, const float* a, const std::vector<int64_t>& b_shape, const float* b,
             const std::vector<int64_t>& y_shape, bool times, float* y) {
  const int64_t row = y_shape.empty() ? 1 : y_shape.back();
  int64_t size = 1;
  for (const int64_t each : y_shape) {
    size *= each;
  }
  const auto is_one = [](const std::vector<int64_t>& shape) { return shape.empty() || shape.back() == 1; };
  for (int64_t i = 0; i < size; i += row) {
    combine_row(a + source(a_shape, y_shape, i), is_one(a_shape), b + source(b_shape, y_shape, i), is_one(b_shape), times, y + i, row);
  }
}

}  // namespace onnxq

// For tests: 0, or 1 where no activation has that name. `other` may be null.
ONNXQ_EXPORT int32_t onnxq_finish(const char* activation, const float* other, int32_t times, float* y, int64_t size) {
  const onnxq::Activation found = onnxq::activation_of(activation);
  if (found == onnxq::kActivations) {
    return 1;
  }
  onnxq::finish(found, other, times != 0, y, size);
  return 0;
}
