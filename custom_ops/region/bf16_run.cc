#include "moments.h"
#include "run_moves.h"
#include "run_stage.h"
#include "step_runner.h"
#include "transposed.h"

namespace onnxq {
namespace {

class NumberRunner : StepRunner<NumberKernel> {
 public:
  using StepRunner::StepRunner;

  void run() const {
    const Step& step = stage_.step;
    if (makes_tensor(step.does)) {
      if (made().is_empty()) {
        return;  // of any number of images or channels
      }
      clear_around(made());
    }
    switch (step.does) {
      case Does::kQuantize:
        border(made(), const_cast<float*>(memory_.inputs[static_cast<size_t>(step.in)]), kernel_.read);
        break;
      case Does::kDequantize:
        border(x(), memory_.outputs[static_cast<size_t>(step.out)], kernel_.write);
        break;
      case Does::kConv:
        stage_.is_depthwise ? depthwise() : conv();
        break;
      case Does::kConvTranspose:
        conv_transpose();
        break;
      case Does::kResizeLinear:
        interpolate();
        break;
      case Does::kAdd:
      case Does::kMul: {
        const NumberBinary p = {source(0), source(1), y(), step.does == Does::kMul, stage_.act};
        in_rows(p.y, [&](int64_t first, int64_t last) { kernel_.binary(p, first, last); });
        break;
      }
      case Does::kAffine:
        affine();
        break;
      case Does::kInstanceNorm:
        instance_norm();
        break;
      case Does::kMaxPool:
      case Does::kAveragePool:
      case Does::kGlobalAveragePool:
        pool();
        break;
      case Does::kConcat:
        concat();
        break;
      case Does::kFlatten:
        flatten();
        break;
      case Does::kSlice:
      case Does::kPad:
      case Does::kResize:
      case Does::kArrange:
        run_moves(place_, plan_.moves[number_], source(), y(), 0);
        break;
      default:  // which bf16 regions do not have: steps.cc
        break;
    }
  }

 private:
  const std::array<int64_t, 4>& pads() const { return plan_.pads[number_]; }

  Numbers numbers(const Placed& t) const {
    const Placed& in = t.within == kNone ? t : plan_.tensors[static_cast<size_t>(t.within)];
    uint16_t* const data = reinterpret_cast<uint16_t*>(memory_.workspace + in.offset + in.first()) + t.channel;
    return {data, t.N, t.H, t.W, t.C, in.C, in.pitch() / 2, in.image() / 2};
  }
  Numbers y() const { return numbers(made()); }
  Numbers source(size_t i = 0) const { return numbers(x(i)); }

  static int64_t bytes(const Numbers& t) { return 2 * t.N * t.H * t.W * t.C; }

  // Pads, and what is read behind the last image and multiplied by zero: it must be a number.
  void clear_around(const Placed& t) const {
    fill_margin(t, memory_.workspace, 0);
    if (t.bytes) {
      const int64_t used = t.N * t.image() + t.side * t.pixel();
      std::memset(memory_.workspace + t.offset + used, 0, static_cast<size_t>(t.bytes - used));
    }
  }

  using StepRunner::in_rows;
  template <typename Work>
  void in_rows(const Numbers& t, const Work& work) const {
    in_rows(t.N * t.H, bytes(t), work);
  }

  void border(const Placed& t, float* floats, void (*convert)(const NumberBorder&, int64_t, int64_t)) const {
    Numbers all = numbers(t);
    if (t.rank == 2) {  // rows of numbers, as they are
      all = {all.data, t.W, 1, 1, t.C, all.pixel, all.pixel, all.pixel};
    }
    const NumberBorder p = {all, floats};
    in_rows(all, [&](int64_t first, int64_t last) { convert(p, first, last); });
  }

