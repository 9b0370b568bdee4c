#include "plan.h"

#include <algorithm>
#include <string>

#include "places.h"
#include "row_stage.h"
#include "shapes.h"
#include "transposed.h"

namespace onnxq {
namespace {

constexpr int64_t kMostAveraged = 1 << 23;  // sums of so many codes fit int32

// By a constant weight.
constexpr bool multiplies(Does does) {
  return does == Does::kConv || does == Does::kGemm || does == Does::kProduct || does == Does::kSums;
}

class Planner {
 public:
  Planner(const std::vector<Stage>& stages, Plan& plan, Element element)
      : stages_(stages), plan_(plan), width_(element == Element::kCodes ? 1 : 2) {}

  void shape(size_t number) {
    const Stage& stage = stages_[number];
    const Step& step = stage.step;
    Placed made;
    if (!step.x.empty()) {
      static_cast<Extent&>(made) = source(step, 0);
    }
    switch (step.does) {
      case Does::kQuantize:
        made = of_shape(number, plan_.inputs[static_cast<size_t>(step.in)], step.stack);
        break;
      case Does::kConv:
        conv(number, stage, made);
        break;
      case Does::kConvTranspose:
        conv_transpose(number, stage, made);
        break;
      case Does::kGemm:
      case Does::kProduct:
      case Does::kSums:
        if (!made.is_rows()) {
          refuse_stage(number, "multiplies what is no matrix, and no stack of them");
        }
        if (made.C != stage.inputs) {
          refuse_stage(number, "multiplies rows of " + std::to_string(made.C) + " by a matrix for " +
                                   std::to_string(stage.inputs));
        }
        source(step, 0).behind = std::max(source(step, 0).behind, read_behind(made.C));
        made.C = stage.outputs;
        if (step.does == Does::kGemm) {
          plan_.outputs[static_cast<size_t>(step.out)] = dims(made);
          made.C = 0;  // no codes
        }
        if (step.x.size() > 1 && step.does == Does::kSums && dims(source(step, 1)) != dims(made)) {
          refuse_stage(number, "adds a tensor whose shape is not that of its sums");
        }
        break;
      case Does::kConstant:
        made = of_shape(number, stage.shape, step.stack);
        break;
      case Does::kAdd:
      case Does::kSub:
      case Does::kMul:
        binary_shape(number, source(step, 1), made);
        break;
      case Does::kMaxPool:
      case Does::kAveragePool:
      case Does::kGlobalAveragePool:
        pool(number, step, made);
        break;
      case Does::kConcat:
        concat(number, step, made);
        break;
      case Does::kFlatten:
        if (made.rank > 2) {
          made.C = product(number, {made.C, made.H, made.W});
          made.W = made.N;
          made.N = made.H = 1;
          made.rank = 2;
          made.is_stack = false;
        }
        break;
      case Does::kDequantize:
        plan_.outputs[static_cast<size_t>(step.out)] = dims(made);
        made.C = 0;
        break;
      case Does::kAffine:
        affine(number, stage, static_cast<size_t>(made.C));
        break;
      case Does::kTable:
        if (const size_t codes = stage.tables[0].size(); codes != 256 && codes / 256 != static_cast<size_t>(made.C)) {
          refuse_stage(number, "has tables for " + std::to_string(codes / 256) + " channels, and reads " +
                                   std::to_string(made.C));
        }
        break;
      case Does::kSlice:
        set_sizes(made, sliced(number, step, sizes(made)));
        break;
      case Does::kPad:
        set_sizes(made, padded(number, step, sizes(made)));
        break;
      case Does::kResize:
      case Does::kResizeLinear:
        if (made.is_stack) {
          refuse_stage(number, "resizes matrices");
        }
        set_sizes(made, resized(number, stage, sizes(made), made.rank));
        break;
      case Does::kArrange:
        made = of_shape(number, arranged(number, step, dims(made)), step.stack);
        break;
      default:
        made = row_shape(number, stage, sources(step), plan_);
        break;
    }
    if (makes_tensor(step.does) && ((made.rank < 4 && made.H != 1) || (made.rank < 3 && made.N != 1))) {
      refuse_stage(number, "makes rows or images of what has none");  // which its output would have no room for
    }
    if (stage.floats && !made.is_rows()) {
      refuse_stage(number, "makes float32 that is no matrix, and no stack of them");
    }
    made.width = stage.floats ? 4 : width_;
    product(number, {made.N, made.H, made.W, made.pixel()});
    product(number, {made.W, made.pixel()});  // of none, too
    plan_.pads.resize(number + 1, step.pads);
    for (const int64_t x : step.x) {
      plan_.tensors[static_cast<size_t>(x)].last = static_cast<int64_t>(number);
      ++plan_.tensors[static_cast<size_t>(x)].readers;
    }
    made.last = static_cast<int64_t>(number);
    plan_.tensors.push_back(made);
  }

