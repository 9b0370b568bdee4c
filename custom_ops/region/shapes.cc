#include "shapes.h"

#include <algorithm>
#include <string>

#include "../abi/weight.h"

namespace onnxq {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 40, kMostMoved = int64_t{1} << 30;

}  // namespace

int64_t product(size_t number, std::initializer_list<int64_t> sizes) {
  int64_t all = 1;
  for (const int64_t size : sizes) {
    if (size != 0 && all > kMostBytes / size) {
      refuse_stage(number, "makes more bytes than any memory has");
    }
    all *= size;
  }
  return all;
}

void check_moves(const std::vector<Stage>& stages, const Plan& plan) {
  int64_t moved = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Placed& made = plan.tensors[i];
    if (moves_elements(stages[i].step.does) && !made.is_empty()) {
      moved += made.N * made.H * made.W;
    }
    if (moved > kMostMoved) {
      refuse_stage(i, "moves, together with those before it, more than 1073741824 pixels");
    }
  }
}

void same_pads(const Step& step, size_t axis, int64_t size, std::array<int64_t, 4>& pads) {
  const int64_t stride = step.strides[axis], reach = (step.kernel[axis] - 1) * step.dilations[axis] + 1;
  const int64_t all = std::max<int64_t>(0, ((size + stride - 1) / stride - 1) * stride + reach - size);
  pads[axis] = step.same == 1 ? all / 2 : all - all / 2;
  pads[axis + 2] = all - pads[axis];
}

int64_t windows(size_t number, int64_t size, int64_t before, int64_t behind, int64_t kernel, int64_t stride,
                int64_t dilation, bool ceil, bool pools) {
  const int64_t room = size + before + behind - ((kernel - 1) * dilation + 1);
  if (size < 1 || room <= (pools ? -stride : -1)) {
    refuse_stage(number, "has a window that is larger than its input");
  }
  int64_t count = (room + (ceil ? stride - 1 : 0)) / stride + 1;
  // A window that begins behind the input and its first pads is none.
  if (ceil && (count - 1) * stride >= size + before) {
    --count;
  }
  return count;
}

int64_t spread(size_t number, const Step& step, size_t axis, int64_t size) {
  const int64_t reach = (step.kernel[axis] - 1) * step.dilations[axis] + 1;
  const int64_t made = (size - 1) * step.strides[axis] + reach + step.output_padding[axis] - step.pads[axis] - step.pads[axis + 2];
  if (size < 1 || made < 1 || made > int64_t{1} << 30) {
    refuse_stage(number, "makes an image of a size that is none");
  }
  return made;
}

Dims dims(const Extent& t) {
  if (t.is_stack) {
    return t.rank == 3 ? Dims{t.N, t.W, t.C} : Dims{t.N, t.H, t.W, t.C};
  }
  return t.rank == 2 ? Dims{t.W, t.C} : t.rank == 3 ? Dims{t.N, t.C, t.W} : Dims{t.N, t.C, t.H, t.W};
}

Sizes sizes(const Extent& t) { return {{t.N, t.C, t.H, t.W}}; }
void set_sizes(Extent& t, const Sizes& sizes) {
  t.N = sizes[0];
  t.C = sizes[1];
  t.H = sizes[2];
  t.W = sizes[3];
}

Placed of_shape(size_t number, const Dims& shape, int64_t stack) {
  const size_t rank = shape.size();
  if (rank < 2 || rank > 4) {
    refuse_stage(number, "quantizes a tensor of shape " + text(shape) + ", whose rank is not 2, 3 or 4");
  }
  for (const int64_t size : shape) {
    product(number, {size});  // beside a size of 0, too, where the product of all says nothing
  }
  Placed made;
  made.rank = static_cast<int64_t>(rank);
  made.is_stack = stack && rank > 2;
  made.N = rank == 2 ? 1 : shape[0];
  if (rank == 2 || made.is_stack) {
    made.C = shape[rank - 1];
    made.H = rank == 4 ? shape[1] : 1;
    made.W = shape[rank - 2];
  } else {
    made.C = shape[1];
    made.H = rank == 4 ? shape[2] : 1;
    made.W = shape.back();
  }
  return made;
}

void binary_shape(size_t number, const Extent& other, Extent& made) {
  bool fits = made.rank == other.rank && made.is_stack == other.is_stack;
  const auto join = [&](int64_t& size, int64_t with) {
    fits = fits && (size == with || size == 1 || with == 1);
    size = size == 1 ? with : size;
  };
  join(made.N, other.N);
  join(made.H, other.H);
  join(made.W, other.W);
  join(made.C, other.C);
  if (!fits) {
    refuse_stage(number, "reads tensors whose shapes do not go together");
  }
}

}  // namespace onnxq
