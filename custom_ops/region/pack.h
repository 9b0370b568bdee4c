// Weights as kernels read them. Steps that read one weight in the same way share it: a file may have thousands of steps.

#ifndef ONNXQ_REGION_PACK_H_
#define ONNXQ_REGION_PACK_H_

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "stage.h"

namespace onnxq {

// A weight as it lies in the file: element (output, input of its group, y, x) at the sum of these multiples.
struct PlainWeight {
  const int8_t* data;
  int64_t output, input, y, x;

  int8_t at(int64_t o, int64_t i, int64_t ky, int64_t kx) const {
    return data[o * output + i * input + ky * y + kx * x];
  }
};

// The packed weights of one node.
class PackedWeights {
 public:
  // Fills `packed`, bias and scales of `stage`, which knows its sizes and which input its weight is. `bias` (int32, or
  // null) and `scale` are of each output; a scale is already that from sums to codes. Throws Refusal.
  void pack(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale,
            int32_t x_zero);

 private:
  // (input, groups, whether rows are pieces, depthwise, product and how it is turned).
  using Key = std::tuple<int64_t, int64_t, bool, bool, int64_t>;

  void take(int64_t bytes);

  std::map<Key, std::shared_ptr<const Packed>> known_;
  int64_t taken_ = 0, chunks_ = 0;
};

}  // namespace onnxq

#endif  // ONNXQ_REGION_PACK_H_
