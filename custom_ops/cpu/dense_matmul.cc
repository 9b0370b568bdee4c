// onnxq::DenseMatMul: y[…, N] = activation(x[…, K] · w[N, K]ᵀ + bias[N]) + other, or times other, in the type of x, w in
// bfloat16 or float16.

#include "../abi/nodes.h"
#include "../abi/ops.h"
#include "product.h"

namespace onnxq {
namespace {

using namespace ort;

enum Input : size_t { kWeight = 1, kBias = 2, kOther = 3 };

ProductParts parts_of(const OrtApi* api, const OrtKernelInfo* info, const WeightAttributes& node) {
  const std::string word = string_attribute(api, info, "activation", "none");
  const Activation activation = activation_of(word);
  if (activation == kActivations) {
    node.refuse("attribute activation is '" + word + "', but must be one of none, relu, gelu, gelu_tanh, silu");
  }
  const std::string combine = string_attribute(api, info, "combine", "plus");
  if (combine != "plus" && combine != "times") {
    node.refuse("attribute combine is '" + combine + "', but must be plus or times");
  }
  return {kBias, kOther, combine == "times", activation};
}

template <ElementType w>
class MatMul {
 public:
  MatMul(const OrtApi* api, const OrtKernelInfo* info)
      : api_(api),
        node_(WeightAttributes::dense(api, info, w == kFloat16 ? kDenseFloat16 : kDenseBfloat16)),
        product_(api, info, node_, parts_of(api, info, node_)) {
    const Tensor weight = constant_input(api, info, kWeight);
    if (weight.type != kUndefined) {
      constant_ = WeightTensors::dense(node_, weight);
    }
  }

  void compute(OrtKernelContext* context) {
    product_.compute(context,
                     constant_.weight ? constant_ : WeightTensors::dense(node_, input(api_, context, kWeight)));
  }

 private:
  const OrtApi* api_;
  WeightAttributes node_;
  WeightTensors constant_;  // where it is in the file
  Product product_;
};

template <ElementType x, ElementType w>
struct DenseMatMul {
  using Kernel = MatMul<w>;
  static constexpr const char* name = "DenseMatMul";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 4> inputs = {{{x}, {w}, {x, kOptional}, {x, kOptional}}};
  static constexpr std::array<Parameter, 1> outputs = {{{x}}};

  // With an `other` of the same shape, or of a name that is the same.
  static void infer(const OrtApi* api, const OrtShapeInferContext* context) {
    const Shape more = inferred_input(api, context, kOther), from = inferred_input(api, context, kProductX);
    const int64_t N = inferred_attribute(api, context, "N", 0);
    bool same = more.dims.size() == from.dims.size() && !more.dims.empty() && more.dims.back() == N;
    for (size_t d = 0; same && d + 1 < from.dims.size(); ++d) {
      same = more.dims[d] == from.dims[d] && more.names[d] == from.names[d] && (from.dims[d] >= 0 || !from.names[d].empty());
    }
    if (more.type == kUndefined || same) {
      infer_product(api, context);
    }
  }
};

constexpr OrtCustomOp kOps[] = {
    make_op<DenseMatMul<kFloat, kBFloat16>>(),    make_op<DenseMatMul<kFloat16, kBFloat16>>(),
    make_op<DenseMatMul<kBFloat16, kBFloat16>>(), make_op<DenseMatMul<kFloat, kFloat16>>(),
    make_op<DenseMatMul<kFloat16, kFloat16>>(),   make_op<DenseMatMul<kBFloat16, kFloat16>>()};

}  // namespace

constexpr Ops kDenseMatMul = {kOps, sizeof kOps / sizeof *kOps};

}  // namespace onnxq
