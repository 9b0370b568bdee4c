// Steps that only move codes or numbers: Slice, Pad, Resize to the nearest pixel (resize.h), Transpose and Reshape. Where each of them
// comes from is found once for inputs of given shapes. All distances are counted in elements.

#ifndef ONNXQ_REGION_MOVES_H_
#define ONNXQ_REGION_MOVES_H_

#include <array>
#include <vector>

#include "stage.h"

namespace onnxq {

// Elements that go from one place to another, counted from the first pixels; kFill: the zero point goes there.
struct Run {
  int64_t from, to, size;
};
constexpr int64_t kFill = -1;

struct Moves {
  std::vector<Run> runs;
  // Or, where hardly any two elements stay together: of each element of y, by pixels, that of x. Of one pixel, where all
  // pixels are alike and stay where they are.
  std::vector<int32_t> picks;
  bool of_pixel = false;
};

// A tensor as steps see it: n, c, y, x. Of matrices, x are the rows.
using Sizes = std::array<int64_t, 4>;

// Where it lies: from one image and row to the next. Pixels lie side by side. `is_rows`: in the order of the definition.
struct Layout {
  Sizes sizes;
  int64_t rank, image, row;
  bool is_rows;
};

// Shapes that steps make. Throws Refusal.
Sizes sliced(size_t number, const Step& step, const Sizes& x);
Sizes padded(size_t number, const Step& step, const Sizes& x);
Dims arranged(size_t number, const Step& step, const Dims& x);

// Of all moves of a plan together, how many runs they may consist of: what is kept of a plan is a small part of what it moves
// but where single elements change places.
constexpr int64_t kMostRuns = int64_t{1} << 28;

// How the elements of x become those of y. Nothing is empty. Counts `runs_left` down. Throws Refusal.
Moves moves_of(const Stage& stage, const Layout& x, const Layout& y, int64_t& runs_left);

}  // namespace onnxq

#endif  // ONNXQ_REGION_MOVES_H_
