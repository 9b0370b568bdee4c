#include "binary_zmm.h"
#include "border_zmm.h"
#include "depthwise_dot.h"
#include "interpolate_zmm.h"
#include "pool_zmm.h"
#include "winograd.h"

namespace onnxq {
namespace {

constexpr WinogradKernel kWinograd = {ZmmDots::kSquares, 1.0f, transform_weights<ZmmDots>,
                                       convolve_by_squares<ZmmDots, JoinedDots>};

}  // namespace

extern const RegionKernel region_avx512_vnni;
constexpr RegionKernel region_avx512_vnni = {
    "avx512_vnni", kAvx512 | kAvx512Vnni, plan_dots<ZmmDots>, conv_zmm, depthwise_dots,
    binary_zmm, pool_zmm, lookup_simple, affine_zmm,
    interpolate_zmm, quantize_zmm, dequantize_zmm, &kWinograd};

#ifdef ONNXQ_COMPILES_VBMI
// Tables are looked up in registers: of processors with VNNI all but the first have VBMI.
void lookup_avx512_vbmi(const Lookup& p, int64_t first, int64_t last);

extern const RegionKernel region_avx512_vbmi;
constexpr RegionKernel region_avx512_vbmi = {
    "avx512_vnni", kAvx512 | kAvx512Vnni | kAvx512Vbmi, plan_dots<ZmmDots>, conv_zmm, depthwise_dots,
    binary_zmm, pool_zmm, lookup_avx512_vbmi, affine_zmm,
    interpolate_zmm, quantize_zmm, dequantize_zmm, &kWinograd};
#endif

}  // namespace onnxq
