#include "product.h"

#include <algorithm>
#include <cstring>

#include "../abi/nodes.h"
#include "../base/convert.h"
#include "isa.h"
#include "tuning.h"

namespace onnxq {

using namespace ort;

namespace {

// An array of any float type and alignment.
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

// Whether `other` has a number for each column of y.
bool is_row(const Tensor& other, const Tensor& y) {
  return !other.shape.empty() && other.shape.size() <= y.shape.size() && other.shape.back() == y.shape.back() &&
         other.size() == y.shape.back();
}

}  // namespace

Product::Product(const OrtApi* api, const OrtKernelInfo* info, const WeightAttributes& node, const ProductParts& parts)
    : api_(api),
      node_(node),
      parts_(parts),
      asks_for_bias_(has_input(api, info, parts.bias)),
      has_other_(parts.other && has_input(api, info, parts.other)) {
  if (const char* isa = forced_isa()) {
    isa_ = isa;
    const std::string reason = why_not(isa);
    if (!reason.empty()) {
      node_.refuse("ONNXQ_FORCE_ISA = " + reason);
    }
  }
  const Tensor constant = constant_input(api, info, parts.bias);
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
  if (!asks_for_bias_ && !has_other_) {
    void* const y = output_data(api_, context, 0, x.shape);
    return M > 0 ? multiply(place, weight, x, M, bias_, Tensor(), y) : void();
  }
  const Tensor bias = asks_for_bias_ ? input(api_, context, parts_.bias) : Tensor();
  check_bias(node_, bias);
  const std::vector<float> given = bias.type == kUndefined ? std::vector<float>() : as_float(bias);
  const std::vector<float>& numbers = bias.type == kUndefined ? bias_ : given;
  const Tensor other = has_other_ ? given_input(api_, context, parts_.other) : Tensor();
  if (has_other_ && ((other.shape != x.shape && !is_row(other, x)) || !is_aligned(other))) {
    return multiply_and_broadcast(context, weight, x, M, numbers, other);
  }
  void* const y = output_data(api_, context, 0, x.shape);
  if (M > 0) {
    multiply(place, weight, x, M, numbers, other, y);
  }
}

void Product::multiply_and_broadcast(OrtKernelContext* context, const WeightTensors& weight, const Tensor& x, int64_t M,
                                     const std::vector<float>& bias, const Tensor& other) const {
  const Place place(api_, context);
  bool fits = false;
  const std::vector<int64_t> shape = sum_shape(x.shape, other.shape, fits);
  if (!fits) {
    node_.refuse("other has shape " + text(other.shape) + ", which does not go with " + text(x.shape));
  }
  void* const y = output_data(api_, context, 0, shape);
  const Tensor sum{x.type, shape, y};
  if (sum.size() == 0) {
    return;
  }
  Tensor product{x.type, x.shape, nullptr};
  std::vector<char> memory(static_cast<size_t>(product.size()) * element_bytes(x.type));
  product.data = memory.data();
  multiply(place, weight, x, M, bias, Tensor(), product.data);
  const std::vector<float> a = as_float(product), b = as_float(other);
  if (x.type == kFloat) {
    return combine(product.shape, a.data(), other.shape, b.data(), shape, parts_.times, static_cast<float*>(y));
  }
  std::vector<float> made(static_cast<size_t>(sum.size()));
  combine(product.shape, a.data(), other.shape, b.data(), shape, parts_.times, made.data());
  from_float(place, x.type, made.data(), y, sum.size());
}

void Product::multiply(const Place& place, const WeightTensors& w, const Tensor& x, int64_t M,
                       const std::vector<float>& bias, const Tensor& other, void* y) const {
  Problem p = problem(node_, w);
  p.M = M;
  const Kernel& kernel = *kernel_for(isa_.c_str(), p);
  p.tile_rows = tile_rows(kernel, p);
  const int64_t workspace = kernel.workspace(p);
  p.bias = bias.empty() ? nullptr : bias.data();
  const bool converts = x.type != kFloat;
  const int64_t x_bytes = 4 * p.M * p.K, y_bytes = 4 * p.M * p.N;
  Scratch scratch(place, round_up_to_line(workspace) +
                             (converts ? round_up_to_line(x_bytes) + 2 * round_up_to_line(y_bytes) : 0));
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
  const float* more = static_cast<const float*>(other.data);
  if (more && converts) {
    float* const made = static_cast<float*>(scratch.take(y_bytes));
    to_float(place, x.type, other.data, made, other.size());
    more = made;
  }
  const bool is_sum = parts_.activation == kNoActivation && !more;
  const int64_t others = more ? other.size() : 0;  // of all rows, or of one
  const auto finished = [&](int64_t first, int64_t count) {
    for (int64_t at = first, next; at < first + count; at = next) {
      next = others ? std::min(first + count, at - at % others + others) : first + count;
      finish(parts_.activation, more ? more + at % others : nullptr, parts_.times, p.y + at, next - at);
    }
  };
  if (is_sum) {
    run(place, kernel, p, shared);
  } else if (kernel.rows && kernel.rows(p, 0, 1).count == p.M) {  // each task finishes what it made, which is in its caches
    const int64_t tasks = kernel.tasks(p, 0);
    place.parallel(tasks, [&](int64_t task) {
      kernel.run(p, 0, task, tasks, shared);
      const RowRange rows = kernel.rows(p, task, tasks);
      finished(rows.first * p.N, rows.count * p.N);
    });
  } else {
    run(place, kernel, p, shared);
    in_chunks(place, p.M * p.N, finished);
  }
  if (converts) {
    from_float(place, x.type, p.y, y, p.M * p.N);
  }
}

}  // namespace onnxq
