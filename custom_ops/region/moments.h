// Means and deviations of the channels of an image, from sums of pieces of it.

#ifndef ONNXQ_REGION_MOMENTS_H_
#define ONNXQ_REGION_MOMENTS_H_

#include <algorithm>
#include <cmath>
#include <cstring>

#include "plan.h"

namespace onnxq {

// Into how many pieces an image is cut whose numbers are added up.
inline int64_t pieces_of_moments(int64_t rows) { return std::min<int64_t>(rows, 4 * threads()); }

// Memory that a normalization of channels has for itself. Sums are of numbers, and behind them of their squares.
template <typename Sum>
struct MomentMemory {
  Sum* sums;    // [images][2][channels]
  float* lines;  // [images][2][channels]: factors and starts
  Sum* parts;   // [images][pieces][2][channels]

  MomentMemory(uint8_t* memory, int64_t images, int64_t channels)
      : sums(reinterpret_cast<Sum*>(memory)),
        lines(reinterpret_cast<float*>(sums + 2 * images * channels)),
        parts(sums + 3 * images * channels) {
    static_assert(sizeof(Sum) == 2 * sizeof(float), "or parts would lie where lines do");
  }
  static int64_t bytes_of_channel(int64_t pieces) { return static_cast<int64_t>(sizeof(Sum)) * (3 + 2 * pieces); }
};

// Sums of all images. add(n, first row, last row, sums, squares) adds a piece of image n; work(pieces, body) runs
// body(first, last) for all pieces.
template <typename Sum, typename Work, typename Add>
void moments(const MomentMemory<Sum>& memory, int64_t images, int64_t rows, int64_t channels, const Work& work,
             const Add& add) {
  const int64_t pieces = pieces_of_moments(rows), both = 2 * channels;
  std::memset(memory.parts, 0, static_cast<size_t>(images * pieces * both) * sizeof(Sum));
  work(images * pieces, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      Sum* const own = memory.parts + i * both;
      const int64_t piece = i % pieces;
      add(i / pieces, rows * piece / pieces, rows * (piece + 1) / pieces, own, own + channels);
    }
  });
  for (int64_t i = 0; i < images * both; ++i) {
    memory.sums[i] = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      memory.sums[i] += memory.parts[(i / both * pieces + piece) * both + i % both];
    }
  }
}

// Factors and, behind them, starts: number · factor + start is what the step makes of a number of image n. Numbers of x are in
// steps of `scale`, those that are made in steps of `made`.
template <typename Sum>
const float* lines_of(const MomentMemory<Sum>& memory, const Stage& stage, const Placed& x, int64_t n, double scale,
                      double made) {
  const int64_t C = x.C, size = C / stage.step.group;
  const Sum* const sums = memory.sums + 2 * n * C;
  float* const factor = memory.lines + 2 * n * C;
  const double count = static_cast<double>(x.H * x.W * size);
  for (int64_t group = 0; group < C; group += size) {
    double sum = 0.0, squares = 0.0;
    for (int64_t c = group; c < group + size; ++c) {
      sum += static_cast<double>(sums[c]);
      squares += static_cast<double>(sums[C + c]);
    }
    const double mean = sum / count, variance = std::max(squares / count - mean * mean, 0.0) * scale * scale;
    const double slope = scale / std::sqrt(variance + static_cast<double>(stage.epsilon)) / made;
    for (int64_t c = group; c < group + size; ++c) {
      const double weight = stage.factors[static_cast<size_t>(c)] * slope;
      factor[c] = static_cast<float>(weight);
      factor[C + c] = static_cast<float>(stage.starts[static_cast<size_t>(c)] / made - mean * weight);
    }
  }
  return factor;
}

}  // namespace onnxq

#endif  // ONNXQ_REGION_MOMENTS_H_
