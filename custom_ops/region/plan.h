// Where the tensors of a region lie, for inputs of given shapes. Made once a shape.

#ifndef ONNXQ_REGION_PLAN_H_
#define ONNXQ_REGION_PLAN_H_

#include <array>
#include <memory>
#include <vector>

#include "products.h"
#include "resize.h"

namespace onnxq {

// How large a tensor is. Of matrices, W is the number of rows; so it is of stacks of them, of three dimensions (N, W, C) or
// four (N, H, W, C).
struct Extent {
  int64_t rank = 0, N = 0, H = 0, W = 0, C = 0;
  bool is_stack = false;

  // Whether they lie as the definition orders them, whatever their number.
  bool is_rows() const { return rank == 2 || is_stack; }
  bool is_empty() const { return N == 0 || H == 0 || W == 0 || C == 0; }
};

// The tensor of one step. What is made of another takes its extent alone: where a tensor lies is its own.
struct Placed : Extent {
  int64_t width = 1;                      // bytes of an element
  int64_t top = 0, bottom = 0, side = 0;  // pixels around each image that hold the zero point, or 0
  int64_t behind = 0;                     // bytes behind the last one that may be read
  int64_t last = 0;                       // step that reads it last
  int64_t offset = 0, bytes = 0;          // in the workspace

  // Where it lies among the channels of what a later step joins: the number of that step, and its first channel there.
  int64_t within = kNone, channel = 0;
  int64_t readers = 0;

  // Of float32: the input or output of the node that it is, in the place of workspace.
  int64_t in = kNone, out = kNone;

  // All in bytes.
  int64_t pixel() const { return C * width; }
  int64_t pitch() const { return (W + side) * pixel(); }
  int64_t image() const { return (top + H + bottom) * pitch(); }
  int64_t first() const { return top * pitch() + side * pixel(); }
  bool has_margin() const { return top || bottom || side; }
};

// Whether images of one column, H × W, are made of `x`, in which nothing is between rows: they are taken for one row then, of
// which pixels are computed together.
inline bool is_column(int64_t H, int64_t W, const Placed& x) { return W == 1 && H > 1 && x.side == 0; }

// Of a convolution that is computed so, bytes of its transformed weights and of what a task needs, and for how many tasks
// that is there at once; else zeros.
struct Winograd {
  int64_t weight = 0, scratch = 0, parts = 0;
  int64_t bytes() const { return weight + parts * scratch; }
};

struct Plan {
  std::vector<Dims> inputs, outputs;  // shapes; of inputs that no step reads none
  std::vector<Placed> tensors;        // of each step
  std::vector<std::vector<int64_t>> offsets;  // Conv::offsets of each step
  std::vector<std::array<int64_t, 4>> pads;   // of each step: top, left, bottom, right
  std::vector<Moves> moves;                   // of each step
  std::vector<Taps> taps;                     // of each step
  // Of each sum or product of two tensors, the convolution that is computed with it, as nobody else reads its codes; of
  // that, the other one; else none.
  std::vector<int64_t> joins;
  std::vector<std::shared_ptr<const Products>> products;  // of each step, where it multiplies tensors
  std::vector<Placed> scratch;                            // memory that each step has for itself
  std::vector<Winograd> winograd;  // of each step, or empty
  int64_t workspace = 0;
  int64_t shared = 0;  // where in it the memory begins that convolutions share

  const Winograd* winograd_of(size_t step) const {
    return step < winograd.size() && winograd[step].parts ? &winograd[step] : nullptr;
  }
};

// Throws Refusal where the inputs do not fit.
Plan make_plan(const std::vector<Stage>& stages, const std::vector<Dims>& inputs, size_t outputs, Element element);

}  // namespace onnxq

#endif  // ONNXQ_REGION_PLAN_H_
