// onnxq::DenseMatMul: y[…, N] = x[…, K] · w[N, K]ᵀ + bias[N], in the type of x, w in bfloat16.

#include "../abi/nodes.h"
#include "../abi/ops.h"
#include "product.h"

namespace onnxq {
namespace {

using namespace ort;

enum Input : size_t { kWeight = 1, kBias = 2 };

class MatMul {
 public:
  MatMul(const OrtApi* api, const OrtKernelInfo* info)
      : api_(api), node_(WeightAttributes::dense(api, info)), product_(api, info, node_, kBias) {
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

template <ElementType x>
struct DenseMatMul {
  using Kernel = MatMul;
  static constexpr const char* name = "DenseMatMul";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 3> inputs = {{{x}, {kBFloat16}, {x, kOptional}}};
  static constexpr std::array<Parameter, 1> outputs = {{{x}}};
  static constexpr auto infer = infer_product;
};

constexpr OrtCustomOp kOps[] = {make_op<DenseMatMul<kFloat>>(), make_op<DenseMatMul<kFloat16>>(),
                                make_op<DenseMatMul<kBFloat16>>()};

}  // namespace

constexpr Ops kDenseMatMul = {kOps, 3};

}  // namespace onnxq
