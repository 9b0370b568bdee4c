#include <immintrin.h>

#include "../../cpu/kernel.h"
#include "borders.h"
#include "dot.h"
#include "interpolate.h"
#include "winograd_ymm.h"

namespace onnxq {
namespace {

// Products of even and of odd bytes in 16 bits each, added in pairs to 32: nothing saturates, as vpmaddubsw would.
struct YmmPairs : YmmSquares {
  static constexpr int kLanes = 8, kVectors = 2, kPixels = 4;
  static constexpr bool kIsInOrder = true;
  using Problem = Conv;
  using Finish = BlockFinish;
  using Sum = int32_t;
  using I = __m256i;
  struct X {
    I even, odd;
  };
  using W = X;

  static const int32_t* starts(const Conv& c, int64_t block) { return c.bias + block * kBlock; }
  static I load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static void store(int32_t* p, I a) { _mm256_storeu_si256(reinterpret_cast<I*>(p), a); }
  static W weights(const int8_t* p) {
    const I bytes = _mm256_loadu_si256(reinterpret_cast<const I*>(p));
    return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
  }
  static X pixel(const uint8_t* p) {
    int32_t four;
    memcpy(&four, p, 4);
    const I bytes = _mm256_set1_epi32(four);
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)};
  }
  static I dot(I sum, const X& x, const W& w) {
    const I odd = _mm256_add_epi32(sum, _mm256_madd_epi16(x.odd, w.odd));
    return _mm256_add_epi32(odd, _mm256_madd_epi16(x.even, w.even));
  }

  static I dot_pairs(I sum, const int16_t* x, I w) { return _mm256_add_epi32(sum, _mm256_madd_epi16(pair(x), w)); }
};

constexpr WinogradKernel kWinograd = {YmmPairs::kSquares, 0.5f, transform_weights<YmmPairs>,
                                       convolve_by_squares<YmmPairs>};

}  // namespace

extern const RegionKernel region_avx2;
constexpr RegionKernel region_avx2 = {
    "avx2", kAvx2, plan_dots<YmmPairs>, conv_dots<YmmPairs>, depthwise_simple,
    binary_simple, pool_simple, lookup_simple, affine_simple,
    interpolate_simple, quantize_turned, dequantize_turned, &kWinograd};

}  // namespace onnxq
