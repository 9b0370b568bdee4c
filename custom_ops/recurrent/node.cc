// onnxq::Recurrent: LSTM, GRU and RNN as ONNX defines them, with layout 0 and the activation functions that are the default,
// their weights in int8 with one scale a row of a gate, in tiles (kernel.h).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "../abi/infer.h"
#include "../abi/ops.h"
#include "../abi/weight.h"
#include "../cpu/isa.h"
#include "../cpu/run.h"
#include "layer.h"

namespace onnxq {
namespace {

using namespace ort;

enum Input : size_t { kX, kWeight, kWeightScales, kRecurrence, kRecurrenceScales, kBias, kLengths, kH, kC, kInputs };
enum Output : size_t { kY, kLastH, kLastC };
constexpr const char* kNames[] = {"x",    "weight",        "weight_scales", "recurrence", "recurrence_scales",
                                  "bias", "sequence_lens", "initial_h",     "initial_c"};
constexpr size_t kConstants[] = {kWeight, kWeightScales, kRecurrence, kRecurrenceScales};
constexpr int64_t kMostNumbers = int64_t{1} << 40;

class Layer {
 public:
  Layer(const OrtApi* api, const OrtKernelInfo* info) : api_(api), name_(node_name(api, info)) {
    if (const char* const isa = forced_isa()) {
      if (const std::string reason = why_not(isa); !reason.empty()) {
        refuse("ONNXQ_FORCE_ISA = " + reason);
      }
    }
    kernel_ = recurrent_kernel_for(forced_isa());
    read_attributes(api, info);
    for (size_t i = 0; i < kInputs; ++i) {
      given_[i] = has_input(api, info, i);
    }
    for (const size_t i : kConstants) {
      constants_[i] = constant_input(api, info, i);
      if (constants_[i].type != kUndefined) {
        check_weight(i, constants_[i]);
        at_rest(constants_[i]);
      }
    }
    if (const Tensor bias = constant_input(api, info, kBias); bias.type != kUndefined) {
      bias_ = in_tiles(bias);
    } else if (!given_[kBias]) {
      bias_.assign(static_cast<size_t>(directions_ * tiles(H_) * sums_of(cell_) * kTile), 0.0f);
    }
  }

