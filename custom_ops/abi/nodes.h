// What nodes of the domain take, refuse and give, whichever provider computes them: the operators of the processor and of
// CUDA differ only in how.

#ifndef ONNXQ_ABI_NODES_H_
#define ONNXQ_ABI_NODES_H_

#include "infer.h"
#include "weight.h"

namespace onnxq {

// --- MatMulNBits and DenseMatMul: y[…, N] = x[…, K] · w[N, K]ᵀ + bias[N] -----------------------------------------------

// Throws Refusal where x does not fit `node`.
void check_product(const WeightAttributes& node, const Tensor& x);

// The shape of y. Throws as check_product().
std::vector<int64_t> product_shape(const WeightAttributes& node, const Tensor& x);

// Throws Refusal where there is a bias and it does not fit.
void check_bias(const WeightAttributes& node, const Tensor& bias);

// The shape of y, before there is an x.
void infer_product(const ort::OrtApi* api, const ort::OrtShapeInferContext* context);

enum MatMulNBitsInput : size_t { kProductX, kProductWeight, kProductScales, kProductZeroPoints, kProductBias };

// In the type of x, by a class K, which names its provider.
template <class K, ort::ElementType x>
struct MatMulNBits {
  using Kernel = K;
  static constexpr const char* name = "MatMulNBits";
  static constexpr const char* provider = K::provider;
  static constexpr std::array<Parameter, 5> inputs = {
      {{x}, {ort::kUint8}, {ort::kUndefined}, {ort::kUint8, ort::kOptional}, {x, ort::kOptional}}};
  static constexpr std::array<Parameter, 1> outputs = {{{x}}};
  static constexpr auto infer = infer_product;
};

// --- GatherNBits: y[…, K] = w[indices[…], :] --------------------------------------------------------------------------

// The attribute dtype. Throws Refusal where it is no type that a table is decoded to.
ort::ElementType gathered_type(const ort::OrtApi* api, const ort::OrtKernelInfo* info, const WeightAttributes& node);

// The shape of y. Throws Refusal where `indices` are none.
std::vector<int64_t> gathered_shape(const WeightAttributes& node, const Tensor& indices);

// Throws Refusal where y, as the model declares it, is not of the type that dtype names.
void check_gathered(const WeightAttributes& node, ort::ElementType dtype, const Tensor& y);

void infer_gathered(const ort::OrtApi* api, const ort::OrtShapeInferContext* context);

enum GatherNBitsInput : size_t { kGatherWeight, kGatherScales, kGatherZeroPoints, kGatherIndices };

template <class K, ort::ElementType y>
struct GatherNBits {
  using Kernel = K;
  static constexpr const char* name = "GatherNBits";
  static constexpr const char* provider = K::provider;
  static constexpr std::array<Parameter, 4> inputs = {
      {{ort::kUint8}, {ort::kUndefined}, {ort::kUint8, ort::kOptional}, {ort::kUndefined}}};
  static constexpr std::array<Parameter, 1> outputs = {{{y}}};
  static constexpr auto infer = infer_gathered;
};

}  // namespace onnxq

#endif  // ONNXQ_ABI_NODES_H_
