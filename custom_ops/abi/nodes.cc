#include "nodes.h"

namespace onnxq {

using namespace ort;

namespace {

// Types of x and y.
bool is_float(int64_t type) { return type == kFloat || type == kFloat16 || type == kBFloat16; }

void check_aligned(const WeightAttributes& node, const char* name, const Tensor& tensor) {
  if (!is_aligned(tensor)) {
    node.refuse(std::string(name) + " begins at an address that is no multiple of the size of its elements");
  }
}

}  // namespace

void check_product(const WeightAttributes& node, const Tensor& x) {
  check_aligned(node, "x", x);
  if (x.shape.empty() || x.shape.back() != node.K) {
    node.refuse("x has shape " + text(x.shape) + ", whose last dimension must be K = " + std::to_string(node.K));
  }
}

std::vector<int64_t> product_shape(const WeightAttributes& node, const Tensor& x) {
  check_product(node, x);
  std::vector<int64_t> shape = x.shape;
  shape.back() = node.N;
  return shape;
}

void check_bias(const WeightAttributes& node, const Tensor& bias) {
  if (bias.type != kUndefined && bias.shape != std::vector<int64_t>{node.N}) {
    node.refuse("bias has shape " + text(bias.shape) + ", but must be [" + std::to_string(node.N) + "]");
  }
}

void infer_product(const OrtApi* api, const OrtShapeInferContext* context) {
  Shape shape = inferred_input(api, context, kProductX);
  const int64_t N = inferred_attribute(api, context, "N", 0);
  if (!shape.dims.empty() && N > 0) {
    shape.dims.back() = N;
    shape.names.back().clear();
    infer_output(api, context, 0, shape);
  }
}

ElementType gathered_type(const OrtApi* api, const OrtKernelInfo* info, const WeightAttributes& node) {
  const int64_t dtype = int_attribute(api, info, "dtype", kFloat);
  if (!is_float(dtype)) {
    node.refuse("attribute dtype must be 1 (float32), 10 (float16) or 16 (bfloat16)");
  }
  return static_cast<ElementType>(dtype);
}

std::vector<int64_t> gathered_shape(const WeightAttributes& node, const Tensor& indices) {
  if (indices.type != kInt32 && indices.type != kInt64) {
    node.refuse("indices must be int32 or int64");
  }
  check_aligned(node, "the tensor of indices", indices);
  std::vector<int64_t> shape = indices.shape;
  shape.push_back(node.K);
  return shape;
}

void check_gathered(const WeightAttributes& node, ElementType dtype, const Tensor& y) {
  if (y.type != dtype) {
    node.refuse("the output's type is not the one that attribute dtype names");
  }
}

void infer_gathered(const OrtApi* api, const OrtShapeInferContext* context) {
  Shape shape = inferred_input(api, context, kGatherIndices);
  const int64_t K = inferred_attribute(api, context, "K", 0);
  const int64_t dtype = inferred_attribute(api, context, "dtype", kFloat);
  if (!shape.dims.empty() && K > 0 && is_float(dtype)) {  // no dimensions: a number, or unknown
    shape.type = static_cast<ElementType>(dtype);
    shape.push_back(K);
    infer_output(api, context, 0, shape);
  }
}

}  // namespace onnxq
