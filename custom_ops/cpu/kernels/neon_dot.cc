// ARM's dot product of bytes, for `fast` and the formats whose codes or levels are whole numbers; for all else the compiler's
// own vectors in scalar.cc are taken.
//
// Activations become int8 for every 16 k, so that an outlier spoils no more than its 15 neighbours: a step of amax / 127
// leaves at most √(16 / 12) / 127 = 0.0091 of the norm of the 16.

#include <arm_neon.h>

#include "../kernel.h"

namespace onnxq {
namespace {

constexpr int64_t kSub = 16;
constexpr int64_t kRows = 2;  // of activations at once: 2 × 4 × (integers, block, sum) of 32 registers, and the weight

// 16 activations of one row: x ≈ scale · q.
struct Sub {
  int8_t q[kSub];
  float scale;
  int32_t sum;  // of q
};
static_assert(sizeof(Sub) == 24, "no padding");

// E2M1 doubled.
constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int64_t subs(const Problem& p) { return padded(p.K, p.block) / kSub; }

bool offered(const Problem& p) { return !p.exact && (is_affine(p.format) || p.format == kMxfp4); }

int64_t workspace(const Problem& p) {
  return offered(p) ? p.M * subs(p) * static_cast<int64_t>(sizeof(Sub)) : -1;
}

int64_t tasks(const Problem& p, int phase) { return phase == 0 ? p.M : phase == 1 ? tiles(p.N) : 0; }

Sub quantize(const float* x, int64_t count) {
  float held[kSub] = {};
  memcpy(held, x, static_cast<size_t>(count) * sizeof(float));
  uint32_t largest = 0;  // as bits, where NaN is larger than every number
  for (int64_t i = 0; i < kSub; ++i) {
    const uint32_t magnitude = float_to_bits(held[i]) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  constexpr float kSmallest = 1.17549435e-38f, kLargest = 3.40282347e38f;
  const float amax = bits_to_float(largest), step = (amax <= kLargest ? amax : kLargest) * (1.0f / 127.0f);
  const float scale = step < kSmallest ? kSmallest : step;  // whose inverse is finite
  const float32x4_t inverse = vdupq_n_f32(1.0f / scale), most = vdupq_n_f32(kLargest), least = vdupq_n_f32(-kLargest);
  int32x4_t q[4];
  for (int i = 0; i < 4; ++i) {
    const float32x4_t finite = vmaxq_f32(vminq_f32(vld1q_f32(held + 4 * i), most), least);
    q[i] = vcvtnq_s32_f32(vmulq_f32(finite, inverse));
  }
  const int8x16_t bytes = vcombine_s8(vqmovn_s16(vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1]))),
                                      vqmovn_s16(vcombine_s16(vqmovn_s32(q[2]), vqmovn_s32(q[3]))));
  Sub sub;
  vst1q_s8(sub.q, bytes);
  sub.scale = amax <= kLargest ? scale : amax;  // an infinite or NaN scale carries what the codes cannot
  sub.sum = vaddlvq_s8(bytes);
  return sub;
}

// Columns 4v … 4v + 3 of the four k that are number `part` of 16, as signed bytes.
template <int32_t format, int part>
inline __attribute__((always_inline)) int8x16_t operand(const uint8_t* weight, int v) {
  if constexpr (format == kInt8) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(weight + part * kLine + v * 16), vdupq_n_u8(128)));
  } else {
    const uint8x16_t line = vld1q_u8(weight + part / 2 * kLine + v * 16);
    const uint8x16_t code = part % 2 ? vshrq_n_u8(line, 4) : vandq_u8(line, vdupq_n_u8(15));
    return format == kMxfp4 ? vqtbl1q_s8(vld1q_s8(kDoubled), code) : vreinterpretq_s8_u8(code);
  }
}

template <int32_t format, int part, int R>
inline __attribute__((always_inline)) void dot(const uint8_t* weight, const int8x16_t* q, int32x4_t (*sum)[4]) {
  for (int v = 0; v < 4; ++v) {
    const int8x16_t w = operand<format, part>(weight, v);
    for (int r = 0; r < R; ++r) {
      sum[r][v] = vdotq_laneq_s32(sum[r][v], w, q[r], part);
    }
  }
}

