#include "row_stage.h"

namespace onnxq {
namespace {

// What steps read: codes, float32, or both alike.
enum class Reads { kCodes, kFloats, kEither };

Reads reads_of(Does does, size_t source) {
  switch (does) {
    case Does::kFlatten:
    case Does::kSlice:
    case Does::kPad:
    case Does::kArrange:
    case Does::kNorm:
    case Does::kSoftmax:
      return Reads::kEither;
    case Does::kWrite:
    case Does::kEncode:
    case Does::kPlus:
    case Does::kRotary:
      return Reads::kFloats;
    case Does::kSums:  // what is added
      return source ? Reads::kFloats : Reads::kCodes;
    case Does::kAttention:  // the mask
      return source == 3 ? Reads::kFloats : Reads::kCodes;
    default:
      return Reads::kCodes;
  }
}

bool makes_floats(const Step& step, bool reads_floats) {
  switch (step.does) {
    case Does::kRead:
    case Does::kDecode:
    case Does::kSums:
    case Does::kPlus:
      return true;
    case Does::kNorm:
    case Does::kSoftmax:
    case Does::kRotary:
    case Does::kMatMul:
      return step.scale == kNone;
    default:  // moves
      return reads_floats && step.scale == kNone && makes_tensor(step.does);
  }
}

float finite(const Reader& read, size_t number, int64_t input, const char* what) {
  const float found = read.number<float>(input, ort::kFloat, what);
  if (!std::isfinite(found)) {
    refuse_stage(number, "has a number that is not finite: " + std::string(what));
  }
  return found;
}

}  // namespace

void check_elements(Stage& stage, size_t number, const std::vector<Stage>& before) {
  const Step& step = stage.step;
  bool reads_floats = false;
  for (size_t i = 0; i < step.x.size(); ++i) {
    const bool floats = before[static_cast<size_t>(step.x[i])].floats;
    const Reads reads = reads_of(step.does, i);
    if (reads == (floats ? Reads::kCodes : Reads::kFloats)) {
      refuse_stage(number, "reads step " + std::to_string(step.x[i]) + ", which makes " +
                               (floats ? "float32 and no codes" : "codes and no float32"));
    }
    reads_floats = reads_floats || floats;
  }
  if ((step.scale == kNone) != (step.zero == kNone)) {
    refuse_stage(number, "must say both 'scale' and 'zero', or neither");
  }
  stage.floats = makes_floats(step, reads_floats);
}

void make_norm(Stage& stage, size_t number, const Reader& read) {
  const Step& step = stage.step;
  stage.epsilon = finite(read, number, step.epsilon, "epsilon");
  if (stage.epsilon < 0.0f) {
    refuse_stage(number, "has an epsilon that is negative");
  }
  stage.factors = step.weight == kNone ? std::vector<float>() : read.values<float>(step.weight, ort::kFloat, "weight");
  stage.starts = step.bias == kNone ? std::vector<float>() : read.values<float>(step.bias, ort::kFloat, "bias");
}

void make_row_stage(Stage& stage, size_t number, const std::vector<Stage>& before, const Reader& read) {
  const Step& step = stage.step;
  const auto source = [&](size_t i) -> const Stage& { return before[static_cast<size_t>(step.x[i])]; };
  const float steps = step.scale == kNone ? 1.0f : stage.scale;
  if (step.does == Does::kNorm || step.does == Does::kInstanceNorm) {
    make_norm(stage, number, read);
  }
  if (step.does == Does::kMatMul) {
    stage.second_zero = source(1).codes.zero;
    stage.scales = {source(0).scale * source(1).scale / steps};
  }
  if (step.does == Does::kAttention) {
    stage.scales = {source(0).scale * source(1).scale * finite(read, number, step.factor, "factor"), source(2).scale / 255.0f};
  }
  for (const float each : stage.scales) {
    if (!std::isfinite(each)) {
      refuse_stage(number, "has scales whose product is not finite");
    }
  }
}

}  // namespace onnxq
