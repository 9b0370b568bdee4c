#include "transposed.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "../abi/weight.h"

namespace onnxq {
namespace {

constexpr int64_t kMostPhases = 1024, kMostTaps = 1 << 15, kMostChannels = 1 << 24;

// Along one axis: taps `last`, last − period, … of the weight, of which the phase has `count`. The first one that it reads
// is the last of the weight, as that meets the first pixel.
struct Along {
  int64_t count, last, period, origin;
};

// Output r + q · stride is the sum of pixels i and taps k with i · stride + k · dilation = r + q · stride + pad.
Along along(const Step& step, size_t axis, int64_t r) {
  const int64_t stride = step.strides[axis], dilation = step.dilations[axis], pad = step.pads[axis];
  Along found{0, 0, stride / std::gcd(stride, dilation), 0};
  for (int64_t k = 0; k < step.kernel[axis]; ++k) {
    if ((r + pad - k * dilation) % stride == 0) {
      ++found.count;
      found.last = k;
      found.origin = (r + pad - k * dilation) / stride;
    }
  }
  return found;
}

}  // namespace

void shape_phases(Stage& stage, size_t number, const Tensor& weight) {
  Step& step = stage.step;
  const bool is_line = weight.shape.size() == 3;
  if (weight.shape.size() != 4 && !is_line) {
    refuse_stage(number, "has a weight of rank " + std::to_string(weight.shape.size()) + ", not 3 or 4");
  }
  const int64_t kernel_y = is_line ? 1 : weight.shape[2], kernel_x = weight.shape.back();
  stage.inputs = weight.shape[0];
  if (weight.size() < 1 || stage.inputs % step.group || stage.inputs > kMostChannels || kernel_y > kMostTaps ||
      kernel_x > kMostTaps || kernel_y * kernel_x > kMostTaps || weight.shape[1] > kMostChannels / step.group) {
    refuse_stage(number, "has a weight of shape " + text(weight.shape) + ", which no transposed convolution of " +
                             std::to_string(step.group) + " groups here has");
  }
  if (step.strides[0] * step.strides[1] > kMostPhases) {
    refuse_stage(number, "has strides of more than 1024 pixels");
  }
  stage.outputs = weight.shape[1] * step.group;
  stage.rank = static_cast<int64_t>(weight.shape.size());
  step.kernel = {{kernel_y, kernel_x}};
  for (int64_t y = 0; y < step.strides[0]; ++y) {
    for (int64_t x = 0; x < step.strides[1]; ++x) {
      Stage phase;
      phase.step = step;
      phase.scale = stage.scale;
      phase.codes = stage.codes;
      phase.act = stage.act;
      phase.remainder = {{y, x}};
      for (size_t axis = 0; axis < 2; ++axis) {
        const Along found = along(step, axis, phase.remainder[axis]);
        phase.step.kernel[axis] = std::max<int64_t>(1, found.count);
        phase.step.strides[axis] = 1;
        phase.step.dilations[axis] = step.dilations[axis] / std::gcd(step.strides[axis], step.dilations[axis]);
        phase.origin[axis] = found.origin;
      }
      stage.phases.push_back(phase);
    }
  }
}

std::vector<int64_t> weight_taps(const Step& transposed, const Stage& phase, size_t axis) {
  const Along found = along(transposed, axis, phase.remainder[axis]);
  std::vector<int64_t> taps;
  for (int64_t t = 0; t < found.count; ++t) {
    taps.push_back(found.last - t * found.period);
  }
  return found.count ? taps : std::vector<int64_t>{kNone};
}

std::pair<int64_t, int64_t> windows_of(const Stage& phase, const Step& transposed, int64_t H, int64_t W) {
  const auto count = [&](size_t axis, int64_t size) {
    const int64_t stride = transposed.strides[axis];
    return std::max<int64_t>(0, (size - phase.remainder[axis] + stride - 1) / stride);
  };
  return {count(0, H), count(1, W)};
}

std::array<int64_t, 4> pads_of(const Stage& phase, int64_t H, int64_t W, int64_t rows, int64_t columns) {
  const Step& step = phase.step;
  const auto behind = [&](size_t axis, int64_t size, int64_t windows) {
    const int64_t last = windows - 1 + phase.origin[axis] + (step.kernel[axis] - 1) * step.dilations[axis];
    return std::max<int64_t>(0, last - (size - 1));
  };
  return {{std::max<int64_t>(0, -phase.origin[0]), std::max<int64_t>(0, -phase.origin[1]), behind(0, H, rows),
           behind(1, W, columns)}};
}

}  // namespace onnxq