  void conv() const {
    const Step& step = stage_.step;
    const Placed& from = x();
    if (from.is_empty()) {
      return;
    }
    NumberConv c = problem(stage_, plan_.offsets[number_].data());
    const Numbers read = source();
    c.x = {reinterpret_cast<uint8_t*>(read.data), read.N, read.H, read.W, 2 * read.C, 2 * read.row, 2 * read.image};
    c.to = y();
    if (step.x.size() > 1) {
      c.plus = source(1);
    }
    // Where windows are single pixels, and none are between rows, all images are one line.
    const bool is_single = step.kernel == std::array<int64_t, 2>{{1, 1}} && step.strides == std::array<int64_t, 2>{{1, 1}};
    if (is_single && is_line(read) && is_line(c.to) && (!c.plus.data || is_line(c.plus)) && c.to.H == read.H &&
        c.to.W == read.W) {
      const int64_t pixels = read.N * read.H * read.W;
      c.x = {c.x.data, 1, 1, pixels, c.x.C, pixels * c.x.C, pixels * c.x.C};
      c.to = line(c.to, pixels);
      c.plus = line(c.plus, pixels);
    }
    c.first = -(pads()[0] * c.x.row + pads()[1] * c.x.C);
    c.step_x = step.strides[1] * c.x.C;
    c.step_y = step.strides[0] * c.x.row;
    if (is_column(c.to.H, c.to.W, from)) {
      c.to = column(c.to);
      c.plus = column(c.plus);
      c.step_x = c.step_y;
    }
    c.y = {nullptr, c.to.N, c.to.H, c.to.W, c.to.C, 0, 0};
    by_first(c);
  }

  // What a convolution takes of a stage, or of a phase of one.
  static NumberConv problem(const Stage& stage, const int64_t* offsets) {
    NumberConv c{};
    c.weight = reinterpret_cast<const int8_t*>(stage.lines.front().bytes);
    c.starts = stage.starts.data();
    c.act = stage.act;
    if (!stage.dense_lines.empty()) {
      c.dense_weight = reinterpret_cast<const int8_t*>(stage.dense_lines.front().bytes);
      c.row_bytes = 2 * stage.step.kernel[1] * stage.inputs;
      c.window_rows = stage.step.kernel[0];
      c.dense_chunks = (c.window_rows * c.row_bytes + kChunk - 1) / kChunk;
    }
    c.offsets = offsets;
    c.quads = stage.quads.data();
    c.chunks = static_cast<int64_t>(stage.quads.size());
    c.groups = stage.step.group;
    c.group_in = 2 * (stage.inputs / stage.step.group);
    c.group_out = stage.outputs / stage.step.group;
    c.blocks = stage.blocks;
    return c;
  }

  // On the first kernel that takes it.
  void by_first(NumberConv& c) const {
    size_t chosen = 0;
    while (!kernels_[chosen]->plan(c)) {
      ++chosen;
    }
    // Where the image is smaller than the weights, each of these is read once.
    const int64_t weight = c.groups * c.blocks * c.chunks * kBlockBytes;
    in_tasks(place_, c, kernels_[chosen]->conv, c.x.N * c.x.H * c.x.W * c.x.C < weight ? kCachedBytes / 4 : kCachedBytes);
  }

  void conv_transpose() const {
    if (x().is_empty()) {
      return;
    }
    const Numbers read = source(), all = y();
    const Step& step = stage_.step;
    each_phase(stage_, plan_.offsets[number_].data(), all.H, all.W,
               [&](const Stage& phase, const int64_t* offsets, int64_t rows, int64_t columns) {
      NumberConv c = problem(phase, offsets);
      c.x = {reinterpret_cast<uint8_t*>(read.data), read.N, read.H, read.W, 2 * read.C, 2 * read.row, 2 * read.image};
      c.to = {all.data + phase.remainder[0] * all.row + phase.remainder[1] * all.pixel, all.N, rows, columns, all.C,
              step.strides[1] * all.pixel, step.strides[0] * all.row, all.image};
      c.y = {nullptr, c.to.N, c.to.H, c.to.W, c.to.C, 0, 0};
      place_windows(c, phase);
      by_first(c);
    });
  }

  void interpolate() const {
    const Taps& taps = plan_.taps[number_];
    const NumberInterpolation p = {source(), y(), taps.rows.data(), taps.columns.data()};
    in_rows(p.y.N * p.y.H, 4 * bytes(p.y), [&](int64_t first, int64_t last) { kernel_.interpolate(p, first, last); });
  }

  // Whether all pixels of all images follow each other.
  static bool is_line(const Numbers& t) {
    return (t.H == 1 || t.row == t.W * t.pixel) && (t.N == 1 || t.image == t.H * t.W * t.pixel);
  }
  // Rows of one pixel as pixels of one row.
  static Numbers column(const Numbers& t) { return {t.data, t.N, 1, t.H, t.C, t.row, t.row, t.image}; }
  static Numbers line(const Numbers& t, int64_t pixels) {
    return {t.data, 1, 1, pixels, t.C, t.pixel, pixels * t.pixel, pixels * t.pixel};
  }

