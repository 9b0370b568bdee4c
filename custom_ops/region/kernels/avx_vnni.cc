#include "../../cpu/kernels/avx_vnni.h"
#include "borders.h"
#include "dot.h"
#include "interpolate.h"
#include "winograd_ymm.h"

namespace onnxq {
namespace {

// 6 pixels and 16 outputs: 12 of 16 registers are sums, two are weights and one is a pixel.
struct YmmDots : YmmSquares {
  static constexpr int kLanes = 8, kVectors = 2, kPixels = 6;
  static constexpr bool kIsInOrder = true;
  using Problem = Conv;
  using Finish = BlockFinish;
  using Sum = int32_t;
  using I = __m256i;
  using X = I;
  using W = I;

  static const int32_t* starts(const Conv& c, int64_t block) { return c.bias + block * kBlock; }
  static I load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static void store(int32_t* p, I a) { _mm256_storeu_si256(reinterpret_cast<I*>(p), a); }
  static W weights(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static X pixel(const uint8_t* p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
  }
  static I dot(I sum, X x, W w) { return _mm256_dpbusd_avx_epi32(sum, x, w); }

  static I dot_pairs(I sum, const int16_t* x, I w) { return _mm256_dpwssd_avx_epi32(sum, w, pair(x)); }
};

constexpr WinogradKernel kWinograd = {YmmDots::kSquares, 1.0f, transform_weights<YmmDots>,
                                       convolve_by_squares<YmmDots>};

}  // namespace

extern const RegionKernel region_avx_vnni;
constexpr RegionKernel region_avx_vnni = {
    "avx_vnni", kAvxVnniNeeds, plan_dots<YmmDots>, conv_dots<YmmDots>, depthwise_simple,
    binary_simple, pool_simple, lookup_simple, affine_simple,
    interpolate_simple, quantize_turned, dequantize_turned, &kWinograd};

}  // namespace onnxq
