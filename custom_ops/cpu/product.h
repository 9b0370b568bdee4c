// What products by packed weights of any kind share: x, bias and y as onnxruntime gives them, and the kernel between.

#ifndef ONNXQ_CPU_PRODUCT_H_
#define ONNXQ_CPU_PRODUCT_H_

#include <string>
#include <vector>

#include "../abi/weight.h"
#include "run.h"

namespace onnxq {

// Of a node whose input 0 is x, and whose input `bias` is a bias or is not there.
class Product {
 public:
  // Throws Refusal where the kernel that ONNXQ_FORCE_ISA names does not run here.
  Product(const ort::OrtApi* api, const ort::OrtKernelInfo* info, const WeightAttributes& node, size_t bias);

  // y = x · wᵀ + bias.
  void compute(ort::OrtKernelContext* context, const WeightTensors& weight) const;

 private:
  // M rows of x, whatever its shape says.
  void multiply(const Place& place, const WeightTensors& weight, const Tensor& x, int64_t M, const std::vector<float>& bias,
                void* y) const;

  const ort::OrtApi* api_;
  WeightAttributes node_;
  size_t bias_input_;
  bool asks_for_bias_;       // in every run
  std::vector<float> bias_;  // where it is in the file
  std::string isa_;          // forced, or empty
};

}  // namespace onnxq

#endif  // ONNXQ_CPU_PRODUCT_H_
