// onnxq::MatMulNBits: y[…, N] = x[…, K] · w[N, K]ᵀ + bias[N], in the type of x.

#include "../infer.h"
#include "../ops.h"
#include "../weight.h"
#include "isa.h"
#include "run.h"

namespace onnxq {
namespace {

using namespace ort;

enum Input : size_t { kX, kWeight, kScales, kZeroPoints, kBias };

class MatMul {
 public:
  MatMul(const OrtApi* api, const OrtKernelInfo* info) : api_(api), node_(api, info) {
    if (const char* isa = forced_isa()) {
      isa_ = isa;
      const std::string reason = why_not(isa);
      if (!reason.empty()) {
        node_.refuse("ONNXQ_FORCE_ISA = " + reason);
      }
    }
    const Tensor weight = constant_input(api, info, kWeight), scales = constant_input(api, info, kScales);
    const Tensor zero_points = constant_input(api, info, kZeroPoints);
    if (weight.type != kUndefined && scales.type != kUndefined &&
        (zero_points.type != kUndefined || !has_input(api, info, kZeroPoints))) {
      constants_ = {node_, weight, scales, zero_points};
    }
  }

  void compute(OrtKernelContext* context) {
    const Place place(api_, context);
    const Tensor x = input(api_, context, kX), bias = input(api_, context, kBias);
    if (x.shape.empty() || x.shape.back() != node_.K) {
      node_.refuse("x has shape " + text(x.shape) + ", whose last dimension must be K = " + std::to_string(node_.K));
    }
    if (bias.type != kUndefined && bias.shape != std::vector<int64_t>{node_.N}) {
      node_.refuse("bias has shape " + text(bias.shape) + ", but must be [" + std::to_string(node_.N) + "]");
    }
    const WeightTensors weight = constants_.weight ? constants_ : read_weight(context);
    std::vector<int64_t> shape = x.shape;
    shape.back() = node_.N;
    const Tensor y = output(api_, context, 0, shape);
    if (x.size() > 0) {
      multiply(place, weight, x, bias, y);
    }
  }

 private:
  WeightTensors read_weight(OrtKernelContext* context) const {
    return {node_, input(api_, context, kWeight), input(api_, context, kScales), input(api_, context, kZeroPoints)};
  }

  void multiply(const Place& place, const WeightTensors& w, const Tensor& x, const Tensor& bias, const Tensor& y) const {
    Problem p{};
    p.M = x.size() / node_.K;
    p.N = node_.N;
    p.K = node_.K;
    p.block = node_.block;
    p.weight = w.weight;
    p.scales = w.scales;
    p.zero_points = w.zero_points;
    p.format = node_.format;
    p.scale_type = w.scale_type;
    p.exact = node_.exact;
    const Kernel& kernel = *kernel_for(isa_.c_str(), p);
    const int64_t workspace = kernel.workspace(p);
    const bool converts = x.type != kFloat;
    const int64_t x_bytes = 4 * p.M * p.K, y_bytes = 4 * p.M * p.N, bias_bytes = 4 * bias.size();
    int64_t bytes = round_up_to_line(workspace);
    if (converts) {
      bytes += round_up_to_line(x_bytes) + round_up_to_line(y_bytes) + round_up_to_line(bias_bytes);
    }
    Scratch scratch(place, bytes);
    void* const shared = scratch.take(workspace);
    if (converts) {
      float* const from = static_cast<float*>(scratch.take(x_bytes));
      to_float(place, x.type, x.data, from, p.M * p.K);
      p.x = from;
      p.y = static_cast<float*>(scratch.take(y_bytes));
    } else {
      p.x = static_cast<const float*>(x.data);
      p.y = static_cast<float*>(y.data);
    }
    if (bias.type != kUndefined) {
      p.bias = static_cast<const float*>(bias.data);
      if (converts) {
        float* const from = static_cast<float*>(scratch.take(bias_bytes));
        to_float(place, x.type, bias.data, from, p.N);
        p.bias = from;
      }
    }
    run(place, kernel, p, shared);
    if (converts) {
      from_float(place, x.type, p.y, y.data, p.M * p.N);
    }
  }

  const OrtApi* api_;
  WeightAttributes node_;
  WeightTensors constants_;  // where all of the weight is in the file
  std::string isa_;          // forced, or empty
};

void infer(const OrtApi* api, const OrtShapeInferContext* context) {
  Shape shape = inferred_input(api, context, kX);
  const int64_t N = inferred_attribute(api, context, "N", 0);
  if (!shape.dims.empty() && N > 0) {
    shape.dims.back() = N;
    shape.names.back().clear();
    infer_output(api, context, 0, shape);
  }
}

template <ElementType x>
struct MatMulNBits {
  using Kernel = MatMul;
  static constexpr const char* name = "MatMulNBits";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 5> inputs = {
      {{x}, {kUint8}, {kUndefined}, {kUint8, kOptional}, {x, kOptional}}};
  static constexpr std::array<Parameter, 1> outputs = {{{x}}};
  static constexpr auto infer = onnxq::infer;
};

constexpr OrtCustomOp kOps[] = {make_op<MatMulNBits<kFloat>>(), make_op<MatMulNBits<kFloat16>>(),
                                make_op<MatMulNBits<kBFloat16>>()};

}  // namespace

constexpr Ops kMatMulNBits = {kOps, 3};

}  // namespace onnxq
