// What a dense product does to its sums before anybody else sees them: y = activation(x · wᵀ + bias) + other, or times
// other.

#ifndef ONNXQ_CPU_EPILOGUE_H_
#define ONNXQ_CPU_EPILOGUE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace onnxq {

enum Activation : int32_t { kNoActivation, kRelu, kGelu, kTanhGelu, kSilu, kActivations };

// By the word that the attribute `activation` has for it ("none", "relu", …); kActivations where there is none.
Activation activation_of(const std::string& word);

// y[size] = activation(y), and then the sum of it and `other`, or the product where `times`. Null: neither. Within 2^-20
// of |y|; of infinities and NaN what float32 arithmetic gives, or NaN.
void finish(Activation activation, const float* other, bool times, float* y, int64_t size);

// The shape of a sum of arrays of shapes `a` and `b`, as Add and Mul broadcast them; `fits`: whether they do.
std::vector<int64_t> sum_shape(const std::vector<int64_t>& a, const std::vector<int64_t>& b, bool& fits);

// y = a + b, or a · b where `times`, of shape sum_shape(a, b).
void combine(const std::vector<int64_t>& a_shape, const float* a, const std::vector<int64_t>& b_shape, const float* b,
             const std::vector<int64_t>& y_shape, bool times, float* y);

}  // namespace onnxq

#endif  // ONNXQ_CPU_EPILOGUE_H_
