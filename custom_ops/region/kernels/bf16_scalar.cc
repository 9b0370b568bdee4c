// For every processor: what the others are measured against. It is registered only where a faster one runs too, or where
// it is asked for by name (../node.cc).

#include "bf16_simple.h"

namespace onnxq {

extern const NumberKernel bf16_region_scalar;
constexpr NumberKernel bf16_region_scalar = {
    "scalar", 0, plan_number_by_number, number_conv_one_by_one, number_depthwise_simple, number_binary_simple,
    number_affine_simple, number_moments_simple, number_pool_simple,
    number_interpolate_simple, number_copy_simple, number_read_simple, number_write_simple};

}  // namespace onnxq
