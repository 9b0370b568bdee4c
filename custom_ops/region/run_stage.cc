#include "run_stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "run_moves.h"
#include "run_rows.h"
#include "step_runner.h"
#include "transposed.h"
#include "winograd.h"

namespace onnxq {
namespace {

class Runner : StepRunner<RegionKernel> {
 public:
  using StepRunner::StepRunner;

  void run() const {
    const Step& step = stage_.step;
    if (makes_tensor(step.does)) {
      if (made().is_empty()) {
        return;  // of any number of images or channels
      }
      if (!stage_.floats) {
        fill_margin(made(), memory_.workspace, stage_.codes.zero);
      }
    }
    if (stage_.floats && step.does != Does::kSums) {
      return of_rows();
    }
    switch (step.does) {
      case Does::kQuantize:
        border(made(), number_, const_cast<float*>(memory_.inputs[static_cast<size_t>(step.in)]),
               kernel_.quantize);
        break;
      case Does::kDequantize:
        border(x(), static_cast<size_t>(step.x[0]), memory_.outputs[static_cast<size_t>(step.out)], kernel_.dequantize);
        break;
      case Does::kConv:
      case Does::kProduct:
        if (plan_.joins[number_] == kNone) {
          stage_.is_depthwise ? depthwise() : conv(number_, nullptr);
        }
        break;
      case Does::kConvTranspose:
        conv_transpose();
        break;
      case Does::kGemm:
        conv(number_, nullptr);
        break;
      case Does::kSums:
        conv(number_, nullptr);
        if (step.x.size() > 1) {
          of_rows();
        }
        break;
      case Does::kConstant:
        constant();
        break;
      case Does::kSlice:
      case Does::kPad:
      case Does::kResize:
      case Does::kArrange:
        run_moves(place_, plan_.moves[number_], image(x()), y(), stage_.codes.zero);
        break;
      case Does::kResizeLinear:
        interpolate();
        break;
      case Does::kAdd:
      case Does::kSub:
      case Does::kMul:
        binary();
        break;
      case Does::kMaxPool:
      case Does::kAveragePool:
      case Does::kGlobalAveragePool:
        pool();
        break;
      case Does::kTable:
      case Does::kConcat:
        lookup();
        break;
      case Does::kFlatten:
        flatten();
        break;
      case Does::kAffine:
        affine();
        break;
      default:
        of_rows();
        break;
    }
  }

 private:
  void of_rows() const { run_row_stage(kernels_, stages_, plan_, number_, memory_, place_); }

  const std::array<int64_t, 4>& pads() const { return plan_.pads[number_]; }

  Image image(const Placed& t) const {
    return {memory_.workspace + t.offset + t.first(), t.N, t.H, t.W, t.C, t.pitch(), t.image()};
  }
  Image y() const { return image(made()); }

  static int64_t bytes(const Image& i) { return i.N * i.H * i.W * i.C; }

  void border(const Placed& t, size_t of, float* floats, void (*convert)(const Border&, int64_t, int64_t)) const {
    Image codes = image(t);
    if (t.is_rows()) {  // rows of matrices are images here
      codes = {codes.data, t.N * t.H * t.W, 1, 1, t.C, t.C, t.C};
    }
    if (codes.H * codes.W == 1) {  // numbers as they lie: pixels of one channel
      codes = {codes.data, codes.N, 1, codes.C, 1, codes.C, codes.image};
    }
    const Border p = {codes, floats, stages_[of].scale, stages_[of].codes.zero};
    in_rows(codes.N * codes.H, 4 * bytes(codes), [&](int64_t first, int64_t last) { convert(p, first, last); });
  }

  static bool is_line(const Image& i) { return i.row == i.W * i.C && i.image == i.H * i.row; }
  static Image line(const Image& i) { return {i.data, 1, 1, i.N * i.H * i.W, i.C, bytes(i), bytes(i)}; }
  // Rows of one pixel as pixels of one row, which lie as far apart as rows did.
  static Image column(const Image& i) { return {i.data, i.N, 1, i.H, i.C, i.row, i.image}; }

