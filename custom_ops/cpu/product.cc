#include "product.h"

#include <cstring>

#include "../abi/nodes.h"
#include "../base/convert.h"
#include "isa.h"
#include "tuning.h"

namespace onnxq {

using namespace ort;

namespace {

// A bias of any float type and alignment.
std::vector<float> as_float(const Tensor& bias) {
  const size_t size = static_cast<size_t>(bias.size());
  std::vector<float> numbers(size);
  if (bias.type == kFloat) {
    std::memcpy(numbers.data(), bias.data, size * sizeof(float));
    return numbers;
  }
  std::vector<uint16_t> bits(size);
  std::memcpy(bits.data(), bias.data, size * sizeof(uint16_t));
  const auto convert = bias.type == kFloat16 ? from_half : from_bfloat16;
  convert(bits.data(), numbers.data(), bias.size());
  return numbers;
}

}  // namespace

Product::Product(const OrtApi* api, const OrtKernelInfo* info, const WeightAttributes& node, size_t bias)
    : api_(api), node_(node), bias_input_(bias), asks_for_bias_(has_input(api, info, bias)) {
  if (const char* isa = forced_isa()) {
    isa_ = isa;
    const std::string reason = why_not(isa);
    if (!reason.empty()) {
      node_.refuse("ONNXQ_FORCE_ISA = " + reason);
    }
  }
  const Tensor constant = constant_input(api, info, bias);
  if (constant.type != kUndefined) {
    check_bias(node_, constant);
    bias_ = as_float(constant);
    asks_for_bias_ = false;
  }
}

void Product::compute(OrtKernelContext* context, const WeightTensors& weight) const {
  const Place place(api_, context);
  Tensor x = given_input(api_, context, kProductX);
  check_product(node_, x);
  const int64_t M = x.size() / node_.K;
  x.shape.back() = node_.N;  // y's now: small products notice every allocation
  void* const y = output_data(api_, context, 0, x.shape);
  if (!asks_for_bias_) {
    return M > 0 ? multiply(place, weight, x, M, bias_, y) : void();
  }
  const Tensor bias = input(api_, context, bias_input_);
  check_bias(node_, bias);
  if (M > 0) {
    multiply(place, weight, x, M, bias.type == kUndefined ? bias_ : as_float(bias), y);
  }
}

void Product::multiply(const Place& place, const WeightTensors& w, const Tensor& x, int64_t M,
                       const std::vector<float>& bias, void* y) const {
  Problem p = problem(node_, w);
  p.M = M;
  const Kernel& kernel = *kernel_for(isa_.c_str(), p);
  p.tile_rows = tile_rows(kernel, p);
  const int64_t workspace = kernel.workspace(p);
  p.bias = bias.empty() ? nullptr : bias.data();
  const bool converts = x.type != kFloat;
  const int64_t x_bytes = 4 * p.M * p.K, y_bytes = 4 * p.M * p.N;
  Scratch scratch(place, round_up_to_line(workspace) +
                             (converts ? round_up_to_line(x_bytes) + round_up_to_line(y_bytes) : 0));
  void* const shared = scratch.take(workspace);
  if (converts) {
    float* const from = static_cast<float*>(scratch.take(x_bytes));
    to_float(place, x.type, x.data, from, p.M * p.K);
    p.x = from;
    p.y = static_cast<float*>(scratch.take(y_bytes));
  } else {
    p.x = static_cast<const float*>(x.data);
    p.y = static_cast<float*>(y);
  }
  run(place, kernel, p, shared);
  if (converts) {
    from_float(place, x.type, p.y, y, p.M * p.N);
  }
}

}  // namespace onnxq
