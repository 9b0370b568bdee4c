#include "resize.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace onnxq {
namespace {

// Of an axis of the tensor, its number as the operator counts; none, where it has no such axis.
int64_t axis_in(int64_t rank, size_t axis) {
  constexpr int64_t kPlaces[3][4] = {{-1, 1, -1, 0}, {0, 1, -1, 2}, {0, 1, 2, 3}};
  return kPlaces[rank - 2][axis];
}

// Where pixel i of y lies in x: coordinate_transformation_mode.
float coordinate(const Step& step, int64_t i, const Axis& along) {
  enum { kHalfPixel, kAsymmetric, kAlignCorners, kTorchHalfPixel };
  const float at = static_cast<float>(i);
  if (along.ratio == 1.0f) {
    return at;
  }
  if (step.coordinates == kAsymmetric) {
    return at / along.ratio;
  }
  if (step.coordinates == kAlignCorners) {
    return along.to == 1 ? 0.0f : at * static_cast<float>(along.from - 1) / static_cast<float>(along.to - 1);
  }
  return step.coordinates == kTorchHalfPixel && along.to <= 1 ? 0.0f : (at + 0.5f) / along.ratio - 0.5f;
}

// The pixels beside a coordinate, of which the nearer one weighs more. Behind the last pixel, and before the first one,
// there is only that. Weights as onnxruntime's float32 kernel has them, so that even ties are the same.
Tap tap_at(float coordinate, int64_t size) {
  const float at = std::max(0.0f, std::min(coordinate, static_cast<float>(size - 1)));
  const int64_t first = std::min(static_cast<int64_t>(at), size - 1), second = std::min(first + 1, size - 1);
  if (first == second) {
    return {first, second, 0.5f, 0.5f};
  }
  return {first, second, std::fabs(at - static_cast<float>(second)), std::fabs(at - static_cast<float>(first))};
}

std::vector<Tap> taps_along(const Step& step, const Axis& along) {
  std::vector<Tap> found;
  found.reserve(static_cast<size_t>(along.to));
  for (int64_t i = 0; i < along.to; ++i) {
    found.push_back(tap_at(coordinate(step, i, along), along.from));
  }
  return found;
}

}  // namespace

Axis axis_of(const Stage& stage, size_t axis, const Layout& x, const Layout& y) {
  const int64_t from = x.sizes[axis], to = y.sizes[axis], number = axis_in(x.rank, axis);
  const bool is_resized = stage.step.does == Does::kResize || stage.step.does == Does::kResizeLinear;
  const float ratio = number < 0 || !is_resized ? 1.0f
                      : stage.ratios.empty()    ? static_cast<float>(to) / static_cast<float>(from)
                                                : stage.ratios[static_cast<size_t>(number)];
  return {from, to, ratio};
}

int64_t nearest_index(const Step& step, int64_t i, const Axis& along) {
  enum { kPreferFloor, kPreferCeil, kFloor, kCeil };
  if (along.ratio == 1.0f) {  // of sizes that float32 cannot tell apart, too
    return std::min(i, along.from - 1);
  }
  const float x = coordinate(step, i, along);
  const bool is_middle = x == std::floor(x) + 0.5f;
  const float rounded = step.nearest == kFloor                        ? std::floor(x)
                        : step.nearest == kCeil                       ? std::ceil(x)
                        : step.nearest == kPreferFloor && is_middle   ? std::floor(x)
                                                                      : std::round(x);
  return std::min(std::max<int64_t>(static_cast<int64_t>(rounded), 0), along.from - 1);
}

Taps taps_of(const Stage& stage, const Layout& x, const Layout& y) {
  return {taps_along(stage.step, axis_of(stage, 2, x, y)), taps_along(stage.step, axis_of(stage, 3, x, y))};
}

Sizes resized(size_t number, const Stage& stage, const Sizes& x, int64_t rank) {
  Sizes made = x;
  const bool by_sizes = !stage.sizes.empty(), is_linear = stage.step.does == Does::kResizeLinear;
  if (static_cast<int64_t>(by_sizes ? stage.sizes.size() : stage.ratios.size()) != rank) {
    refuse_stage(number, "resizes a tensor of rank " + std::to_string(rank) + " by another number of sizes");
  }
  if (is_linear && rank < 3) {
    refuse_stage(number, "interpolates between pixels of what is no image");
  }
  for (size_t axis = 0; axis < 4; ++axis) {
    const int64_t at = axis_in(rank, axis);
    if (at < 0) {
      continue;
    }
    const float ratio = by_sizes ? 1.0f : stage.ratios[static_cast<size_t>(at)];
    const float size = std::floor(static_cast<float>(x[axis]) * ratio);
    if (!(ratio > 0.0f) || !(size < 1e9f)) {
      refuse_stage(number, "resizes to a size that is none");
    }
    made[axis] = by_sizes ? stage.sizes[static_cast<size_t>(at)] : static_cast<int64_t>(size);
    if (made[axis] < 0 || made[axis] > (int64_t{1} << 30) || (made[axis] > 0 && x[axis] == 0)) {
      refuse_stage(number, "resizes to a size that is none");
    }
    if (is_linear && axis < 2 && (made[axis] != x[axis] || ratio != 1.0f)) {
      refuse_stage(number, "interpolates between images or channels");
    }
  }
  return made;
}

}  // namespace onnxq
