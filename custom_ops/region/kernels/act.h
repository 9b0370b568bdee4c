// Activations of float32, in loops that compilers make vectors of. Good to 2^-20, which is far below bfloat16's 2^-9.

#ifndef ONNXQ_REGION_ACT_H_
#define ONNXQ_REGION_ACT_H_

#include "../../base/format.h"
#include "../bf16_kernel.h"

namespace onnxq {
namespace {

// NaN stays NaN.
inline float bounded(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// 2^k · e^r, |r| ≤ ln 2 / 2; the polynomial is Taylor's, whose next term is r^7 / 5040 < 2^-22.
inline float exp_of(float x) {
  const float y = bounded(x, -87.0f, 88.0f);
  const float k = (y * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (y - k * 0.693359375f) + k * 2.12194440e-4f;
  const float p =
      1.0f + r * (1.0f + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
  return p * bits_to_float((static_cast<uint32_t>(static_cast<int32_t>(k == k ? k : 0.0f)) + 127) << 23);
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// Near 0, where the quotient loses what it subtracts, by its series.
inline float tanh_of(float x) {
  const float e = exp_of(2.0f * bounded(x, -20.0f, 20.0f)), square = x * x;
  const float small = x * (1.0f - square * (1.0f / 3 - square * (2.0f / 15)));
  return square < 0.01f ? small : (e - 1.0f) / (e + 1.0f);
}

inline void activate(const Act& act, float* x, int64_t size) {
  const float a = act.a, b = act.b;
  switch (act.kind) {
    case kRelu:
      for (int64_t i = 0; i < size; ++i) {
        x[i] = x[i] < 0.0f ? 0.0f : x[i];
      }
      break;
    case kClip:  // where the bounds cross, the upper one is the result
      for (int64_t i = 0; i < size; ++i) {
        const float raised = x[i] < a ? a : x[i];
        x[i] = raised > b ? b : raised;
      }
      break;
    case kLeakyRelu:
      for (int64_t i = 0; i < size; ++i) {
        x[i] = x[i] < 0.0f ? a * x[i] : x[i];
      }
      break;
    case kHardSigmoid:
      for (int64_t i = 0; i < size; ++i) {
        x[i] = bounded(a * x[i] + b, 0.0f, 1.0f);
      }
      break;
    case kSigmoid:
      for (int64_t i = 0; i < size; ++i) {
        x[i] = sigmoid_of(x[i]);
      }
      break;
    case kTanh:
      for (int64_t i = 0; i < size; ++i) {
        x[i] = tanh_of(x[i]);
      }
      break;
    case kSilu:
      for (int64_t i = 0; i < size; ++i) {
        x[i] = x[i] * sigmoid_of(a * x[i]);
      }
      break;
    case kHardSwish:
      for (int64_t i = 0; i < size; ++i) {
        x[i] = x[i] * bounded(x[i] * (1.0f / 6) + 0.5f, 0.0f, 1.0f);
      }
      break;
    default:
      break;
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_ACT_H_
