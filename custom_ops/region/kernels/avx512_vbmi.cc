// AVX512-VNNI where tables are looked up in registers: of processors with VNNI all but the first have VBMI.

#include "binary_zmm.h"
#include "border_zmm.h"
#include "depthwise_dot.h"
#include "interpolate_zmm.h"
#include "lookup_vbmi.h"
#include "pool_zmm.h"

namespace onnxq {

extern const RegionKernel region_avx512_vbmi;
constexpr RegionKernel region_avx512_vbmi = {
    "avx512_vnni", kAvx512 | kAvx512Vnni | kAvx512Vbmi, plan_dots<ZmmDots>, conv_zmm,       depthwise_dots,
    binary_zmm,    pool_zmm,                            lookup_vbmi,        interpolate_zmm, quantize_zmm,  dequantize_zmm};

}  // namespace onnxq
