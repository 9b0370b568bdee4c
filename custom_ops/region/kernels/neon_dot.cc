// ARM's dot product of bytes. It multiplies signed ones alone: codes lose 128, which is what sums of a block begin with.

#include <arm_neon.h>

#include "../../cpu/kernel.h"
#include "dot.h"
#include "interpolate.h"

namespace onnxq {
namespace {

// One block of a convolution.
struct Shifted : Conv {
  int32_t begin[kBlock];  // its bias, and 128 for each of its weights

  Shifted(const Conv& c, int64_t block) : Conv(c) {
    constexpr int kVectors = kBlock / 4;
    int32x4_t sum[kVectors];
    unrolled<kVectors>([&](auto v) ONNXQ_INLINE { sum[v] = vdupq_n_s32(0); });
    const int8_t* w = c.weight + block * c.chunks * kBlockBytes;
    for (int64_t k = 0; k < c.chunks; ++k, w += kBlockBytes) {
      for (int64_t quad = 0; quad < c.quads[k]; ++quad) {
        unrolled<kVectors>([&](auto v) ONNXQ_INLINE {
          const int8x16_t weights = vld1q_s8(w + v / 4 * (kBlockBytes / 2) + quad * 64 + v % 4 * 16);
          sum[v] = vdotq_s32(sum[v], weights, vdupq_n_s8(1));
        });
      }
    }
    unrolled<kVectors>([&](auto v) ONNXQ_INLINE {
      vst1q_s32(begin + 4 * v, vaddq_s32(vld1q_s32(c.bias + block * kBlock + 4 * v), vshlq_n_s32(sum[v], 7)));
    });
  }
};

// 6 pixels and 16 outputs: 24 of 32 registers are sums, four are weights and one is a pixel.
struct NeonDots {
  static constexpr int kLanes = 4, kVectors = 4, kPixels = 6;
  static constexpr bool kIsInOrder = true;
  using Problem = Shifted;
  using Finish = BlockFinish;
  using Sum = int32_t;
  using I = int32x4_t;
  using X = int8x16_t;
  using W = int8x16_t;

  static const int32_t* starts(const Shifted& c, int64_t) { return c.begin; }
  static I load(const int32_t* p) { return vld1q_s32(p); }
  static void store(int32_t* p, I a) { vst1q_s32(p, a); }
  static W weights(const int8_t* p) { return vld1q_s8(p); }
  static X pixel(const uint8_t* p) {
    uint32_t four;
    memcpy(&four, p, 4);
    return vreinterpretq_s8_u32(veorq_u32(vdupq_n_u32(four), vdupq_n_u32(0x80808080)));
  }
  static I dot(I sum, X x, W w) { return vdotq_s32(sum, w, x); }
};

void conv_blocks(const Conv& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  for (; block < end; ++block) {
    conv_dots<NeonDots>(Shifted(c, block), n, first, last, block, block + 1);
  }
}

}  // namespace

extern const RegionKernel region_neon_dot;
constexpr RegionKernel region_neon_dot = {
    "neon_dot", kNeonDot, plan_dots<NeonDots>, conv_blocks, depthwise_simple,
    binary_simple, pool_simple, lookup_simple, affine_simple,
    interpolate_simple, quantize_simple, dequantize_simple, nullptr};

}  // namespace onnxq
