#include "run_rows.h"

#include <algorithm>
#include <cstring>

#include "moments.h"
#include "row_stage.h"
#include "run_moves.h"
#include "shapes.h"
#include "step_runner.h"

namespace onnxq {
namespace {

// Of run_moves: as Image, in elements.
struct FloatImage {
  float* data;
  int64_t N, H, W, C, row, image;
};

class RowRunner : StepRunner<RegionKernel> {
 public:
  RowRunner(const std::vector<const RegionKernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan,
            size_t number, const Memory& memory, const Place& place)
      : StepRunner(kernels, stages, plan, number, memory, place), rows_(*memory.rows) {}

  void run() const {
    switch (stage_.step.does) {
      case Does::kWrite:
        write();
        break;
      case Does::kEncode:
      case Does::kDecode:
        convert();
        break;
      case Does::kPlus:
      case Does::kSums:  // what is added to them
        plus();
        break;
      case Does::kNorm:
        norm();
        break;
      case Does::kSoftmax:
        in_rows(count(), 16 * bytes(), [&, p = Softmax{in(), out(), made().C}](int64_t first, int64_t last) {
          rows_.softmax(p, first, last);
        });
        break;
      case Does::kRotary:
        rotary();
        break;
      case Does::kMatMul:
      case Does::kAttention:
        multiply();
        break;
      case Does::kInstanceNorm:
        instance_norm();
        break;
      case Does::kSlice:
      case Does::kPad:
      case Does::kArrange:
        run_moves(place_, plan_.moves[number_], float_image(x(0)), float_image(made()), 0);
        break;
      case Does::kFlatten:
        copy(x(0), floats_of(made(), memory_));
        break;
      default:  // kRead: it is there
        break;
    }
  }

 private:
  uint8_t* scratch() const { return memory_.workspace + plan_.scratch[number_].offset; }
  uint8_t* codes_of(const Placed& t) const { return memory_.workspace + t.offset + t.first(); }
  int64_t count() const { return made().N * made().H * made().W; }
  // Of float32, of what is made.
  int64_t bytes() const { return 4 * count() * made().C; }

  RowsIn in() const {
    const Stage& from = stage_of(0);
    return {from.floats ? nullptr : codes_of(x(0)), from.floats ? floats_of(x(0), memory_) : nullptr, from.scale, from.codes.zero};
  }
  RowsOut out() const {
    return {stage_.floats ? nullptr : codes_of(made()), stage_.floats ? floats_of(made(), memory_) : nullptr, stage_.scale, stage_.codes};
  }
  static const float* or_null(const std::vector<float>& numbers) { return numbers.empty() ? nullptr : numbers.data(); }

  FloatImage float_image(const Placed& t) const {
    return {floats_of(t, memory_), t.N, t.H, t.W, t.C, t.W * t.C, t.H * t.W * t.C};
  }

  void copy(const Placed& t, float* to) const {
    const float* const from = floats_of(t, memory_);
    const int64_t size = t.N * t.H * t.W * t.C;
    in_rows(size, 4 * size, [&](int64_t first, int64_t last) {
      std::memcpy(to + first, from + first, static_cast<size_t>(4 * (last - first)));
    });
  }

  void write() const {
    if (x(0).out != stage_.step.out && !x(0).is_empty()) {  // else it is made there
      copy(x(0), memory_.outputs[static_cast<size_t>(stage_.step.out)]);
    }
  }

  void convert() const {
    const bool encodes = stage_.step.does == Does::kEncode;
    const Stage& of = encodes ? stage_ : stage_of(0);
    const Placed& t = encodes ? made() : x(0);
    const Image line = {codes_of(t), count(), 1, t.C, 1, t.C, t.C};
    const Border p = {line, floats_of(encodes ? x(0) : made(), memory_), of.scale, of.codes.zero};
    in_rows(line.N, bytes(), [&](int64_t first, int64_t last) { (encodes ? kernel_.quantize : kernel_.dequantize)(p, first, last); });
  }