  // Windows are known when all shapes are.
  void offsets(size_t number) {
    const Stage& stage = stages_[number];
    std::vector<int64_t> found;
    const bool reads_windows = multiplies(stage.step.does) || stage.step.does == Does::kConvTranspose;
    if (reads_windows && !source(stage.step, 0).is_empty()) {  // whose pads nobody has looked at
      if (stage.step.does != Does::kConvTranspose) {
        add_offsets(stage, source(stage.step, 0), found);
      }
      for (const Stage& phase : stage.phases) {
        add_offsets(phase, source(stage.step, 0), found);
      }
    }
    plan_.offsets.push_back(found);
  }

  void add_offsets(const Stage& stage, const Placed& x, std::vector<int64_t>& found) const {
    for (const Piece& piece : pieces(stage.step)) {
      const int64_t start = piece.y * stage.step.dilations[0] * x.pitch() + piece.x * stage.step.dilations[1] * x.pixel();
      const int64_t bytes = piece.pixels * (stage.inputs / stage.step.group) * width_;
      for (int64_t at = 0; at < bytes; at += kChunk) {
        found.push_back(start + at);
      }
    }
  }

  // So is what moves.
  void moves(size_t number) {
    const bool is_move = moves_elements(stages_[number].step.does);
    const Placed& y = plan_.tensors[number];
    const Step& step = stages_[number].step;
    plan_.moves.push_back(is_move && !y.is_empty() ? moves_of(stages_[number], layout(source(step, 0)), layout(y), runs_left_) : Moves{});
    const bool is_linear = step.does == Does::kResizeLinear && !y.is_empty();
    plan_.taps.push_back(is_linear ? taps_of(stages_[number], layout(source(step, 0)), layout(y)) : Taps{});
  }

  // Of numbers, what only a Concat reads is made where that wants it: codes may have to be changed.
  void join(size_t number) {
    const Step& step = stages_[number].step;
    if (step.does != Does::kConcat || width_ == 1) {
      return;
    }
    int64_t channel = 0;
    for (const int64_t x : step.x) {
      Placed& each = plan_.tensors[static_cast<size_t>(x)];
      const Does does = stages_[static_cast<size_t>(x)].step.does;
      if (each.readers == 1 && does != Does::kConcat && does != Does::kFlatten && !moves_elements(does)) {
        each.within = static_cast<int64_t>(number);
        each.channel = channel;
      }
      channel += each.C;
    }
  }

  // Codes of a convolution that only a sum or product of its sizes reads are never stored: it computes both, in its place.
  void join_binary(size_t number) {
    plan_.joins.resize(plan_.tensors.size(), kNone);
    const Step& step = stages_[number].step;
    const bool is_binary = step.does == Does::kAdd || step.does == Does::kSub || step.does == Does::kMul;
    if (!is_binary || width_ != 1 || sizes(source(step, 0)) != sizes(source(step, 1))) {
      return;
    }
    // The later one is nearer.
    const int64_t made = std::max(step.x[0], step.x[1]);
    const Stage& stage = stages_[static_cast<size_t>(made)];
    if (multiplies(stage.step.does) && !stage.floats && !stage.is_depthwise && plan_.tensors[static_cast<size_t>(made)].readers == 1) {
      plan_.joins[number] = made;
      plan_.joins[static_cast<size_t>(made)] = static_cast<int64_t>(number);
      source(stage.step, 0).last = std::max(source(stage.step, 0).last, static_cast<int64_t>(number));
    }
  }

