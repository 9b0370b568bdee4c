// onnxq::MatMulNBits: y[…, N] = x[…, K] · w[N, K]ᵀ + bias[N], in the type of x.

#include "../abi/nodes.h"
#include "../abi/ops.h"
#include "product.h"

namespace onnxq {
namespace {

using namespace ort;

class MatMul {
 public:
  static constexpr const char* provider = "CPUExecutionProvider";

  MatMul(const OrtApi* api, const OrtKernelInfo* info)
      : node_(api, info), weight_(api, info, node_, kProductWeight), product_(api, info, node_, {kProductBias}) {}

  void compute(OrtKernelContext* context) { product_.compute(context, weight_.at(context, node_)); }

 private:
  WeightAttributes node_;
  WeightInputs weight_;
  Product product_;
};

constexpr OrtCustomOp kOps[] = {make_op<MatMulNBits<MatMul, kFloat>>(), make_op<MatMulNBits<MatMul, kFloat16>>(),
                                make_op<MatMulNBits<MatMul, kBFloat16>>()};

}  // namespace

constexpr Ops kMatMulNBits = {kOps, 3};

}  // namespace onnxq