  static void sizes_to(const Placed& t, int64_t (&to)[4]) {
    to[0] = t.N;
    to[1] = t.H;
    to[2] = t.W;
    to[3] = t.C;
  }

  // The second tensor, and the first one, or the sums that are there already.
  void plus() const {
    const Placed &a = stage_.step.does == Does::kSums ? made() : x(0), &b = x(1);
    Plus p{floats_of(a, memory_), floats_of(b, memory_), floats_of(made(), memory_), {}, {}, {}};
    sizes_to(a, p.a_sizes);
    sizes_to(b, p.b_sizes);
    sizes_to(made(), p.y_sizes);
    in_rows(count(), 2 * bytes(), [&](int64_t first, int64_t last) { rows_.plus(p, first, last); });
  }

  void norm() const {
    const Norm p = {in(), out(), or_null(stage_.factors), or_null(stage_.starts), made().C, stage_.epsilon,
                    static_cast<int32_t>(stage_.step.centred)};
    in_rows(count(), 4 * bytes(), [&](int64_t first, int64_t last) { rows_.norm(p, first, last); });
  }

  void rotary() const {
    const Rotary p = {floats_of(x(0), memory_), floats_of(x(1), memory_), floats_of(x(2), memory_), out(), made().C, x(1).W, x(2).W};
    in_rows(count(), 2 * bytes(), [&](int64_t first, int64_t last) { rows_.rotary(p, first, last); });
  }

  void multiply() const {
    const RowsOut to = out();
    ProductRun run = {place_, kernels_, rows_, stage_, *plan_.products[number_], {}, {}, nullptr, to.codes, to.floats, scratch()};
    for (size_t i = 0; i < std::min<size_t>(stage_.step.x.size(), 3); ++i) {
      run.sources[i] = &stage_of(i);
      run.x[i] = codes_of(x(i));
    }
    if (stage_.step.x.size() > 3) {
      run.mask = floats_of(x(3), memory_);
    }
    (stage_.step.does == Does::kMatMul ? run_matmul : run_attention)(run);
  }

  // Of an image, each channel is a line: less the mean, divided by the deviation.
  void instance_norm() const {
    const Placed& from = x(0);
    const Image codes = {codes_of(from), from.N, from.H, from.W, from.C, from.pitch(), from.image()};
    Image to = {codes_of(made()), 1, made().H, made().W, made().C, made().pitch(), made().image()};
    const MomentMemory<int64_t> memory(scratch(), from.N, from.C);
    moments(
        memory, from.N, from.H, from.C,
        [&](int64_t pieces, const auto& work) { in_rows(pieces, 2 * from.N * from.H * from.W * from.C, work); },
        [&](int64_t n, int64_t first, int64_t last, int64_t* sums, int64_t* squares) {
          rows_.moments({codes, n, sums, squares}, first, last);
        });
    for (int64_t n = 0; n < from.N; ++n) {
      const float* const factor = lines_of(memory, stage_, from, n, stage_of(0).scale, stage_.scale);
      const Image own = {codes.data + n * codes.image, 1, from.H, from.W, from.C, codes.row, codes.image};
      const Affine p = {own, to, stage_.codes, factor, factor + from.C, nullptr};
      in_rows(to.H, to.H * to.W * to.C, [&](int64_t first, int64_t last) { kernel_.affine(p, first, last); });
      to.data += to.image;
    }
  }

  const RowKernel& rows_;
};

}  // namespace

float* floats_of(const Placed& t, const Memory& memory) {
  if (t.in != kNone) {
    return const_cast<float*>(memory.inputs[static_cast<size_t>(t.in)]);
  }
  if (t.out != kNone) {
    return memory.outputs[static_cast<size_t>(t.out)];
  }
  return reinterpret_cast<float*>(memory.workspace + t.offset);
}

void run_row_stage(const std::vector<const RegionKernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan,
                   size_t number, const Memory& memory, const Place& place) {
  RowRunner(kernels, stages, plan, number, memory, place).run();
}

}  // namespace onnxq