  // Makes the codes of step `into`: this one, or the one whose operand its codes are.
  void conv(size_t into, Binary* join) const {
    const Step& step = stage_.step;
    const Placed &from = x(), &to = plan_.tensors[into];
    if (from.is_empty()) {
      return;
    }
    Conv c = problem(stage_, plan_.offsets[number_].data());
    c.x = image(from);
    const bool is_product = step.does == Does::kGemm || step.does == Does::kSums;
    if (is_product) {  // of all matrices at once
      c.x = line(c.x);
    }
    c.y = is_product ? Image{nullptr, 1, 1, c.x.W, stage_.outputs, 0, 0} : image(to);
    c.join = join;
    // Where windows are single pixels, and none are between rows, all images are one line.
    if (step.kernel == std::array<int64_t, 2>{{1, 1}} && step.strides == std::array<int64_t, 2>{{1, 1}} &&
        !from.has_margin() && !is_product && !to.has_margin() && c.y.H == c.x.H && c.y.W == c.x.W &&
        (!join || is_line(join->b))) {
      c.x = line(c.x);
      c.y = line(c.y);
      if (join) {
        join->b = line(join->b);
      }
    }
    c.first = -(pads()[0] * c.x.row + pads()[1] * c.x.C);
    c.step_x = step.strides[1] * c.x.C;
    c.step_y = step.strides[0] * c.x.row;
    c.pixel = c.y.C;
    c.floats = step.does == Does::kSums ? floats_of(to, memory_)
               : is_product             ? memory_.outputs[static_cast<size_t>(step.out)]
                                        : nullptr;
    if (const Winograd* const planned = plan_.winograd_of(number_)) {
      return run_winograd(place_, *kernel_.winograd, c, *planned, memory_.workspace + plan_.shared);
    }
    if (!join && !stage_.phases.empty()) {
      together(c);
    }
    if (is_column(c.y.H, c.y.W, from) && (!join || join->b.row == join->b.C)) {
      c.y = column(c.y);
      c.pixel = c.y.row;
      c.step_x = c.step_y;
      if (join) {
        join->b = column(join->b);
      }
    }
    if (c.y.W) {
      by_first(c);
    }
  }

  // Of a convolution with few outputs, as many pixels as are computed together (pack.h), and leaves the rest.
  void together(Conv& rest) const {
    const Stage& phase = stage_.phases.front();
    const int64_t pixels = phase.outputs / stage_.outputs, columns = rest.y.W / pixels, done = columns * pixels;
    if (!columns) {
      return;
    }
    Conv c = problem(phase, plan_.offsets[number_].data() + stage_.quads.size());
    c.x = rest.x;
    c.y = rest.y;
    c.y.W = columns;
    c.y.C = phase.outputs;
    c.first = rest.first;
    c.step_x = pixels * rest.step_x;
    c.step_y = rest.step_y;
    c.pixel = pixels * rest.pixel;
    by_first(c);
    rest.first += done * rest.step_x;
    rest.y.data += done * rest.pixel;
    rest.y.W -= done;
  }

  // What a convolution takes of a stage, or of a phase of one.
  static Conv problem(const Stage& stage, const int64_t* offsets) {
    Conv c{};
    c.codes = stage.codes;
    c.weight = stage.weight.data();
    c.bias = stage.bias.data();
    c.scale = stage.scales.data();
    c.offsets = offsets;
    c.quads = stage.quads.data();
    c.chunks = static_cast<int64_t>(stage.quads.size());
    c.groups = stage.step.group;
    c.group_in = stage.inputs / stage.step.group;
    c.group_out = stage.outputs / stage.step.group;
    c.blocks = stage.blocks;
    return c;
  }

  // On the first kernel that takes it.
  void by_first(Conv& c) const {
    size_t chosen = 0;
    while (!kernels_[chosen]->plan(c)) {
      ++chosen;
    }
    in_tasks(place_, c, kernels_[chosen]->conv);
  }

  void conv_transpose() const {
    if (x().is_empty()) {
      return;
    }
    const Image all = y();
    const Step& step = stage_.step;
    each_phase(stage_, plan_.offsets[number_].data(), all.H, all.W,
               [&](const Stage& phase, const int64_t* offsets, int64_t rows, int64_t columns) {
      Conv c = problem(phase, offsets);
      c.x = image(x());
      c.y = {all.data + phase.remainder[0] * all.row + phase.remainder[1] * all.C, all.N, rows, columns, all.C,
             step.strides[0] * all.row, all.image};
      c.pixel = step.strides[1] * all.C;
      place_windows(c, phase);
      by_first(c);
    });
  }

  void interpolate() const {
    const Taps& taps = plan_.taps[number_];
    const Interpolation p = {image(x()),     y(), stage_.codes, taps.rows.data(), taps.columns.data(), stage_of().codes.zero,
                             stage_of().scale, stage_.scale};
    in_rows(p.y.N * p.y.H, 8 * bytes(p.y), [&](int64_t first, int64_t last) { kernel_.interpolate(p, first, last); });
  }

  void depthwise() const {
    const Step& step = stage_.step;
    Depthwise d{};
    d.x = image(x());
    d.y = y();
    d.codes = stage_.codes;
    d.weight = stage_.weight.data();
    d.bias = stage_.bias.data();
    d.scale = stage_.scales.data();
    d.kernel_y = step.kernel[0];
    d.kernel_x = step.kernel[1];
    d.first = -(pads()[0] * d.x.row + pads()[1] * d.x.C);
    d.step_x = step.strides[1] * d.x.C;
    d.step_y = step.strides[0] * d.x.row;
    d.next_x = step.dilations[1] * d.x.C;
    d.next_y = step.dilations[0] * d.x.row;
    d.dot_weight = stage_.dot_weight.data();
    d.dot_bias = stage_.dot_bias.data();
    d.dot_scale = stage_.dot_scales.data();
    in_rows(d.y.N * d.y.H, 2 * bytes(d.y), [&](int64_t first, int64_t last) { kernel_.depthwise(d, first, last); });
  }

