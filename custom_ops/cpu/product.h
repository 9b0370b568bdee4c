// What products by packed weights of any kind share: x, bias and y as onnxruntime gives them, and the kernel between.

#ifndef ONNXQ_CPU_PRODUCT_H_
#define ONNXQ_CPU_PRODUCT_H_

#include <string>
#include <vector>

#include "../abi/weight.h"
#include "epilogue.h"
#include "run.h"

namespace onnxq {

// Which inputs a node has beside x, number 0, and its weight; and what becomes of its sums.
struct ProductParts {
  size_t bias;          // may be not there
  size_t other = 0;  // what is added to y or multiplies it; 0: this operator has none; else it may be not there
  bool times = false;
  Activation activation = kNoActivation;
};

class Product {
 public:
  // Throws Refusal where the kernel that ONNXQ_FORCE_ISA names does not run here.
  Product(const ort::OrtApi* api, const ort::OrtKernelInfo* info, const WeightAttributes& node, const ProductParts& parts);

  // y = activation(x · wᵀ + bias) + other, or times other.
  void compute(ort::OrtKernelContext* context, const WeightTensors& weight) const;

 private:
  // M rows of x, whatever its shape says. `other`: of type kUndefined, or of as many numbers as y.
  void multiply(const Place& place, const WeightTensors& weight, const Tensor& x, int64_t M, const std::vector<float>& bias,
                const Tensor& other, void* y) const;

  // With an `other` whose shape is not that of the product.
  void multiply_and_broadcast(ort::OrtKernelContext* context, const WeightTensors& weight, const Tensor& x, int64_t M,
                              const std::vector<float>& bias, const Tensor& other) const;

  const ort::OrtApi* api_;
  WeightAttributes node_;
  ProductParts parts_;
  bool asks_for_bias_;       // in every run
  bool has_other_;
  std::vector<float> bias_;  // where it is in the file
  std::string isa_;          // forced, or empty
};

}  // namespace onnxq

#endif  // ONNXQ_CPU_PRODUCT_H_
