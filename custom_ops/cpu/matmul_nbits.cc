// onnxq::MatMulNBits: y[…, N] = x[…, K] · w[N, K]ᵀ + bias[N], in the type of x.

#include "../ops.h"
#include "product.h"

namespace onnxq {
namespace {

using namespace ort;

enum Input : size_t { kWeight = 1, kBias = 4 };

class MatMul {
 public:
  MatMul(const OrtApi* api, const OrtKernelInfo* info)
      : node_(api, info), weight_(api, info, node_, kWeight), product_(api, info, node_, kBias) {}

  void compute(OrtKernelContext* context) { product_.compute(context, weight_.at(context, node_)); }

 private:
  WeightAttributes node_;
  WeightInputs weight_;
  Product product_;
};

template <ElementType x>
struct MatMulNBits {
  using Kernel = MatMul;
  static constexpr const char* name = "MatMulNBits";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 5> inputs = {
      {{x}, {kUint8}, {kUndefined}, {kUint8, kOptional}, {x, kOptional}}};
  static constexpr std::array<Parameter, 1> outputs = {{{x}}};
  static constexpr auto infer = infer_product;
};

constexpr OrtCustomOp kOps[] = {make_op<MatMulNBits<kFloat>>(), make_op<MatMulNBits<kFloat16>>(),
                                make_op<MatMulNBits<kBFloat16>>()};

}  // namespace

constexpr Ops kMatMulNBits = {kOps, 3};

}  // namespace onnxq