  bool is_joined(size_t number) const { return multiplies(stages_[number].step.does) && plan_.joins[number] != kNone; }

  // Tensors whose lives do not meet share bytes: each is put into the first gap that it fits.
  void place() {
    for (size_t step = 0; step < plan_.tensors.size(); ++step) {
      const bool is_within = plan_.tensors[step].within != kNone;
      const size_t i = is_within ? static_cast<size_t>(plan_.tensors[step].within) : step;
      Placed& tensor = plan_.tensors[i];
      if (step < plan_.scratch.size() && plan_.scratch[step].bytes) {
        plan_.scratch[step].last = static_cast<int64_t>(step);
        places_.put(plan_.scratch[step], static_cast<int64_t>(step));
      }
      const bool is_elsewhere = tensor.in != kNone || tensor.out != kNone;
      if (!makes_tensor(stages_[i].step.does) || tensor.is_empty() || tensor.bytes || is_joined(i) || is_elsewhere) {
        continue;
      }
      const int64_t images = product(i, {tensor.N, tensor.top + tensor.H + tensor.bottom, tensor.W + tensor.side, tensor.pixel()});
      tensor.bytes = (images + tensor.side * tensor.pixel() + tensor.behind + 63) / 64 * 64;
      places_.put(tensor, static_cast<int64_t>(step));
    }
    plan_.workspace = places_.end();
  }

 private:
  std::vector<Placed*> sources(const Step& step) {
    std::vector<Placed*> found;
    for (size_t i = 0; i < step.x.size(); ++i) {
      found.push_back(&source(step, i));
    }
    return found;
  }

  Placed& source(const Step& step, size_t i) { return plan_.tensors[static_cast<size_t>(step.x[i])]; }

  static Layout layout(const Placed& t) { return {sizes(t), t.rank, t.image() / t.width, t.pitch() / t.width, t.is_rows()}; }

  void affine(size_t number, const Stage& stage, size_t channels) const {
    const auto refuse = [&](size_t size) {
      refuse_stage(number, "has numbers for " + std::to_string(size) + " channels of " + std::to_string(channels));
    };
    const size_t lines = stage.step.knee == kNone ? 1 : 2;
    for (const size_t size : {stage.factors.size(), stage.starts.size()}) {
      const bool is_for_all = stage.step.scale == kNone && size < 2;  // in bf16
      if (!is_for_all && size != lines * channels) {
        refuse(size);
      }
    }
    if (lines == 2 && stage.knees.size() != channels) {
      refuse(stage.knees.size());
    }
  }

  void concat(size_t number, const Step& step, Placed& made) {
    const size_t axis = static_cast<size_t>(step.axis);
    Sizes all = sizes(made);
    all[axis] = 0;
    for (size_t i = 0; i < step.x.size(); ++i) {
      const Placed& each = source(step, i);
      Sizes with = sizes(each);
      const int64_t size = with[axis];
      with[axis] = all[axis];
      if (each.rank != made.rank || each.is_stack != made.is_stack || with != all) {
        refuse_stage(number, "joins tensors of different shapes");
      }
      all[axis] += size;  // of sizes that are looked at: no sum of a thousand is too large for int64
    }
    set_sizes(made, all);
  }

  // How many windows there are; their pads.
  std::array<int64_t, 4> count(size_t number, const Step& step, const Extent& x, Placed& made) {
    std::array<int64_t, 4> pads = step.pads;
    if (step.same) {
      same_pads(step, 0, x.H, pads);
      same_pads(step, 1, x.W, pads);
    }
    const bool ceil = step.ceil != 0, pools = step.does != Does::kConv;
    made.H = windows(number, x.H, pads[0], pads[2], step.kernel[0], step.strides[0], step.dilations[0], ceil, pools);
    made.W = windows(number, x.W, pads[1], pads[3], step.kernel[1], step.strides[1], step.dilations[1], ceil, pools);
    plan_.pads.resize(number);
    plan_.pads.push_back(pads);
    return pads;
  }

