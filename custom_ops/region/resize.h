// Resize: where the pixels of y lie in x. All arithmetic is ONNX's, in float32.

#ifndef ONNXQ_REGION_RESIZE_H_
#define ONNXQ_REGION_RESIZE_H_

#include <vector>

#include "moves.h"

namespace onnxq {

// An axis of x and y: its sizes, and by what it is resized.
struct Axis {
  int64_t from, to;
  float ratio;
};
Axis axis_of(const Stage& stage, size_t axis, const Layout& x, const Layout& y);

// As its coordinate_transformation_mode and nearest_mode say.
int64_t nearest_index(const Step& step, int64_t i, const Axis& along);

// Between which rows and columns of x those of y lie.
struct Taps {
  std::vector<Tap> rows, columns;
};
Taps taps_of(const Stage& stage, const Layout& x, const Layout& y);

// The shape that a step makes, to the nearest pixels or between pixels. Throws Refusal.
Sizes resized(size_t number, const Stage& stage, const Sizes& x, int64_t rank);

}  // namespace onnxq

#endif  // ONNXQ_REGION_RESIZE_H_
