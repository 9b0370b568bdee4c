// Transposed convolutions. Outputs whose rows leave the same remainder by the stride, and whose columns do, are sums of
// the same weights and of pixels side by side: a convolution of stride 1, whose pixels lie between those of the others. So
// no product with a zero is computed, and nothing is added up in memory.

#ifndef ONNXQ_REGION_TRANSPOSED_H_
#define ONNXQ_REGION_TRANSPOSED_H_

#include <cstring>
#include <utility>

#include "stage.h"

namespace onnxq {

// Looks at the weight, [inputs, outputs of a group, y, x], and makes `stage.phases`, with all but their weights.
void shape_phases(Stage& stage, size_t number, const Tensor& weight);

// Which taps of the weight a phase has along an axis, in the order of the pixels that they meet; kNone alone where it has
// none: it makes zeros.
std::vector<int64_t> weight_taps(const Step& transposed, const Stage& phase, size_t axis);

// Rows and columns that a phase makes of those of the whole image.
std::pair<int64_t, int64_t> windows_of(const Stage& phase, const Step& transposed, int64_t H, int64_t W);

// Pixels around x that so many windows read: top, left, bottom, right.
std::array<int64_t, 4> pads_of(const Stage& phase, int64_t H, int64_t W, int64_t rows, int64_t columns);

// work(phase, offsets of its windows' chunks, rows, columns) for those that make pixels of an image of H by W.
template <typename Work>
void each_phase(const Stage& stage, const int64_t* offsets, int64_t H, int64_t W, const Work& work) {
  for (const Stage& phase : stage.phases) {
    const auto [rows, columns] = windows_of(phase, stage.step, H, W);
    if (rows != 0 && columns != 0) {
      work(phase, offsets, rows, columns);
    }
    offsets += phase.quads.size();
  }
}

// Where a phase's convolution, whose `x` is set, finds its windows: one for each pixel.
template <typename Problem>
void place_windows(Problem& c, const Stage& phase) {
  c.first = phase.origin[0] * c.x.row + phase.origin[1] * c.x.C;
  c.step_x = c.x.C;
  c.step_y = c.x.row;
}

// Memory that a step may take, however small its weight is.
constexpr int64_t kMostOfPhases = int64_t{1} << 30;

// The same with their weights: pack(phase, weight) is given each as [outputs, inputs of a group, y, x].
template <typename Number, typename Pack>
void make_phases(Stage& stage, size_t number, const Tensor& weight, const Number* data, const Pack& pack) {
  shape_phases(stage, number, weight);
  const Step& step = stage.step;
  const bool is_line = weight.shape.size() == 3;
  const int64_t group = step.group, outputs = stage.outputs / group, inputs = stage.inputs / group;
  const int64_t area = step.kernel[0] * step.kernel[1];
  int64_t taken = 0;
  for (Stage& phase : stage.phases) {
    const int64_t rows = phase.step.kernel[0], columns = phase.step.kernel[1];
    const std::vector<int64_t> taps_y = weight_taps(step, phase, 0), taps_x = weight_taps(step, phase, 1);
    std::vector<Number> plain(static_cast<size_t>(stage.outputs * inputs * rows * columns));
    for (int64_t y = 0; y < rows; ++y) {
      for (int64_t x = 0; x < columns; ++x) {
        const int64_t ky = taps_y[static_cast<size_t>(y)], kx = taps_x[static_cast<size_t>(x)];
        for (int64_t o = 0; ky != kNone && kx != kNone && o < stage.outputs; ++o) {
          for (int64_t i = 0; i < inputs; ++i) {
            const int64_t from = ((o / outputs * inputs + i) * outputs + o % outputs) * area + ky * step.kernel[1] + kx;
            std::memcpy(&plain[static_cast<size_t>(((o * inputs + i) * rows + y) * columns + x)], data + from, sizeof(Number));
          }
        }
      }
    }
    Tensor given = weight;
    given.data = plain.data();
    given.shape = is_line ? Dims{stage.outputs, inputs, columns} : Dims{stage.outputs, inputs, rows, columns};
    pack(phase, given);
    taken += phase.nbytes();
    if (taken > kMostOfPhases) {
      refuse_stage(number, "takes more memory than its weights may: its strides are too large");
    }
  }
}

}  // namespace onnxq

#endif  // ONNXQ_REGION_TRANSPOSED_H_
