#include "stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "../abi/weight.h"
#include "pack.h"
#include "row_stage.h"
#include "transposed.h"

namespace onnxq {

using namespace ort;

namespace {

constexpr int64_t kMostChannels = 1 << 24, kMostTaps = 1 << 15;

// The code of a number, as QuantizeLinear makes it.
int32_t code_of(float value, float scale, int32_t zero) {
  const float rounded = std::nearbyint(value / scale) + static_cast<float>(zero);
  return rounded > 0.0f ? (rounded < 255.0f ? static_cast<int32_t>(rounded) : 255) : 0;
}

// Codes that an activation behind the operator leaves.
void bound(Stage& stage, const Reader& read) {
  const auto limit = [&](int64_t input) {
    const float value = read.number<float>(input, kFloat, "bound");
    return std::isnan(value) ? throw Refusal("a bound of attribute steps is not a number") : value;
  };
  const auto code = [&](float value) { return code_of(value, stage.scale, stage.codes.zero); };
  if (stage.step.relu) {
    stage.codes.low = stage.codes.zero;
  }
  if (stage.step.low != kNone) {
    stage.codes.low = code(limit(stage.step.low));
  }
  if (stage.step.high != kNone) {
    stage.codes.high = code(limit(stage.step.high));
    // Where the two cross, the upper bound is the result.
    stage.codes.low = stage.codes.low < stage.codes.high ? stage.codes.low : stage.codes.high;
  }
}

int64_t file_groups(const Stage& stage) { return stage.step.group * std::max<int64_t>(1, stage.merged.groups); }

// From sums of products to steps of `y`, or (0) to numbers; bias and pads are packed with it.
std::vector<float> factors(const Reader& read, size_t number, const Stage& stage, float x_scale, float y_scale) {
  // A transposed convolution has one for each output of a group: they lie along the same axis of its weight.
  const int64_t own = stage.step.does == Does::kConvTranspose ? stage.outputs / file_groups(stage) : stage.outputs;
  std::vector<float> all = read.of_outputs<float>(stage.step.weight_scale, kFloat, "weight_scale", own);
  while (all.size() < static_cast<size_t>(stage.outputs)) {
    all.push_back(all[all.size() - static_cast<size_t>(own)]);
  }
  std::vector<float> by(all.size(), 1.0f);
  if (stage.step.factor != kNone) {
    by = read.of_outputs<float>(stage.step.factor, kFloat, "factor", own);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    float& each = all[i];
    each = (y_scale > 0.0f ? x_scale * each / y_scale : x_scale * each) * by[i];
    if (!std::isfinite(each)) {
      refuse_stage(number, "has scales whose ratio is not finite");
    }
  }
  return all;
}

// As many groups as fill a block of outputs, or the bytes that are multiplied together.
Merged merge(int64_t group, int64_t inputs, int64_t outputs, int64_t width) {
  int64_t most = 1;
  for (int64_t each = 2; each <= group && each * outputs <= kBlock && each * inputs * width <= kChunk; ++each) {
    most = group % each ? most : each;
  }
  return {most, inputs, outputs};
}

}  // namespace

int64_t shape_conv(Stage& stage, size_t number, const Tensor& weight, int64_t width) {
  Step& step = stage.step;
  const bool is_line = weight.shape.size() == 3;
  if (weight.shape.size() != 4 && !is_line) {
    refuse_stage(number, "has a weight of rank " + std::to_string(weight.shape.size()) + ", not 3 or 4");
  }
  const int64_t per_group = weight.shape[1];
  const int64_t kernel_y = is_line ? 1 : weight.shape[2], kernel_x = weight.shape.back();
  stage.outputs = weight.shape[0];
  stage.inputs = per_group * step.group;
  stage.rank = static_cast<int64_t>(weight.shape.size());
  if (weight.size() < 1 || stage.outputs % step.group || stage.outputs > kMostChannels || stage.inputs > kMostChannels ||
      kernel_y > kMostTaps || kernel_x > kMostTaps || kernel_y * kernel_x > kMostTaps) {
    refuse_stage(number, "has a weight of shape " + text(weight.shape) + ", which no convolution of " +
                             std::to_string(step.group) + " groups here has");
  }
  step.kernel = {{kernel_y, kernel_x}};
  // Phases of transposed convolutions are stored with pixels of others between theirs, as kernels of one channel do not.
  stage.is_depthwise = step.does == Does::kConv && step.group > 1 && per_group == 1 && stage.outputs == step.group;
  if (!stage.is_depthwise) {
    stage.merged = merge(step.group, per_group, stage.outputs / step.group, width);
    step.group /= stage.merged.groups;
  }
  stage.blocks = (stage.outputs / step.group + kBlock - 1) / kBlock;
  return per_group * kernel_y * kernel_x;
}

namespace {

void make_conv(Stage& stage, size_t number, const Stage& x, const Reader& read, const Tensor& weight) {
  const Step& step = stage.step;
  const int64_t size = shape_conv(stage, number, weight, 1), kernel_x = step.kernel[1], taps = step.kernel[0] * kernel_x;
  std::vector<int32_t> bias;
  if (step.bias != kNone) {
    bias = read.of_outputs<int32_t>(step.bias, kInt32, "bias", stage.outputs);
  }
  const std::vector<float> scale = factors(read, number, stage, x.scale, stage.scale);
  const PlainWeight plain = {static_cast<const int8_t*>(weight.data), size, taps, kernel_x, 1, stage.merged};
  const int32_t* const given = bias.empty() ? nullptr : bias.data();
  (stage.is_depthwise ? pack_depthwise : pack)(stage, plain, given, scale, x.codes.zero);
  if (!stage.is_depthwise) {
    pack_together(stage, plain, given, scale, x.codes.zero);
  }
}

void make_gemm(Stage& stage, size_t number, const Stage& x, const Reader& read) {
  const Step& step = stage.step;
  const Tensor& weight = read.constant(step.weight, ort::kInt8, "weight");
  if (weight.shape.size() != 2 || weight.size() < 1 || weight.shape[0] > kMostChannels || weight.shape[1] > kMostChannels) {
    refuse_stage(number, "has a weight of shape " + text(weight.shape) + ", which is no matrix");
  }
  const bool turned = step.transposed != 0;
  stage.inputs = weight.shape[turned ? 1 : 0];
  stage.outputs = weight.shape[turned ? 0 : 1];
  stage.blocks = (stage.outputs + kBlock - 1) / kBlock;
  std::vector<int32_t> bias;
  if (step.bias != kNone) {
    bias = read.of_outputs<int32_t>(step.bias, kInt32, "bias", stage.outputs);
  }
  const std::vector<float> scale = factors(read, number, stage, x.scale, step.does == Does::kProduct ? stage.scale : 0.0f);
  const PlainWeight plain = {static_cast<const int8_t*>(weight.data), turned ? stage.inputs : 1,
                             turned ? 1 : stage.outputs, 0, 0, {}};
  pack(stage, plain, bias.empty() ? nullptr : bias.data(), scale, x.codes.zero);
}

// Multiplying by a reciprocal is several times as fast as dividing; whether it gives the same codes is tried with all.
void make_binary(Stage& stage, const Stage& a, const Stage& b, const RegionKernel& simple) {
  constexpr int64_t kAll = 256;
  std::vector<uint8_t> left(kAll * kAll), right(kAll * kAll), divided(kAll * kAll), multiplied(kAll * kAll);
  for (int64_t i = 0; i < kAll * kAll; ++i) {
    left[static_cast<size_t>(i)] = static_cast<uint8_t>(i / kAll);
    right[static_cast<size_t>(i)] = static_cast<uint8_t>(i % kAll);
  }
  const auto image = [](std::vector<uint8_t>& codes) { return Image{codes.data(), 1, 1, kAll, kAll, kAll * kAll, kAll * kAll}; };
  Binary& p = stage.binary;
  p.a_zero = a.codes.zero;
  p.b_zero = b.codes.zero;
  p.a_scale = a.scale;
  p.b_scale = stage.step.does == Does::kSub ? -b.scale : b.scale;
  p.scale = stage.scale;
  p.codes = stage.codes;
  p.multiplies = stage.step.does == Does::kMul;
  p.a = image(left);
  p.b = image(right);
  p.y = image(divided);
  p.divides = 1;
  simple.binary(p, 0, 1);
  p.y = image(multiplied);
  p.divides = 0;
  simple.binary(p, 0, 1);
  p.divides = divided != multiplied;
}

// DequantizeLinear of one tensor and QuantizeLinear of another, as a table; none where the two are the same.
std::vector<uint8_t> rescaled(const Stage& x, const Stage& y) {
  if (x.scale == y.scale && x.codes.zero == y.codes.zero) {
    return {};
  }
  std::vector<uint8_t> table(256);
  for (int32_t code = 0; code < 256; ++code) {
    const float value = static_cast<float>(code - x.codes.zero) * x.scale;
    table[static_cast<size_t>(code)] = static_cast<uint8_t>(code_of(value, y.scale, y.codes.zero));
  }
  return table;
}

}  // namespace

void refuse_stage(size_t number, const std::string& reason) {
  throw Refusal("step " + std::to_string(number) + " of attribute steps " + reason);
}

Stage make_stage(const Step& step, const std::vector<Stage>& before, const Constants& constants,
                 const RegionKernel& simple) {
  const size_t number = before.size();
  const Reader read(number, constants);
  const auto source = [&](size_t i) -> const Stage& { return before[static_cast<size_t>(step.x[i])]; };
  Stage stage;
  stage.step = step;
  if (step.scale != kNone && step.zero != kNone) {
    stage.scale = read.scale(step.scale);
    stage.codes.zero = read.number<uint8_t>(step.zero, kUint8, "zero");
  } else if (!step.x.empty()) {
    stage.scale = source(0).scale;
    stage.codes.zero = source(0).codes.zero;
  }
  check_elements(stage, number, before);
  bound(stage, read);
  switch (step.does) {
    case Does::kConv:
      make_conv(stage, number, source(0), read, read.constant(step.weight, ort::kInt8, "weight"));
      break;
    case Does::kConvTranspose: {
      const Tensor& weight = read.constant(step.weight, ort::kInt8, "weight");
      make_phases(stage, number, weight, static_cast<const int8_t*>(weight.data), [&](Stage& phase, const Tensor& plain) {
        make_conv(phase, number, source(0), read, plain);
      });
      break;
    }
    case Does::kGemm:
    case Does::kProduct:
    case Does::kSums:
      make_gemm(stage, number, source(0), read);
      break;
    case Does::kConstant: {
      const Tensor& given = read.constant(step.codes, ort::kUint8, "codes");
      stage.shape = given.shape;
      stage.constant = read.values<uint8_t>(step.codes, ort::kUint8, "codes");
      break;
    }
    case Does::kResize:
    case Does::kResizeLinear:
      make_resize(stage, number, read);
      break;
    case Does::kAdd:
    case Does::kSub:
    case Does::kMul:
      make_binary(stage, source(0), source(1), simple);
      break;
    case Does::kTable: {
      stage.tables.push_back(read.values<uint8_t>(step.table, kUint8, "table"));
      if (stage.tables[0].empty() || stage.tables[0].size() % 256) {
        refuse_stage(number, "has a table that is not of 256 codes, or of as many for each channel");
      }
      break;
    }
    case Does::kAffine:
      stage.factors = read.values<float>(step.weight, kFloat, "weight");
      stage.starts = read.values<float>(step.bias, kFloat, "bias");
      if (step.knee != kNone) {
        stage.knees = read.values<float>(step.knee, kFloat, "knee");
      }
      break;
    case Does::kConcat:
      for (size_t i = 0; i < step.x.size(); ++i) {
        stage.tables.push_back(rescaled(source(i), stage));
      }
      break;
    default:
      make_row_stage(stage, number, before, read);
      break;
  }
  return stage;
}

}  // namespace onnxq
