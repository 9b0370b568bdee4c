#include "moves.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "resize.h"

namespace onnxq {
namespace {

constexpr int64_t kNoEnd = 1 << 24;           // as numbers of steps: further than any size
constexpr int64_t kMostPicked = int64_t{1} << 31;
constexpr int64_t kShortRun = 8;              // elements, below which single ones are picked

// By axis, the index in x of each index in y.
using Maps = std::array<std::vector<int64_t>, 4>;

struct Range {
  int64_t start, step, count;
};

Range range_of(const Step& step, size_t axis, int64_t size) {
  const int64_t by = step.steps[axis];
  const auto bounded = [&](int64_t at, int64_t low, int64_t high) {
    at = at >= kNoEnd ? INT64_MAX / 2 : at <= -kNoEnd ? INT64_MIN / 2 : at;
    return std::min(std::max(at < 0 ? at + size : at, low), high);
  };
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const int64_t start = bounded(step.starts[axis], 0, high), stop = bounded(step.stops[axis], low, high);
  const int64_t room = by > 0 ? stop - start : start - stop, each = by > 0 ? by : -by;
  return {start, by, room > 0 ? (room + each - 1) / each : 0};
}

int64_t padded_index(const Step& step, size_t axis, int64_t i, int64_t size) {
  i -= step.before[axis];
  if (i >= 0 && i < size) {
    return i;
  }
  constexpr int64_t kConstant = 0, kReflect = 1;
  if (step.mode == kConstant) {
    return kFill;
  }
  if (step.mode == kReflect) {
    return i < 0 ? -i : 2 * (size - 1) - i;
  }
  return i < 0 ? 0 : size - 1;
}

Maps maps_of(const Stage& stage, const Layout& x, const Layout& y) {
  const Step& step = stage.step;
  Maps maps;
  for (size_t axis = 0; axis < 4; ++axis) {
    const int64_t from = x.sizes[axis], to = y.sizes[axis];
    maps[axis].resize(static_cast<size_t>(to));
    const Axis along = axis_of(stage, axis, x, y);
    const Range range = step.does == Does::kSlice ? range_of(step, axis, from) : Range{};
    for (int64_t i = 0; i < to; ++i) {
      int64_t& found = maps[axis][static_cast<size_t>(i)];
      found = step.does == Does::kSlice   ? range.start + i * range.step
              : step.does == Does::kPad   ? padded_index(step, axis, i, from)
                                          : nearest_index(step, i, along);
    }
  }
  return maps;
}

[[noreturn]] void refuse_runs() {
  throw Refusal("attribute steps moves more than " + std::to_string(kMostRuns) + " pieces, each to another place");
}

// No more than `most` of them.
void add_run(std::vector<Run>& runs, int64_t from, int64_t to, int64_t size, int64_t most) {
  if (!runs.empty()) {
    Run& last = runs.back();
    const bool goes_on = from == kFill ? last.from == kFill : last.from != kFill && last.from + last.size == from;
    if (goes_on && last.to + last.size == to) {
      last.size += size;
      return;
    }
  }
  if (static_cast<int64_t>(runs.size()) >= most) {
    refuse_runs();
  }
  runs.push_back({from, to, size});
}

std::vector<Run> runs_of(const Maps& maps, const Layout& x, const Layout& y, int64_t most) {
  std::vector<Run> channels, runs;
  for (size_t c = 0; c < maps[1].size(); ++c) {
    add_run(channels, maps[1][c], static_cast<int64_t>(c), 1, most);
  }
  for (int64_t n = 0; n < y.sizes[0]; ++n) {
    for (int64_t row = 0; row < y.sizes[2]; ++row) {
      for (int64_t column = 0; column < y.sizes[3]; ++column) {
        const int64_t from_n = maps[0][static_cast<size_t>(n)], from_y = maps[2][static_cast<size_t>(row)];
        const int64_t from_x = maps[3][static_cast<size_t>(column)];
        const bool is_filled = from_n == kFill || from_y == kFill || from_x == kFill;
        const int64_t from = from_n * x.image + from_y * x.row + from_x * x.sizes[1];
        const int64_t to = n * y.image + row * y.row + column * y.sizes[1];
        for (const Run& run : channels) {
          add_run(runs, is_filled || run.from == kFill ? kFill : from + run.from, to + run.to, run.size, most);
        }
      }
    }
  }
  return runs;
}

Dims dims_of(const Layout& t) {
  const Sizes& s = t.sizes;
  if (t.is_rows && t.rank > 2) {
    return t.rank == 3 ? Dims{s[0], s[3], s[1]} : Dims{s[0], s[2], s[3], s[1]};
  }
  return t.rank == 2 ? Dims{s[3], s[1]} : t.rank == 3 ? Dims{s[0], s[1], s[3]} : Dims{s[0], s[1], s[2], s[3]};
}

// Calls visit(number in the order of the definition, offset) for every element of a tensor, in the order of its memory.
template <typename Visit>
void visit(const Layout& t, const Visit& each) {
  const auto [N, C, H, W] = t.sizes;
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t y = 0; y < H; ++y) {
      for (int64_t x = 0; x < W; ++x) {
        for (int64_t c = 0; c < C; ++c) {
          const int64_t number = t.is_rows ? ((n * H + y) * W + x) * C + c : ((n * C + c) * H + y) * W + x;
          each(number, n * t.image + y * t.row + x * C + c);
        }
      }
    }
  }
}

