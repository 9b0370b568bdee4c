// ARM's products of matrices of bytes, two rows of eight by eight columns of two: two pixels and two outputs at a time.

#include <arm_neon.h>

#include "../../cpu/kernel.h"
#include "dot.h"
#include "interpolate.h"

namespace onnxq {
namespace {

struct NeonMatrices {
  static constexpr int kLanes = 4, kVectors = 4, kPixels = 6;  // three pairs of pixels by eight of outputs
  static constexpr bool kIsInOrder = true;
  using Problem = Conv;
  using Finish = BlockFinish;
  using Sum = int32_t;
  using I = int32x4_t;

  static const int32_t* starts(const Conv& c, int64_t block) { return c.bias + block * kBlock; }
  static void store(int32_t* p, I a) { vst1q_s32(p, a); }
};

template <int P, int vectors>
struct SumUp<NeonMatrices, P, vectors> {
  [[gnu::always_inline]] static inline void run(const Conv& c, const uint8_t* window, const int8_t* w, const int32_t* bias,
                                                int lane, int32x4_t (&sum)[P][vectors]) {
    constexpr int kPairs = (P + 1) / 2;
    int32x4_t square[kPairs][2 * vectors];
    unrolled<2 * vectors>([&](auto o) ONNXQ_INLINE {
      const int32x2_t start = vld1_s32(bias + lane + 2 * o);
      unrolled<kPairs>([&](auto i) ONNXQ_INLINE { square[i][o] = vcombine_s32(start, start); });
    });
    for (int64_t k = 0; k < c.chunks; ++k, w += kBlockBytes) {
      const uint8_t* x = window + c.offsets[k];
      const int8_t* q = w;
      // Behind the last quad of an odd number is one of zeros: a chunk has 16.
      for (int64_t quad = 0; quad < c.quads[k]; quad += 2, x += 8, q += 128) {
        uint8x16_t pixels[kPairs];
        unrolled<kPairs>([&](auto i) ONNXQ_INLINE {
          constexpr int second = 2 * i + 1 < P ? 2 * i + 1 : P - 1;
          pixels[i] = vcombine_u8(vld1_u8(x + 2 * i * c.step_x), vld1_u8(x + second * c.step_x));
        });
        unrolled<vectors>([&](auto v) ONNXQ_INLINE {
          const int at = lane + v * 4;
          const int8_t* const from = q + at / 16 * (kBlockBytes / 2) + at % 16 * 4;
          const int32x4_t a = vreinterpretq_s32_s8(vld1q_s8(from)), b = vreinterpretq_s32_s8(vld1q_s8(from + 64));
          const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(a, b)), high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
          unrolled<kPairs>([&](auto i) ONNXQ_INLINE {
            square[i][2 * v] = vusmmlaq_s32(square[i][2 * v], pixels[i], low);
            square[i][2 * v + 1] = vusmmlaq_s32(square[i][2 * v + 1], pixels[i], high);
          });
        });
      }
    }
    unrolled<P>([&](auto i) ONNXQ_INLINE {
      unrolled<vectors>([&](auto v) ONNXQ_INLINE {
        const int64x2_t a = vreinterpretq_s64_s32(square[i / 2][2 * v]), b = vreinterpretq_s64_s32(square[i / 2][2 * v + 1]);
        sum[i][v] = vreinterpretq_s32_s64(i % 2 ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
      });
    });
  }
};

}  // namespace

extern const RegionKernel region_neon_i8mm;
constexpr RegionKernel region_neon_i8mm = {
    "neon_dot", kNeonDot | kNeonI8mm, plan_dots<NeonMatrices>, conv_dots<NeonMatrices>, depthwise_simple,
    binary_simple, pool_simple, lookup_simple, affine_simple,
    interpolate_simple, quantize_simple, dequantize_simple, nullptr};

}  // namespace onnxq
