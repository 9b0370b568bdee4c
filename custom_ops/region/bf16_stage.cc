// Steps of bf16 regions together with their constants.

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "../base/convert.h"
#include "pack.h"
#include "reader.h"
#include "row_stage.h"
#include "transposed.h"

namespace onnxq {
namespace {

using namespace ort;

constexpr int64_t kMostChannels = 1 << 24;

float widened(uint16_t number) { return bfloat16_to_float(number); }

// A weight as it lies in the file: element (output, input of its group, tap).
struct PlainNumbers {
  const uint16_t* data;
  int64_t inputs, taps;
  Merged merged;

  uint16_t at(int64_t o, int64_t i, int64_t tap) const {
    uint16_t number = 0;
    if (!merged.is_zero(o, i)) {
      std::memcpy(&number, data + (o * inputs + merged.inside(i)) * taps + tap, sizeof number);
    }
    return number;
  }
};

constexpr int64_t kNumbers = kChunk / 2;

// [groups · blocks][chunks][2][16][16][2]: half a block, pair of the chunk, output, number. `starts`: of each piece of a
// window, its first number.
std::vector<Line> packed(const Stage& stage, const PlainNumbers& weight, const std::vector<int64_t>& starts, int64_t chunks) {
  const Step& step = stage.step;
  const int64_t in = stage.inputs / step.group, out = stage.outputs / step.group;
  const std::vector<Piece> all = pieces(step);
  std::vector<Line> made(static_cast<size_t>(step.group * stage.blocks * chunks * kBlockBytes / 64));
  for (int64_t block = 0; block < step.group * stage.blocks; ++block) {
    const int64_t in_group = block % stage.blocks * kBlock, first = block / stage.blocks * out + in_group;
    const int64_t lanes = std::min(kBlock, out - in_group);
    uint8_t* const to = made.front().bytes + block * chunks * kBlockBytes;
    for (size_t p = 0; p < all.size(); ++p) {
      for (int64_t i = 0; i < all[p].pixels * in; ++i) {
        const int64_t byte = 2 * (starts[p] + i), tap = all[p].y * step.kernel[1] + all[p].x + i / in;
        for (int64_t lane = 0; lane < lanes; ++lane) {
          const uint16_t number = weight.at(first + lane, i % in, tap);
          std::memcpy(to + in_chunks(byte, lane), &number, sizeof number);
        }
      }
    }
  }
  return made;
}

void pack_numbers(Stage& stage, const PlainNumbers& weight, const std::vector<float>& bias) {
  const Step& step = stage.step;
  const int64_t out = stage.outputs / step.group, chunks = cut_windows(stage, sizeof(uint16_t));
  std::vector<int64_t> starts, dense;
  int64_t next = 0, size = 0;
  for (const Piece& piece : pieces(step)) {
    const int64_t numbers = piece.pixels * (stage.inputs / step.group);
    starts.push_back(next);
    dense.push_back(size);
    next += (numbers + kNumbers - 1) / kNumbers * kNumbers;
    size += numbers;
  }
  stage.lines = packed(stage, weight, starts, chunks);
  const int64_t dense_chunks = (size + kNumbers - 1) / kNumbers;
  if (step.group == 1 && step.dilations[1] == 1 && dense_chunks <= kMostDense && 2 * dense_chunks <= chunks) {
    stage.dense_lines = packed(stage, weight, dense, dense_chunks);
  }
  stage.starts.assign(static_cast<size_t>(step.group * stage.blocks * kBlock), 0.0f);
  for (int64_t o = 0; o < stage.outputs; ++o) {
    stage.starts[static_cast<size_t>((o / out * stage.blocks + o % out / kBlock) * kBlock + o % out % kBlock)] =
        bias[static_cast<size_t>(o)];
  }
}

// Constants in float32 or bfloat16.
std::vector<float> floats(const Reader& read, const Constants& constants, int64_t input, const char* what) {
  if (constants[static_cast<size_t>(input)].type != kBFloat16) {
    return read.values<float>(input, kFloat, what);
  }
  const std::vector<uint16_t> numbers = read.values<uint16_t>(input, kBFloat16, what);
  std::vector<float> all(numbers.size());
  std::transform(numbers.begin(), numbers.end(), all.begin(), widened);
  return all;
}

// Even channels of 32 before odd ones.
void pack_depthwise_numbers(Stage& stage, const PlainNumbers& weight, const std::vector<float>& bias) {
  const int64_t padded = (stage.outputs + 31) / 32 * 32;
  stage.factors.assign(static_cast<size_t>(weight.taps * padded), 0.0f);
  stage.starts.assign(static_cast<size_t>(padded), 0.0f);
  for (int64_t c = 0; c < stage.outputs; ++c) {
    const int64_t lane = c / 32 * 32 + c % 2 * 16 + c % 32 / 2;
    for (int64_t tap = 0; tap < weight.taps; ++tap) {
      stage.factors[static_cast<size_t>(tap * padded + lane)] = widened(weight.at(c, 0, tap));
    }
    stage.starts[static_cast<size_t>(lane)] = bias[static_cast<size_t>(c)];
  }
}

// `weight`: in bfloat16, whatever its type says.
void make_conv(Stage& stage, size_t number, const Reader& read, const Constants& constants, const Tensor& weight) {
  const int64_t size = shape_conv(stage, number, weight, 2), taps = stage.step.kernel[0] * stage.step.kernel[1];
  std::vector<float> bias(static_cast<size_t>(stage.outputs));
  if (stage.step.bias != kNone) {
    bias = floats(read, constants, stage.step.bias, "bias");
    if (bias.size() != static_cast<size_t>(stage.outputs)) {
      refuse_stage(number, "has as its bias " + std::to_string(bias.size()) + " numbers for " +
                               std::to_string(stage.outputs) + " outputs");
    }
  }
  const PlainNumbers plain = {static_cast<const uint16_t*>(weight.data), size / taps, taps, stage.merged};
  (stage.is_depthwise ? pack_depthwise_numbers : pack_numbers)(stage, plain, bias);
}

// Of either kind, in bfloat16: weights of few numbers are float32 in the file.
void make_convolution(Stage& stage, size_t number, const Reader& read, const Constants& constants) {
  const bool is_float = constants[static_cast<size_t>(stage.step.weight)].type == kFloat;
  Tensor weight = read.constant(stage.step.weight, is_float ? kFloat : kBFloat16, "weight");
  std::vector<uint16_t> numbers;
  if (is_float) {
    const std::vector<float> all = read.values<float>(stage.step.weight, kFloat, "weight");
    numbers.resize(all.size());
    to_bfloat16(all.data(), numbers.data(), static_cast<int64_t>(all.size()));
    weight.data = numbers.data();
  }
  if (stage.step.does == Does::kConv) {
    return make_conv(stage, number, read, constants, weight);
  }
  make_phases(stage, number, weight, static_cast<const uint16_t*>(weight.data), [&](Stage& phase, const Tensor& plain) {
    make_conv(phase, number, read, constants, plain);
  });
}

void make_affine(Stage& stage, size_t number, const Reader& read) {
  const Step& step = stage.step;
  if (step.weight != kNone) {
    stage.factors = read.values<float>(step.weight, kFloat, "weight");
  }
  if (step.bias != kNone) {
    stage.starts = read.values<float>(step.bias, kFloat, "bias");
  }
  for (const std::vector<float>* each : {&stage.factors, &stage.starts}) {
    if (each->size() > static_cast<size_t>(kMostChannels)) {
      refuse_stage(number, "has numbers for more channels than there can be");
    }
  }
}

Act act_of(const Step& step, size_t number, const Reader& read) {
  Act act{static_cast<int32_t>(step.act), 0.0f, 0.0f};
  const auto given = [&](int64_t input, float without) {
    return input == kNone ? without : read.number<float>(input, kFloat, "number of its activation");
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool clips = act.kind == kClip;
  act.a = given(step.low, clips ? -kInfinity : 1.0f);
  act.b = given(step.high, clips ? kInfinity : 0.0f);
  if (std::isnan(act.a) || std::isnan(act.b)) {
    refuse_stage(number, "has an activation whose number is none");
  }
  return act;
}

}  // namespace

Stage make_bf16_stage(const Step& step, const std::vector<Stage>& before, const Constants& constants) {
  const size_t number = before.size();
  const Reader read(number, constants);
  Stage stage;
  stage.step = step;
  stage.act = act_of(step, number, read);
  if (step.does == Does::kConv || step.does == Does::kConvTranspose) {
    make_convolution(stage, number, read, constants);
  } else if (step.does == Does::kAffine) {
    make_affine(stage, number, read);
  } else if (step.does == Does::kInstanceNorm) {
    make_norm(stage, number, read);
  } else if (step.does == Does::kResize || step.does == Does::kResizeLinear) {
    make_resize(stage, number, read);
  }
  return stage;
}

}  // namespace onnxq
