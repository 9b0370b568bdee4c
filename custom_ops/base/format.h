// The bytes of an `onnxq` weight: one layout on disk, read in place by every kernel. Included by kernels, so: C headers
// only, and everything in an anonymous namespace (an inline function with a symbol may be kept in the copy that was
// compiled for the newest processor, and then be called on an old one).
//
// A weight is w[N, K] ≈ scale · value(code). Rows come in tiles of 16, K is padded to Kp, a multiple of the block.
//
//   4-bit codes, uint8 [ceil(N/16), Kp/8, 16, 4]: one line of 64 bytes holds 16 rows × 8 k.
//
//                      row 16t + 0          row 16t + 1                row 16t + 15
//     byte           0    1    2    3     4    5    6    7    …     60   61   62   63
//     low nibble   k+0  k+1  k+2  k+3   k+0  k+1  k+2  k+3        k+0  k+1  k+2  k+3
//     high nibble  k+4  k+5  k+6  k+7   k+4  k+5  k+6  k+7        k+4  k+5  k+6  k+7
//
//   8-bit codes, uint8 [ceil(N/16), Kp/4, 16, 4]: one line holds 16 rows × 4 k.
//
//     byte         k+0  k+1  k+2  k+3   k+0  k+1  k+2  k+3        k+0  k+1  k+2  k+3
//
//   bfloat16 and float16, [ceil(N/16), Kp/2, 16, 2]: one line holds 16 rows × 2 k, 32 k of a tile are what an AMX register
//   holds.
//
//     2 bytes      k+0       k+1        k+0       k+1        …      k+0       k+1
//
//   So the nibbles of a line, or the line itself, are operands of 4 × 8-bit dot products (VNNI, dotprod, dp4a), or of
//   2 × 16-bit ones, without a shuffle, and a tile is one sequential stream.
//
//   scales and zero points, [ceil(N/16), Kp/block, 16]: the 16 rows of a block side by side.
//
// Rows behind N have scale 0 (any, where scales are E8M0: nobody reads their products); k behind K hold the code that
// decodes to zero. Blocks are multiples of 16, from 16 to 256. bfloat16 and float16 have neither scales nor zero points; their
// blocks, to which K is padded, are of 32.

#ifndef ONNXQ_FORMAT_H_
#define ONNXQ_FORMAT_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace onnxq {

// Numbers are part of the C ABI that tests and measurements use (kernels.py of tests/native and tests/cuda/abi.py name the
// same ones); files spell formats by name. kFormats and kScaleTypes count those of codes.
enum Format : int32_t {
  kInt4 = 0,
  kInt8 = 1,
  kNf4 = 2,
  kFp4 = 3,
  kMxfp4 = 4,
  kFormats = 5,
  kDenseBfloat16 = kFormats,
  kDenseFloat16,
  kAllFormats
};
enum ScaleType : int32_t { kScaleFloat32 = 0, kScaleFloat16 = 1, kScaleE8M0 = 2, kScaleTypes = 3, kNoScales = kScaleTypes };

constexpr int64_t kTile = 16;  // rows side by side
constexpr int64_t kLine = 64;  // bytes of one line of a tile
constexpr int64_t kMinBlock = 16, kMaxBlock = 256;
constexpr int64_t kDenseBlock = 32;  // of formats without codes