  void depthwise() const {
    const Step& step = stage_.step;
    NumberDepthwise d{};
    d.x = source();
    d.y = y();
    if (step.x.size() > 1) {
      d.plus = source(1);
    }
    d.weight = stage_.factors.data();
    d.bias = stage_.starts.data();
    d.kernel_y = step.kernel[0];
    d.kernel_x = step.kernel[1];
    d.first = -(pads()[0] * d.x.row + pads()[1] * d.x.pixel);
    d.step_x = step.strides[1] * d.x.pixel;
    d.step_y = step.strides[0] * d.x.row;
    d.next_x = step.dilations[1] * d.x.pixel;
    d.next_y = step.dilations[0] * d.x.row;
    d.act = stage_.act;
    in_rows(d.y, [&](int64_t first, int64_t last) { kernel_.depthwise(d, first, last); });
  }

  void affine() const {
    NumberAffine p{source(), y(), nullptr, nullptr, stage_.act};
    // One number for all channels, or one each, which make_plan has seen to.
    const auto of_channels = [&](const std::vector<float>& given, float without) {
      std::vector<float> all = given.empty() ? std::vector<float>{without} : given;
      all.resize(static_cast<size_t>(p.x.C), all.front());
      return all;
    };
    const std::vector<float> factor = of_channels(stage_.factors, 1.0f), shift = of_channels(stage_.starts, 0.0f);
    p.factor = factor.data();
    p.shift = shift.data();
    in_rows(p.y, [&](int64_t first, int64_t last) { kernel_.affine(p, first, last); });
  }

  // Of an image, each channel is a line: less the mean, divided by the deviation.
  void instance_norm() const {
    const Placed& from = x();
    const Numbers all = source(), to = y();
    const MomentMemory<double> memory(memory_.workspace + plan_.scratch[number_].offset, all.N, all.C);
    moments(
        memory, all.N, all.H, all.C, [&](int64_t pieces, const auto& work) { in_rows(pieces, 2 * bytes(all), work); },
        [&](int64_t n, int64_t first, int64_t last, double* sums, double* squares) {
          kernel_.moments({all, n, sums, squares}, first, last);
        });
    for (int64_t n = 0; n < all.N; ++n) {
      const float* const factor = lines_of(memory, stage_, from, n, 1.0, 1.0);
      const NumberAffine p = {image_of(all, n), image_of(to, n), factor, factor + all.C, stage_.act};
      in_rows(p.y, [&](int64_t first, int64_t last) { kernel_.affine(p, first, last); });
    }
  }
  static Numbers image_of(const Numbers& t, int64_t n) {
    return {t.data + n * t.image, 1, t.H, t.W, t.C, t.pixel, t.row, t.image};
  }

  void pool() const {
    const Step& step = stage_.step;
    const bool is_global = step.does == Does::kGlobalAveragePool;
    NumberPool p{};
    p.x = source();
    p.y = y();
    if (!step.keeps) {  // rows of a matrix are images here
      p.y = {p.y.data, p.x.N, 1, 1, p.y.C, p.y.pixel, p.y.pixel, p.y.pixel};
    }
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
    in_rows(p.y, [&](int64_t first, int64_t last) { kernel_.pool(p, first, last); });
  }

  // What is not there yet.
  void concat() const {
    int64_t channel = 0;
    for (size_t i = 0; i < stage_.step.x.size(); ++i) {
      NumberCopy p = {source(i), y()};
      p.y.data += channel;
      channel += p.x.C;
      if (x(i).within == kNone) {
        in_rows(p.x, [&](int64_t first, int64_t last) { kernel_.copy(p, first, last); });
      }
    }
  }

  // From channels last to the order that the definition has.
  void flatten() const {
    const Numbers from = source(), to = y();
    const int64_t plane = from.H * from.W;
    if (x().rank == 2) {
      const NumberCopy p = {from, to};
      return in_rows(from, [&](int64_t first, int64_t last) { kernel_.copy(p, first, last); });
    }
    in_rows(from.N, bytes(from), [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n) {
        for (int64_t i = 0; i < plane; ++i) {
          const uint16_t* const pixel = from.data + n * from.image + i / from.W * from.row + i % from.W * from.pixel;
          for (int64_t c = 0; c < from.C; ++c) {
            to.data[n * to.pixel + c * plane + i] = pixel[c];
          }
        }
      }
    });
  }
};

}  // namespace

void run_stage(const std::vector<const NumberKernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan,
               size_t number, const Memory& memory, const Place& place) {
  NumberRunner(kernels, stages, plan, number, memory, place).run();
}

}  // namespace onnxq
