// For every processor: what the others are measured against.

#include "interpolate.h"

namespace onnxq {

extern const RegionKernel region_scalar;
constexpr RegionKernel region_scalar = {
    "scalar", 0, plan_one_by_one, conv_one_by_one, depthwise_simple,
    binary_simple, pool_simple, lookup_simple, affine_simple,
    interpolate_simple, quantize_simple, dequantize_simple, nullptr};

}  // namespace onnxq