int64_t count(const Dims& dims) { return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>()); }

// As Reshape takes dimensions: 0 as in x, -1 what is left.
Dims reshaped(size_t number, const Dims& x, const std::vector<int64_t>& asked) {
  Dims made = asked;
  int64_t open = -1, known = 1;
  for (size_t i = 0; i < made.size(); ++i) {
    if (made[i] == 0 && i >= x.size()) {
      refuse_stage(number, "copies a dimension that its input does not have");
    }
    made[i] = made[i] == 0 ? x[i] : made[i];
    if (made[i] == -1 && open >= 0) {
      refuse_stage(number, "leaves two dimensions open");
    }
    open = made[i] == -1 ? static_cast<int64_t>(i) : open;
    if (made[i] > 0 && known > (int64_t{1} << 40) / made[i]) {
      refuse_stage(number, "makes a shape that does not hold its input");
    }
    known *= made[i] == -1 ? 1 : made[i];
  }
  const int64_t all = count(x);
  if (open >= 0) {
    made[static_cast<size_t>(open)] = known ? all / known : 0;
  }
  if (count(made) != all) {
    refuse_stage(number, "makes a shape that does not hold its input");
  }
  return made;
}

Dims transposed(size_t number, const Dims& x, const std::vector<int64_t>& perm) {
  Dims made;
  std::vector<bool> seen(x.size());
  for (const int64_t axis : perm) {
    if (axis >= static_cast<int64_t>(x.size()) || seen[static_cast<size_t>(axis)]) {
      break;
    }
    seen[static_cast<size_t>(axis)] = true;
    made.push_back(x[static_cast<size_t>(axis)]);
  }
  if (made.size() != x.size() || perm.size() != x.size()) {
    refuse_stage(number, "transposes by what is no order of its dimensions");
  }
  return made;
}

Dims split(size_t number, const Step& step, const Dims& x) {
  return step.split.empty() ? x : reshaped(number, x, step.split);
}

// DepthToSpace and SpaceToDepth as Reshape, Transpose and Reshape.
Step unfolded(size_t number, const Step& given, const Dims& x) {
  Step step = given;
  const int64_t b = step.block;
  if (b == 0) {
    return step;
  }
  if (x.size() != 4) {
    refuse_stage(number, "moves blocks of what is no image");
  }
  const int64_t area = b * b;
  if (step.to_depth) {
    step.split = {x[0], x[1], x[2] / b, b, x[3] / b, b};
    step.perm = {0, 3, 5, 1, 2, 4};
    step.shape = {x[0], x[1] * area, x[2] / b, x[3] / b};
  } else {
    const bool is_crd = step.mode != 0;
    step.split = is_crd ? Dims{x[0], x[1] / area, b, b, x[2], x[3]} : Dims{x[0], b, b, x[1] / area, x[2], x[3]};
    step.perm = is_crd ? Dims{0, 1, 4, 2, 5, 3} : Dims{0, 3, 4, 1, 5, 2};
    step.shape = {x[0], x[1] / area, x[2] * b, x[3] * b};
  }
  if (count(step.split) != count(x)) {
    refuse_stage(number, "moves blocks that its input does not consist of");
  }
  return step;
}

