#include "binary_zmm.h"
#include "border_zmm.h"
#include "depthwise_dot.h"
#include "interpolate_zmm.h"
#include "pool_zmm.h"

namespace onnxq {

extern const RegionKernel region_avx512_vnni;
constexpr RegionKernel region_avx512_vnni = {
    "avx512_vnni", kAvx512 | kAvx512Vnni, plan_dots<ZmmDots>, conv_zmm,       depthwise_dots,
    binary_zmm,    pool_zmm,              lookup_simple, interpolate_zmm, quantize_zmm,       dequantize_zmm};

}  // namespace onnxq