  void binary() const {
    Binary p = stage_.binary;
    p.a = image(x(0));
    p.b = image(x(1));
    p.y = y();
    if (const int64_t joined = plan_.joins[number_]; joined != kNone) {
      if (joined == stage_.step.x[1]) {  // which changes no sum and no product
        std::swap(p.a_zero, p.b_zero);
        std::swap(p.a_scale, p.b_scale);
        p.b = p.a;
      }
      return Runner(kernels_, stages_, plan_, static_cast<size_t>(joined), memory_, place_).conv(number_, &p);
    }
    in_rows(p.y.N * p.y.H, bytes(p.y), [&](int64_t first, int64_t last) { kernel_.binary(p, first, last); });
  }

  void pool() const {
    const Step& step = stage_.step;
    const bool is_global = step.does == Does::kGlobalAveragePool;
    Pool p{};
    p.x = image(x());
    p.y = y();
    if (!step.keeps) {  // rows of a matrix are images here
      p.y = {p.y.data, p.x.N, 1, 1, p.y.C, p.y.C, p.y.C};
    }
    p.codes = stage_.codes;
    p.kernel_y = is_global ? p.x.H : step.kernel[0];
    p.kernel_x = is_global ? p.x.W : step.kernel[1];
    p.stride_y = step.strides[0];
    p.stride_x = step.strides[1];
    p.dilation_y = step.dilations[0];
    p.dilation_x = step.dilations[1];
    p.top = pads()[0];
    p.left = pads()[1];
    p.bottom = pads()[2];
    p.right = pads()[3];
    p.average = step.does != Does::kMaxPool;
    p.counts_pads = static_cast<int32_t>(step.counts_pads);
    p.x_zero = stage_of().codes.zero;
    p.x_scale = stage_of().scale;
    p.scale = stage_.scale;
    in_rows(p.y.N * p.y.H, std::max(bytes(p.x), bytes(p.y)), [&](int64_t first, int64_t last) { kernel_.pool(p, first, last); });
  }

  void lookup() const {
    const bool by_channel = stage_.step.does == Does::kTable && stage_.tables[0].size() > 256;
    Image to = y();
    for (size_t i = 0; i < stage_.step.x.size(); ++i) {
      const std::vector<uint8_t>& table = stage_.tables[i];
      const Lookup p = {image(x(i)), to, table.empty() ? nullptr : table.data(), by_channel};
      const int64_t parts[] = {p.x.N * to.image, p.x.C, p.x.H * to.row, p.x.W * to.C};
      to.data += stage_.step.does == Does::kConcat ? parts[stage_.step.axis] : 0;
      in_rows(p.x.N * p.x.H, bytes(p.x), [&](int64_t first, int64_t last) { kernel_.lookup(p, first, last); });
    }
  }

  void affine() const {
    const float* const knee = stage_.knees.empty() ? nullptr : stage_.knees.data();
    const Affine p = {image(x()), y(), stage_.codes, stage_.factors.data(), stage_.starts.data(), knee};
    in_rows(p.x.N * p.x.H, bytes(p.x), [&](int64_t first, int64_t last) { kernel_.affine(p, first, last); });
  }

  // Of this and the following ones, for the order of channels last.
  void constant() const {
    const Image to = y();
    const uint8_t* from = stage_.constant.data();
    const bool is_rows = made().is_rows();
    for (int64_t n = 0; n < to.N; ++n) {
      for (int64_t c = 0; c < to.C; ++c) {
        for (int64_t i = 0; i < to.H * to.W; ++i) {
          to.data[n * to.image + i / to.W * to.row + i % to.W * to.C + c] =
              is_rows ? from[(n * to.H * to.W + i) * to.C + c] : *from++;
        }
      }
    }
  }

  // From channels last to the order that the definition has.
  void flatten() const {
    const Image from = image(x()), to = y();
    const int64_t plane = from.H * from.W;
    if (x().is_rows()) {
      std::memcpy(to.data, from.data, static_cast<size_t>(bytes(from)));
      return;
    }
    in_rows(from.N, bytes(from), [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n) {
        for (int64_t i = 0; i < plane; ++i) {
          const uint8_t* const pixel = from.data + n * from.image + i / from.W * from.row + i % from.W * from.C;
          for (int64_t c = 0; c < from.C; ++c) {
            to.data[(n * from.C + c) * plane + i] = pixel[c];
          }
        }
      }
    });
  }
};

}  // namespace

void run_stage(const std::vector<const RegionKernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan,
               size_t number, const Memory& memory, const Place& place) {
  Runner(kernels, stages, plan, number, memory, place).run();
}

}  // namespace onnxq