Moves arrange(const Step& given, const Layout& x, const Layout& y) {
  const Step step = unfolded(0, given, dims_of(x));
  if (x.image >= kMostPicked / x.sizes[0]) {
    throw Refusal("attribute steps arranges more than 2147483647 elements, pads included");
  }
  const Dims dims = split(0, step, dims_of(x));
  const int64_t all = count(dims);
  std::vector<int32_t> from(static_cast<size_t>(all)), turned(static_cast<size_t>(all));
  visit(x, [&](int64_t number, int64_t at) { from[static_cast<size_t>(number)] = static_cast<int32_t>(at); });
  if (step.perm.empty()) {
    turned = from;
  } else {
    std::vector<int64_t> strides(dims.size(), 1), at(dims.size(), 0);
    for (size_t i = dims.size(); i-- > 1;) {
      strides[i - 1] = strides[i] * dims[i];
    }
    for (int64_t number = 0; number < all; ++number) {
      int64_t source = 0;
      for (size_t i = 0; i < dims.size(); ++i) {
        source += at[i] * strides[static_cast<size_t>(step.perm[i])];
      }
      turned[static_cast<size_t>(number)] = from[static_cast<size_t>(source)];
      for (size_t i = dims.size(); i-- > 0;) {
        if (++at[i] < dims[static_cast<size_t>(step.perm[i])]) {
          break;
        }
        at[i] = 0;
      }
    }
  }
  Moves moves;
  moves.picks.reserve(static_cast<size_t>(all));
  const auto is_in_runs = [&] { return static_cast<int64_t>(moves.runs.size()) * kShortRun <= all; };
  visit(y, [&](int64_t number, int64_t to) {
    const int64_t source = turned[static_cast<size_t>(number)];
    moves.picks.push_back(static_cast<int32_t>(source));
    if (is_in_runs()) {
      add_run(moves.runs, source, to, 1, all);
    }
  });
  if (is_in_runs()) {
    moves.picks.clear();
    return moves;
  }
  moves.runs.clear();
  const int64_t C = y.sizes[1];
  bool is_alike = x.sizes == y.sizes;
  int64_t i = 0;
  visit(y, [&](int64_t, int64_t to) {
    // The place of the pixel in x, whose rows may be of another length.
    const int64_t n = to / y.image, row = to % y.image / y.row, column = to % y.image % y.row / C;
    const int64_t pixel = n * x.image + row * x.row + column * C;
    is_alike = is_alike && moves.picks[static_cast<size_t>(i)] - pixel == moves.picks[static_cast<size_t>(i % C)];
    ++i;
  });
  if (is_alike) {
    moves.picks.resize(static_cast<size_t>(C));
    moves.of_pixel = true;
  }
  return moves;
}

}  // namespace

Sizes sliced(size_t number, const Step& step, const Sizes& x) {
  Sizes made{};
  for (size_t axis = 0; axis < 4; ++axis) {
    if (step.steps[axis] == 0) {
      refuse_stage(number, "slices in steps of 0");
    }
    made[axis] = range_of(step, axis, x[axis]).count;
  }
  return made;
}

Sizes padded(size_t number, const Step& step, const Sizes& x) {
  Sizes made{};
  for (size_t axis = 0; axis < 4; ++axis) {
    const int64_t before = step.before[axis], behind = step.behind[axis], size = x[axis];
    const bool reflects_all = before < size && behind < size;
    made[axis] = before + size + behind;
    const bool is_none = before == 0 && behind == 0;
    if (made[axis] < 0 || (!is_none && (size == 0 || (step.mode == 1 && !reflects_all)))) {
      refuse_stage(number, "pads by more than its input allows");
    }
    // Cropped before and padded behind, or the other way round, by more than all: nothing to repeat is left.
    if (before < -size || behind < -size) {
      refuse_stage(number, "pads by more than its input allows");
    }
  }
  return made;
}

Dims arranged(size_t number, const Step& given, const Dims& x) {
  const Step step = unfolded(number, given, x);
  Dims dims = split(number, step, x);
  if (!step.perm.empty()) {
    dims = transposed(number, dims, step.perm);
  }
  dims = step.shape.empty() ? dims : reshaped(number, dims, step.shape);
  if (dims.size() < 2 || dims.size() > 4) {
    refuse_stage(number, "makes a tensor whose rank is not 2, 3 or 4");
  }
  if (count(dims) >= kMostPicked) {
    refuse_stage(number, "arranges more than 2147483647 elements");
  }
  return dims;
}

Moves moves_of(const Stage& stage, const Layout& x, const Layout& y, int64_t& runs_left) {
  const bool arranges = stage.step.does == Does::kArrange;
  // As runs or as picks, which take less: a piece for each of a short run's elements.
  if (arranges && count(dims_of(y)) / kShortRun > runs_left) {
    refuse_runs();
  }
  Moves made = arranges ? arrange(stage.step, x, y) : Moves{runs_of(maps_of(stage, x, y), x, y, runs_left), {}, false};
  runs_left -= static_cast<int64_t>(made.runs.size() + made.picks.size() / kShortRun);
  return made;
}

}  // namespace onnxq
