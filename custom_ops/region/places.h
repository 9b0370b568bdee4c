// Where tensors lie in the memory of a region: those whose lives do not meet share bytes.

#ifndef ONNXQ_REGION_PLACES_H_
#define ONNXQ_REGION_PLACES_H_

#include <algorithm>
#include <vector>

#include "plan.h"

namespace onnxq {

class Places {
 public:
  // Into the first gap that `tensor` fits, among what some step from `step` on reads. What was put stays where it is in memory.
  void put(Placed& tensor, int64_t step) {
    int64_t at = 0;
    for (const Placed* const there : placed_) {  // in order of offsets
      if (there->last < step) {
        continue;
      }
      if (at + tensor.bytes <= there->offset) {
        break;
      }
      at = std::max(at, there->offset + there->bytes);
    }
    tensor.offset = at;
    end_ = std::max(end_, at + tensor.bytes);
    const auto is_before = [](const Placed* a, const Placed* b) { return a->offset < b->offset; };
    placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), &tensor, is_before), &tensor);
  }

  int64_t end() const { return end_; }

 private:
  std::vector<const Placed*> placed_;
  int64_t end_ = 0;
};

}  // namespace onnxq

#endif  // ONNXQ_REGION_PLACES_H_