  void compute(OrtKernelContext* context) const {
    const Place place(api_, context);
    std::array<Tensor, kInputs> in;
    for (size_t i = 0; i < kInputs; ++i) {
      in[i] = constants_[i].type != kUndefined ? constants_[i] : given_[i] ? given_input(api_, context, i) : Tensor{};
      if (i != kBias && !is_aligned(in[i])) {  // of the bias a copy is made
        refuse(std::string(kNames[i]) + " begins at an address that is no multiple of the size of its elements");
      }
    }
    Recurrent p = problem(in);
    std::vector<float> bias;
    if (bias_.empty()) {
      bias = in_tiles(in[kBias]);
    }
    p.bias = bias_.empty() ? bias.data() : bias_.data();
    const std::vector<int64_t> states = {directions_, p.B, H_};
    p.y = floats(context, kY, {p.T, directions_, p.B, H_});
    p.last_h = floats(context, kLastH, states);
    p.last_c = cell_ == kLstm ? floats(context, kLastC, states) : nullptr;
    if (p.T == 0 || p.B == 0) {
      for (float* const last : {p.last_h, p.last_c}) {
        std::fill_n(last, last ? directions_ * p.B * H_ : 0, 0.0f);  // of sequences without a step, as onnxruntime gives
      }
      return;
    }
    const Schedule s = schedule(p, threads());
    const int64_t bytes = workspace_bytes(p, s);
    Scratch scratch(place, bytes);
    run_layer(*kernel_, p, s, scratch.take(bytes),
              [&](int64_t jobs, const auto& body) { place.parallel(jobs, body); });
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const { throw Refusal("onnxq node '" + name_ + "': " + reason); }

  void read_attributes(const OrtApi* api, const OrtKernelInfo* info) {
    const std::string cell = string_attribute(api, info, "cell", ""), way = string_attribute(api, info, "direction", "forward");
    const int64_t late = int_attribute(api, info, "linear_before_reset", 0);
    cell_ = cell == "LSTM" ? kLstm : cell == "RNN" ? kRnn : cell != "GRU" ? kCells : late ? kLinearBeforeReset : kGru;
    if (cell_ == kCells) {
      refuse("attribute cell is '" + cell + "', but must be LSTM, GRU or RNN");
    }
    if (way != "forward" && way != "reverse" && way != "bidirectional") {
      refuse("attribute direction is '" + way + "', but must be forward, reverse or bidirectional");
    }
    directions_ = way == "bidirectional" ? 2 : 1;
    backward_ = way == "forward" ? 0 : way == "reverse" ? 1 : 2;
    H_ = int_attribute(api, info, "hidden_size", 0), I_ = int_attribute(api, info, "input_size", 0);
    if (H_ < 1 || I_ < 1 || H_ > kMostSummed || I_ > kMostSummed) {
      refuse("attributes hidden_size and input_size must be whole numbers from 1 to " + std::to_string(kMostSummed));
    }
    const std::string activations = string_attribute(api, info, "activations", "fast");
    if (activations != "exact" && activations != "fast") {
      refuse("attribute activations is '" + activations + "', but must be fast or exact");
    }
    bits_ = activations == "exact" ? 15 : kernel_->bits;
    if (OrtStatus* const missing = api->KernelInfoGetAttribute_float(info, "clip", &clip_)) {
      api->ReleaseStatus(missing);
      clip_ = std::numeric_limits<float>::infinity();
    }
    if (!(clip_ > 0)) {
      refuse("attribute clip must be a number above 0");
    }
  }

  int64_t summed(size_t weight) const { return weight == kWeight || weight == kWeightScales ? I_ : H_; }

  void expect(size_t input, const Tensor& tensor, ElementType type, const std::vector<int64_t>& shape) const {
    if (tensor.type != type) {
      refuse(std::string(kNames[input]) + " must be " + (type == kUint8 ? "uint8" : type == kInt32 ? "int32" : "float32"));
    }
    if (tensor.shape != shape) {
      refuse(std::string(kNames[input]) + " has shape " + text(tensor.shape) + ", but must have " + text(shape));
    }
  }

  void check_weight(size_t input, const Tensor& tensor) const {
    const int64_t gates = gates_of(cell_);
    if (input == kWeight || input == kRecurrence) {
      expect(input, tensor, kUint8, {directions_, tiles(H_), fours(summed(input)), gates, kTile, 4});
    } else {
      expect(input, tensor, kFloat, {directions_, tiles(H_), gates, kTile});
    }
  }

  // Scales at odd addresses, as in external data, are copied.
  void at_rest(Tensor& tensor) {
    if (!is_aligned(tensor)) {
      const size_t bytes = static_cast<size_t>(tensor.size()) * element_bytes(tensor.type);
      copies_.emplace_back(new char[bytes]);  // new aligns for every type
      tensor.data = std::memcpy(copies_.back().get(), tensor.data, bytes);
    }
  }

  // [directions, 2 · gates · H] as kernels read it.
  std::vector<float> in_tiles(const Tensor& bias) const {
    const int64_t gates = gates_of(cell_), sums = sums_of(cell_), count = tiles(H_);
    expect(kBias, bias, kFloat, {directions_, 2 * gates * H_});
    std::vector<float> given(static_cast<size_t>(bias.size())), made(static_cast<size_t>(directions_ * count * sums * kTile));
    std::memcpy(given.data(), bias.data, given.size() * sizeof(float));
    for (int64_t d = 0; d < directions_; ++d) {
      for (int64_t n = 0; n < gates * H_; ++n) {
        const int64_t gate = n / H_, h = n % H_;
        const auto of_x = static_cast<size_t>(d * 2 * gates * H_ + n), of_h = of_x + static_cast<size_t>(gates * H_);
        const auto at = static_cast<size_t>((((d * count) + h / kTile) * sums + gate) * kTile + h % kTile);
        const bool is_late = cell_ == kLinearBeforeReset && gate == 2;
        made[at] = given[of_x] + (is_late ? 0.0f : given[of_h]);
        if (is_late) {
          made[at + kTile] = given[of_h];
        }
      }
    }
    return made;
  }

  // All but the bias and the outputs.
  Recurrent problem(const std::array<Tensor, kInputs>& in) const {
    if (in[kX].type != kFloat || in[kX].shape.size() != 3 || in[kX].shape[2] != I_) {
      refuse("x has shape " + text(in[kX].shape) + ", but must be float32 of three dimensions, the last of " + std::to_string(I_));
    }
    Recurrent p{};
    p.T = in[kX].shape[0], p.B = in[kX].shape[1], p.I = I_, p.H = H_, p.directions = directions_;
    for (const size_t i : kConstants) {
      if (constants_[i].type == kUndefined) {
        check_weight(i, in[i]);
      }
    }
    for (const size_t i : {kH, kC}) {
      if (given_[i]) {
        expect(i, in[i], kFloat, {directions_, p.B, H_});
      }
    }
    if (p.T > 0 && p.B > 0 && (p.T > kMostNumbers / p.B || p.T * p.B > kMostNumbers / (4 * directions_ * (H_ + kTile)))) {
      refuse("there are more steps than any memory holds");
    }
    if (given_[kLengths]) {
      expect(kLengths, in[kLengths], kInt32, {p.B});
      p.lengths = static_cast<const int32_t*>(in[kLengths].data);
      if (std::any_of(p.lengths, p.lengths + p.B, [&](int32_t length) { return length < 0 || length > p.T; })) {
        refuse("sequence_lens holds a number that is below 0 or above the number of steps, " + std::to_string(p.T));
      }
    }
    p.cell = cell_, p.backward = backward_, p.clip = clip_, p.bits = bits_;
    p.x = static_cast<const float*>(in[kX].data);
    p.weight = static_cast<const uint8_t*>(in[kWeight].data);
    p.recurrence = static_cast<const uint8_t*>(in[kRecurrence].data);
    p.weight_scales = static_cast<const float*>(in[kWeightScales].data);
    p.recurrence_scales = static_cast<const float*>(in[kRecurrenceScales].data);
    p.h = static_cast<const float*>(in[kH].data);
    p.c = cell_ == kLstm ? static_cast<const float*>(in[kC].data) : nullptr;
    return p;
  }

  // Null where nobody reads the output.
  float* floats(OrtKernelContext* context, size_t index, const std::vector<int64_t>& shape) const {
    return static_cast<float*>(output(api_, context, index, shape).data);
  }

  const OrtApi* api_;
  std::string name_;
  const RecurrentKernel* kernel_;
  int32_t cell_, backward_, bits_;
  int64_t H_, I_, directions_;
  float clip_;
  std::array<bool, kInputs> given_;
  std::array<Tensor, kInputs> constants_;
  std::vector<std::unique_ptr<char[]>> copies_;
  std::vector<float> bias_;  // empty: each run gives one
};

struct RecurrentOp {
  using Kernel = Layer;
  static constexpr const char* name = "Recurrent";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, kInputs> inputs = {{{kFloat},
                                                             {kUint8},
                                                             {kFloat},
                                                             {kUint8},
                                                             {kFloat},
                                                             {kFloat, kOptional},
                                                             {kInt32, kOptional},
                                                             {kFloat, kOptional},
                                                             {kFloat, kOptional}}};
  static constexpr std::array<Parameter, 3> outputs = {{{kFloat, kOptional}, {kFloat, kOptional}, {kFloat, kOptional}}};

  static void infer(const OrtApi* api, const OrtShapeInferContext* context) {
    const Shape x = inferred_input(api, context, kX), weight = inferred_input(api, context, kWeight);
    const int64_t H = inferred_attribute(api, context, "hidden_size", 0);
    if (x.dims.size() != 3 || weight.dims.size() != 6 || H < 1) {
      return;
    }
    Shape state;
    state.type = kFloat;
    state.push_back(weight.dims[0]);
    state.dims.push_back(x.dims[1]), state.names.push_back(x.names[1]);
    state.push_back(H);
    Shape y = state;
    y.dims.insert(y.dims.begin(), x.dims[0]), y.names.insert(y.names.begin(), x.names[0]);
    infer_output(api, context, kY, y);
    infer_output(api, context, kLastH, state);
    infer_output(api, context, kLastC, state);
  }
};

constexpr OrtCustomOp kOps[] = {make_op<RecurrentOp>()};

}  // namespace

constexpr Ops kRecurrent = {kOps, 1};

}  // namespace onnxq