  void conv(size_t number, const Stage& stage, Placed& made) {
    const Step& step = stage.step;
    Placed& x = source(step, 0);
    fits_weight(number, stage, x);
    made.C = stage.outputs;
    const std::array<int64_t, 4> pads = count(number, step, x, made);
    if (step.x.size() > 1) {
      const Placed& plus = source(step, 1);
      if (plus.rank != made.rank || plus.N != made.N || plus.H != made.H || plus.W != made.W || plus.C != made.C) {
        refuse_stage(number, "adds a tensor whose shape is not that of its sums");
      }
    }
    read_around(x, pads);
    const Stage& widest = stage.phases.empty() ? stage : stage.phases.front();
    x.behind = std::max(x.behind, read_behind(product(number, {widest.step.strides[1], x.pixel()})));
    if (is_column(made.H, made.W, x)) {
      const int64_t together = std::min<int64_t>(made.H, 32);  // pixels
      x.behind = std::max(x.behind, kChunk + product(number, {together, step.strides[0], x.W, x.pixel()}));
    }
  }

  void conv_transpose(size_t number, const Stage& stage, Placed& made) {
    Placed& x = source(stage.step, 0);
    fits_weight(number, stage, x);
    made.C = stage.outputs;
    made.H = spread(number, stage.step, 0, x.H);
    made.W = spread(number, stage.step, 1, x.W);
    for (const Stage& phase : stage.phases) {
      const auto [rows, columns] = windows_of(phase, stage.step, made.H, made.W);
      if (rows > 0 && columns > 0) {
        read_around(x, pads_of(phase, x.H, x.W, rows, columns));
      }
    }
    x.behind = std::max(x.behind, read_behind(x.pixel()));
  }

  static void fits_weight(size_t number, const Stage& stage, const Placed& x) {
    if (x.is_stack) {
      refuse_stage(number, "convolves matrices");
    }
    if (x.C != stage.inputs || x.rank != stage.rank) {
      refuse_stage(number, "convolves " + std::to_string(x.C) + " channels of a tensor of rank " + std::to_string(x.rank) +
                               " by a weight for " + std::to_string(stage.inputs) + " and rank " + std::to_string(stage.rank));
    }
  }

  static void read_around(Placed& x, const std::array<int64_t, 4>& pads) {
    x.top = std::max(x.top, pads[0]);
    x.bottom = std::max(x.bottom, pads[2]);
    x.side = std::max({x.side, pads[1], pads[3]});
  }

  void pool(size_t number, const Step& step, Placed& made) {
    const Extent x = made;
    const bool is_global = step.does == Does::kGlobalAveragePool;
    if (x.is_rows()) {
      refuse_stage(number, "pools a matrix");
    }
    made.H = made.W = 1;
    if (!is_global) {
      count(number, step, x, made);
    }
    const int64_t area = is_global ? product(number, {x.H, x.W}) : step.kernel[0] * step.kernel[1];
    if (step.does != Does::kMaxPool && area > kMostAveraged) {
      refuse_stage(number, "averages more than 8388608 pixels");
    }
    if (!step.keeps) {
      made.rank = 2;
      made.W = made.N;
      made.N = 1;
    }
  }

  const std::vector<Stage>& stages_;
  Plan& plan_;
  Places places_;
  int64_t runs_left_ = kMostRuns;
  const int64_t width_;  // bytes of an element
};

}  // namespace

Plan make_plan(const std::vector<Stage>& stages, const std::vector<Dims>& inputs, size_t outputs, Element element) {
  Plan plan;
  plan.inputs = inputs;
  plan.outputs.resize(outputs);
  Planner planner(stages, plan, element);
  for (size_t i = 0; i < stages.size(); ++i) {
    planner.shape(i);
  }
  check_moves(stages, plan);
  for (size_t i = 0; i < stages.size(); ++i) {
    planner.join(i);
    planner.join_binary(i);
  }
  planner.place();
  for (size_t i = 0; i < stages.size(); ++i) {
    planner.offsets(i);
    planner.moves(i);
  }
  return plan;
}

}  // namespace onnxq
