#include "bf16_depthwise.h"

namespace onnxq {

extern const NumberKernel bf16_region_avx512_bf16;
constexpr NumberKernel bf16_region_avx512_bf16 = {
    "avx512_bf16",        kAvx512 | kAvx512Bf16, plan_pairs, conv_dots<PairDots>,
    number_depthwise,     number_binary_simple,  number_affine_simple, number_moments_simple, number_pool,
    number_interpolate_simple, number_copy_simple,   number_read,           number_write};

}  // namespace onnxq