// R rows of activations times one tile.
template <int32_t format, int R>
void multiply(const Problem& p, const Sub* row, int64_t m, int64_t tile) {
  constexpr int64_t kBytes = kSub / line_k(format) * kLine;
  const int64_t count = blocks(p.K, p.block), stride = subs(p), first = tile * kTile;
  const uint8_t* weight = p.weight + tile * tile_bytes(p.format, count * p.block);
  const float unit = format == kMxfp4 ? 0.5f : 1.0f;
  float32x4_t y[R][4];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < 4; ++v) {
      y[r][v] = vdupq_n_f32(0);
    }
  }
  for (int64_t b = 0; b < count; ++b) {
    const int64_t at = (tile * count + b) * kTile;
    int32x4_t zero[4];
    float32x4_t block[R][4];
    for (int v = 0; v < 4; ++v) {
      int32_t zeros[4];
      for (int i = 0; i < 4; ++i) {
        const int32_t code = p.zero_points ? p.zero_points[at + 4 * v + i] : static_cast<int32_t>(middle_code(format));
        zeros[i] = format == kMxfp4 ? 0 : format == kInt8 ? code - 128 : code;
      }
      zero[v] = vld1q_s32(zeros);
      for (int r = 0; r < R; ++r) {
        block[r][v] = vdupq_n_f32(0);
      }
    }
    for (int64_t i = 0; i < p.block / kSub; ++i, ++row, weight += kBytes) {
      int8x16_t q[R];
      int32x4_t sum[R][4];
      for (int r = 0; r < R; ++r) {
        q[r] = vld1q_s8(row[r * stride].q);
        for (int v = 0; v < 4; ++v) {
          sum[r][v] = vmulq_n_s32(zero[v], -row[r * stride].sum);
        }
      }
      dot<format, 0, R>(weight, q, sum);
      dot<format, 1, R>(weight, q, sum);
      dot<format, 2, R>(weight, q, sum);
      dot<format, 3, R>(weight, q, sum);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < 4; ++v) {
          block[r][v] = vfmaq_n_f32(block[r][v], vcvtq_f32_s32(sum[r][v]), row[r * stride].scale);
        }
      }
    }
    for (int v = 0; v < 4; ++v) {
      float scales[4];
      for (int i = 0; i < 4; ++i) {
        scales[i] = unit * scale_at(p.scales, p.scale_type, at + 4 * v + i);
      }
      for (int r = 0; r < R; ++r) {
        y[r][v] = vfmaq_f32(y[r][v], block[r][v], vld1q_f32(scales));
      }
    }
  }
  const int64_t columns = p.N - first < kTile ? p.N - first : kTile;
  for (int r = 0; r < R; ++r) {
    float row_of_y[kTile];
    for (int v = 0; v < 4; ++v) {
      vst1q_f32(row_of_y + 4 * v, y[r][v]);
    }
    for (int64_t n = 0; n < columns; ++n) {
      p.y[(m + r) * p.N + first + n] = row_of_y[n] + (p.bias ? p.bias[first + n] : 0.0f);
    }
  }
}

template <int32_t format>
void multiply_tile(const Problem& p, const Sub* x, int64_t tile) {
  int64_t m = 0;
  for (; m + kRows <= p.M; m += kRows) {
    multiply<format, kRows>(p, x + m * subs(p), m, tile);
  }
  if (m < p.M) {
    multiply<format, 1>(p, x + m * subs(p), m, tile);
  }
}

void run(const Problem& p, int phase, int64_t task, int64_t, void* workspace) {
  Sub* const x = static_cast<Sub*>(workspace);
  if (phase == 0) {
    for (int64_t i = 0; i < subs(p); ++i) {
      const int64_t start = i * kSub, left = start < p.K ? p.K - start : 0;
      x[task * subs(p) + i] = quantize(p.x + task * p.K + (left ? start : 0), left < kSub ? left : kSub);
    }
  } else if (p.format == kInt4) {
    multiply_tile<kInt4>(p, x, task);
  } else if (p.format == kInt8) {
    multiply_tile<kInt8>(p, x, task);
  } else {
    multiply_tile<kMxfp4>(p, x, task);
  }
}

}  // namespace

extern const Kernel kernel_neon_dot;
constexpr Kernel kernel_neon_dot = {"neon_dot", kNeonDot, workspace, tasks, run};

}  // namespace onnxq