namespace {

constexpr bool is_affine(int32_t format) { return format == kInt4 || format == kInt8; }
constexpr bool is_dense(int32_t format) { return format >= kFormats; }
constexpr int64_t code_bits(int32_t format) { return is_dense(format) ? 16 : format == kInt8 ? 8 : 4; }
constexpr int64_t line_k(int32_t format) { return 32 / code_bits(format); }  // k held by one line
constexpr float middle_code(int32_t format) { return format == kInt8 ? 128.0f : 8.0f; }  // where there is no zero point
constexpr int64_t scale_bytes(int32_t type) {
  return type == kScaleFloat32 ? 4 : type == kScaleFloat16 ? 2 : type == kScaleE8M0 ? 1 : 0;
}

constexpr int64_t tiles(int64_t N) { return N / kTile + (N % kTile != 0); }
constexpr int64_t blocks(int64_t K, int64_t block) { return K / block + (K % block != 0); }
constexpr int64_t padded(int64_t K, int64_t block) { return blocks(K, block) * block; }
constexpr int64_t tile_bytes(int32_t format, int64_t Kp) { return Kp / line_k(format) * kLine; }

// Where the code of (row, k) of a tile lies. With 4 bits it is the high nibble where k % 8 ≥ 4.
constexpr int64_t code_byte(int32_t format, int64_t row, int64_t k) {
  return k / line_k(format) * kLine + row % kTile * 4 + (is_dense(format) ? k % 2 * 2 : k % 4);
}
constexpr bool in_high_nibble(int64_t k) { return k % 8 >= 4; }

static_assert(kTile * 4 == kLine, "a line holds four bytes of every row of a tile");
static_assert(kMinBlock % line_k(kInt4) == 0 && kMinBlock % line_k(kInt8) == 0, "no line belongs to two blocks");
static_assert(tile_bytes(kInt4, 32) == kTile * 32 / 2 && tile_bytes(kInt8, 32) == kTile * 32, "no byte is wasted");
static_assert(code_byte(kInt4, 15, 31) == tile_bytes(kInt4, 32) - 1, "the last code is in the last byte");
static_assert(code_byte(kInt8, 15, 31) == tile_bytes(kInt8, 32) - 1, "the last code is in the last byte");
static_assert(code_byte(kInt4, 3, 9) == code_byte(kInt4, 3, 13) && in_high_nibble(13) && !in_high_nibble(9),
              "k and k + 4 share a byte");

// value(code) of the formats whose codes index a table. Sources: QLoRA (2023), appendix E; bitsandbytes' FP4 as
// onnxruntime's MatMulBnb4 reads it; OCP Microscaling Formats 1.0, section 5.3.3 (E2M1).
constexpr float kLevels[kFormats][16] = {
    {},
    {},
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
     -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
     0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f},
    {0.0f, 0.0052083334885537624f, 0.6666666865348816f, 1.0f, 0.3333333432674408f, 0.5f, 0.1666666716337204f, 0.25f,
     0.0f, -0.0052083334885537624f, -0.6666666865348816f, -1.0f, -0.3333333432674408f, -0.5f, -0.1666666716337204f,
     -0.25f},
    {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f},
};

// A format that comes without its levels is no table of zeros.
constexpr bool has_levels(int32_t format) {
  for (const float level : kLevels[format]) {
    if (level != 0.0f) {
      return true;
    }
  }
  return false;
}
constexpr bool all_tables_have_levels() {
  for (int32_t format = 0; format < kFormats; ++format) {
    if (is_affine(format) == has_levels(format)) {
      return false;
    }
  }
  return true;
}
static_assert(all_tables_have_levels(), "a format whose codes index a table has one in kLevels, and no other format has");

inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Exact for every half, subnormals, infinities and NaN included, also where the processor takes subnormal floats for zero;
// free of branches, so that loops over it are vectorized.
inline float half_to_float(uint16_t half) {
  const int32_t magnitude = half & 0x7FFF;
  const uint32_t bias = magnitude >= 0x7C00 ? 0x70000000u : 0x38000000u;  // infinity and NaN: exponent 255
  const uint32_t normal = (static_cast<uint32_t>(magnitude) << 13) + bias;
  const uint32_t subnormal = float_to_bits(static_cast<float>(magnitude) * bits_to_float(0x33800000u));  // 2^-24
  return bits_to_float((magnitude < 0x0400 ? subnormal : normal) | static_cast<uint32_t>(half & 0x8000) << 16);
}

inline float bfloat16_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

// 2^(u - 127); 255 is NaN.
inline float e8m0_to_float(uint8_t u) {
  return bits_to_float(u == 0 ? 0x00400000u : u == 255 ? 0x7FC00000u : static_cast<uint32_t>(u) << 23);
}

// The i-th of `scales`.
inline float scale_at(const void* scales, int32_t type, int64_t i) {
  if (type == kNoScales) {
    return 1.0f;
  }
  if (type == kScaleFloat32) {
    return static_cast<const float*>(scales)[i];
  }
  if (type == kScaleFloat16) {
    return half_to_float(static_cast<const uint16_t*>(scales)[i]);
  }
  return e8m0_to_float(static_cast<const uint8_t*>(scales)[i]);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_FORMAT_H_
