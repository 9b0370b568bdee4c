// What a MatMulNBits, a DenseMatMul and a GatherNBits node say about their weight: attributes and tensors, checked.

#ifndef ONNXQ_WEIGHT_H_
#define ONNXQ_WEIGHT_H_

#include "../base/format.h"
#include "op.h"

namespace onnxq {

struct WeightAttributes {
  std::string node;  // its name, for messages
  int64_t K, N, block;
  int32_t format;
  bool exact;

  // Throws Refusal where an attribute is missing or no number a weight can have.
  WeightAttributes(const ort::OrtApi* api, const ort::OrtKernelInfo* info);
  // Of a DenseMatMul, which has neither block nor format: `format` is that of its weight's type.
  static WeightAttributes dense(const ort::OrtApi* api, const ort::OrtKernelInfo* info, int32_t format);

  // "onnxq node 'name': " + `reason`.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  WeightAttributes(const ort::OrtApi* api, const ort::OrtKernelInfo* info, int64_t block, int32_t format);
};

// The weight's tensors. Those of the file are looked at once, when the session is made, and stay where they are (scales at
// odd addresses excepted: they are copied).
struct WeightTensors {
  const uint8_t* weight = nullptr;
  const void* scales = nullptr;
  int32_t scale_type = 0;
  const uint8_t* zero_points = nullptr;
  std::shared_ptr<const char[]> copied_scales;

  // Throws Refusal where a type or a shape is not what `attributes` ask for.
  WeightTensors(const WeightAttributes& attributes, const Tensor& weight, const Tensor& scales, const Tensor& zero_points);
  // Of a DenseMatMul: tiles of bfloat16 or float16, at any address.
  static WeightTensors dense(const WeightAttributes& attributes, const Tensor& weight);
  WeightTensors() = default;
};

// The inputs weight, scales and zero_points, the first of which is number `first`.
class WeightInputs {
 public:
  WeightInputs(const ort::OrtApi* api, const ort::OrtKernelInfo* info, const WeightAttributes& node, size_t first);

  // What is in the file, or else what this run gives.
  WeightTensors at(const ort::OrtKernelContext* context, const WeightAttributes& node) const;

 private:
  const ort::OrtApi* api_;
  size_t first_;
  WeightTensors constants_;  // where all of them are in the file
};

// Whether the node has input `index`, constant or not.
bool has_input(const ort::OrtApi* api, const ort::OrtKernelInfo* info, size_t index);

// Input `index` where it is a constant of the model; else a tensor of type kUndefined.
Tensor constant_input(const ort::OrtApi* api, const ort::OrtKernelInfo* info, size_t index);

std::string node_name(const ort::OrtApi* api, const ort::OrtKernelInfo* info);

// An optional attribute; `otherwise` where the node does not have it.
int64_t int_attribute(const ort::OrtApi* api, const ort::OrtKernelInfo* info, const char* name, int64_t otherwise);
std::string string_attribute(const ort::OrtApi* api, const ort::OrtKernelInfo* info, const char* name,
                             const std::string& otherwise);

// "[2, 3]", as it reads in messages.
std::string text(const std::vector<int64_t>& shape);

}  // namespace onnxq

#endif  // ONNXQ_WEIGHT_H_
