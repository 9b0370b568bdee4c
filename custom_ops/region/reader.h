// The constants of a step, looked at as they are read.

#ifndef ONNXQ_REGION_READER_H_
#define ONNXQ_REGION_READER_H_

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../abi/weight.h"
#include "stage.h"

namespace onnxq {

// Reads constants for one stage.
class Reader {
 public:
  Reader(size_t number, const Constants& constants) : number_(number), constants_(constants) {}

  const Tensor& constant(int64_t input, ort::ElementType type, const char* what) const {
    const Tensor& found = constants_[static_cast<size_t>(input)];
    if (found.type != type) {
      refuse_stage(number_, "reads input " + std::to_string(input) + " as its " + what +
                                ", which is no constant, or one of another type");
    }
    return found;
  }

  template <typename T>
  std::vector<T> values(int64_t input, ort::ElementType type, const char* what) const {
    const Tensor& found = constant(input, type, what);
    std::vector<T> copy(static_cast<size_t>(found.size()));
    if (!copy.empty()) {
      std::memcpy(copy.data(), found.data, copy.size() * sizeof(T));
    }
    return copy;
  }

  template <typename T>
  T number(int64_t input, ort::ElementType type, const char* what) const {
    const std::vector<T> all = values<T>(input, type, what);
    if (all.size() != 1) {
      refuse_stage(number_, "has another tensor than one number as " + std::string(what));
    }
    return all[0];
  }

  float scale(int64_t input) const {
    const float found = number<float>(input, ort::kFloat, "scale");
    if (!(found > 0.0f) || !std::isfinite(found)) {
      refuse_stage(number_, "has a scale that is not positive and finite");
    }
    return found;
  }

  // One for all, or one each.
  template <typename T>
  std::vector<T> of_outputs(int64_t input, ort::ElementType type, const char* what, int64_t outputs) const {
    std::vector<T> all = values<T>(input, type, what);
    if (all.size() == 1) {
      all.resize(static_cast<size_t>(outputs), all[0]);
    }
    if (all.size() != static_cast<size_t>(outputs)) {
      refuse_stage(number_, std::string("has as its ") + what + " " + std::to_string(all.size()) + " numbers for " +
                                std::to_string(outputs) + " outputs");
    }
    return all;
  }

 private:
  size_t number_;
  const Constants& constants_;
};

// Sizes or ratios of a Resize.
inline void make_resize(Stage& stage, size_t number, const Reader& read) {
  const Step& step = stage.step;
  if ((step.sizes == kNone) == (step.ratios == kNone)) {
    refuse_stage(number, "must say one of 'sizes' and 'ratios'");
  }
  if (step.sizes != kNone) {
    stage.sizes = read.values<int64_t>(step.sizes, ort::kInt64, "sizes");
  } else {
    stage.ratios = read.values<float>(step.ratios, ort::kFloat, "ratios");
  }
  if (stage.sizes.empty() && stage.ratios.empty()) {
    refuse_stage(number, "resizes to no size");
  }
}

}  // namespace onnxq

#endif  // ONNXQ_REGION_READER_H_
