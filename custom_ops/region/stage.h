// A step together with its constants: checked, and packed as kernels read them.

#ifndef ONNXQ_REGION_STAGE_H_
#define ONNXQ_REGION_STAGE_H_

#include <vector>

#include "../abi/op.h"
#include "bf16_kernel.h"
#include "steps.h"

namespace onnxq {

// As the cache has them: what kernels read begins with one.
struct alignas(64) Line {
  uint8_t bytes[64];
};

using Dims = std::vector<int64_t>;

// Small groups of a convolution that are computed as one, whose weights from one of them to another are zeros.
struct Merged {
  int64_t groups = 1, inputs = 0, outputs = 0;  // how many are one; channels of each of them

  bool is_zero(int64_t output, int64_t input) const { return groups > 1 && output / outputs % groups != input / inputs; }
  int64_t inside(int64_t input) const { return groups > 1 ? input % inputs : input; }
};

struct Stage {
  Step step;
  // Of the tensor that it makes.
  float scale = 1.0f;
  Codes codes{0, 0, 255};

  // Convolutions and products.
  int64_t inputs = 0, outputs = 0, blocks = 0;  // channels, all groups; blocks of a group
  bool is_depthwise = false, fits_squares = false;  // winograd.h
  Merged merged;
  std::vector<int8_t> weight, dot_weight;
  std::vector<int32_t> bias, dot_bias;
  std::vector<float> scales, dot_scales;
  std::vector<uint8_t> quads;  // of each chunk
  int64_t rank = 0;
  // Of a transposed convolution, convolutions that make its pixels in turns (transposed.h); of one of these, the pixels it
  // makes, from `remainder` on, and the first pixel of x that the window of the first one has: y, x.
  // Of a convolution, one that computes pixels together (pack.h), or none.
  std::vector<Stage> phases;
  std::array<int64_t, 2> remainder{}, origin{};

  std::vector<std::vector<uint8_t>> tables;  // of each source; none: copied; for a table step one each channel, or one
  Dims sizes;                                // that Resize asks for
  std::vector<float> ratios;                 // or by which it changes them
  Dims shape;                                // of a constant
  std::vector<uint8_t> constant;             // in the order of the definition
  Binary binary{};

  // Of each channel: what codes, or numbers of bf16, are multiplied with, and what is added.
  // Of bf16: packed weights, or `factors` of depthwise convolutions; biases in the same order.
  std::vector<Line> lines, dense_lines;  // NumberConv::dense_weight
  std::vector<float> factors, starts;
  std::vector<float> knees;  // Affine::knee
  Act act{};

  // Bytes of all that grows with constants. Every plan has a number for each quad.
  int64_t nbytes() const {
    const size_t numbers = bias.size() + dot_bias.size() + scales.size() + dot_scales.size() + factors.size() + starts.size() + knees.size();
    int64_t inside = 0;
    for (const Stage& phase : phases) {
      inside += phase.nbytes();
    }
    size_t copied = constant.size() + 8 * (sizes.size() + shape.size()) + 4 * ratios.size();
    for (const std::vector<uint8_t>& table : tables) {
      copied += table.size();
    }
    return inside + static_cast<int64_t>(weight.size() + dot_weight.size() + 4 * numbers + (lines.size() + dense_lines.size()) * sizeof(Line) +
                                128 * quads.size() + copied);
  }
};

// Constant inputs by number; of type kUndefined where an input is no constant.
using Constants = std::vector<Tensor>;

// Throws Refusal. `before`: what the stages before it are.
Stage make_stage(const Step& step, const std::vector<Stage>& before, const Constants& constants,
                 const RegionKernel& simple);
Stage make_bf16_stage(const Step& step, const std::vector<Stage>& before, const Constants& constants);

// Reads kernel and channels of a convolution off its weight, whose elements are `width` bytes where it is packed. Returns
// how many weights an output has in the file. `stage.step.group` counts groups as they are computed.
int64_t shape_conv(Stage& stage, size_t number, const Tensor& weight, int64_t width);

// Pieces of a window that lie in one place: (row, column, pixels).
struct Piece {
  int64_t y, x, pixels;
};
std::vector<Piece> pieces(const Step& step);

[[noreturn]] void refuse_stage(size_t number, const std::string& reason);

}  // namespace onnxq

#endif  // ONNXQ_REGION_STAGE_H_
