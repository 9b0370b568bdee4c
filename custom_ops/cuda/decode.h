// Codes to numbers. Each decoder turns a lane's 8 consecutive codes of a row into four registers of two 16-bit numbers,
// exactly `code - zero point` or the nearest 16-bit number to the table's level; scales come after the product.
//
// Instructions for 8 codes: int4 to float16 9, to bfloat16 11; int8 to float16 8, to bfloat16 20; tables 12, of which 4
// read shared memory. A GPU that streams 4-bit codes at 4.8 TB/s through 132 multiprocessors at 1.75 GHz has 25 for
// them.
#pragma once

#include <type_traits>

#include "element.h"

namespace onnxq {
namespace {

// A whole number below 2^m placed in the low mantissa bits of 2^m is 2^m plus that number: 1024 = 0x6400 in float16,
// 128 = 0x4300 in bfloat16, 2^23 = 0x4b000000 in float32. One exact subtraction takes 2^m and the zero point away.
template <class Compute>
struct Int4;

template <>
struct Int4<F16> {
  static constexpr PairOrder kOrder = kEven;
  static constexpr bool kWide = false, kTable = false;
  struct Zero {
    uint32_t low, high;  // -(1024 + z) and -(64 + z), twice each
  };
  static ONNXQ_DEVICE Zero zero(uint32_t z) { return {0xe400e400u + z * 0x00010001u, 0xd400d400u + z * 0x00100010u}; }
  static ONNXQ_DEVICE void decode(const uint32_t* word, Zero zero, const uint32_t*, uint32_t (&pair)[4]) {
    const uint32_t magic = keep(0x64006400u);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = word[0] >> (8 * i);
      pair[2 * i] = add_f16x2(and_or<0x000f000fu>(w, magic), zero.low);
      // A nibble four bits higher counts 16 times: (1024 + 16 q) / 16 - (64 + z).
      pair[2 * i + 1] = fma_f16x2(and_or<0x00f000f0u>(w, magic), 0x2c002c00u, zero.high);
    }
  }
};

template <>
struct Int4<Bf16> {
  static constexpr PairOrder kOrder = kEven;
  static constexpr bool kWide = false, kTable = false;
  struct Zero {
    uint32_t both;  // -(128 + z), twice
  };
  static ONNXQ_DEVICE Zero zero(uint32_t z) { return {0xc300c300u + z * 0x00010001u}; }
  static ONNXQ_DEVICE void decode(const uint32_t* word, Zero zero, const uint32_t*, uint32_t (&pair)[4]) {
    const uint32_t magic = keep(0x43004300u);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      pair[p] = fma_bf16x2(and_or<0x000f000fu>(word[0] >> (4 * p), magic), 0x3f803f80u, zero.both);
    }
  }
};

template <class Compute>
struct Int8;

template <>
struct Int8<F16> {
  static constexpr PairOrder kOrder = kPlain;
  static constexpr bool kWide = true, kTable = false;
  struct Zero {
    uint32_t both;  // -(1024 + z), twice
  };
  static ONNXQ_DEVICE Zero zero(uint32_t z) { return {0xe400e400u + z * 0x00010001u}; }
  static ONNXQ_DEVICE void decode(const uint32_t* word, Zero zero, const uint32_t*, uint32_t (&pair)[4]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      pair[p] = add_f16x2(permute(word[p / 2], 0x64646464u, p % 2 ? 0x4342u : 0x4140u), zero.both);
    }
  }
};

// bfloat16 holds every whole number up to 256, but no 8-bit code beside a constant: through float32.
template <>
struct Int8<Bf16> {
  static constexpr PairOrder kOrder = kPlain;
  static constexpr bool kWide = true, kTable = false;
  struct Zero {
    float value;  // 2^23 + z
  };
  static ONNXQ_DEVICE Zero zero(uint32_t z) { return {as_float(0x4b000000u + z)}; }
  static ONNXQ_DEVICE void decode(const uint32_t* word, Zero zero, const uint32_t*, uint32_t (&pair)[4]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const uint32_t w = word[p / 2], first = 0x7540u + p % 2 * 2;
      const float low = as_float(permute(w, 0x4b000000u, first)), high = as_float(permute(w, 0x4b000000u, first + 1));
      pair[p] = pack_bf16x2(low - zero.value, high - zero.value);
    }
  }
};

// Any 16 levels. A byte holds two codes; a table of all 256 pairs, once for every lane so that each lane reads a bank
// of its own, gives both numbers at one read: 32 KB of shared memory.
template <class Compute>
struct Table {
  static constexpr PairOrder kOrder = kSplit;
  static constexpr bool kWide = false, kTable = true;
  struct Zero {};
  static ONNXQ_DEVICE Zero zero(uint32_t) { return {}; }
  static ONNXQ_DEVICE void decode(const uint32_t* word, Zero, const uint32_t* table, uint32_t (&pair)[4]) {
    const uint32_t lane = static_cast<uint32_t>(thread_index()) % 32;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      pair[p] = table[((word[0] >> (8 * p)) & 0xffu) * 32 + lane];
    }
  }
  // By all threads of the block; the caller waits for it.
  static ONNXQ_DEVICE void fill(uint32_t* table, const float* levels, int threads) {
    for (int i = thread_index(); i < kTableEntries; i += threads) {
      table[i] = Compute::pack(levels[i / 32 % 16], levels[i / 32 / 16]);
    }
  }
  static constexpr int kTableEntries = 256 * 32;
};

// One code in float32, for the kernels that are bound by other things, and for whole rows.
ONNXQ_DEVICE float decode_one(uint32_t code, int format, uint32_t zero, const float* levels) {
  return format == kInt4 || format == kInt8 ? static_cast<float>(static_cast<int>(code) - static_cast<int>(zero))
                                            : levels[code];
}

ONNXQ_DEVICE int scale_size(int type) { return type == kScaleFloat32 ? 4 : type == kScaleFloat16 ? 2 : 1; }

// Scales of rows 4c … 4c+3 of a tile as they lie in memory: apart from what they mean, so that several loads can be on their
// way before the first is needed. From anywhere that is aligned to four of them.
template <int type>
ONNXQ_DEVICE Vector fetch_scales_of(const char* from) {
  struct alignas(8) Two {
    uint32_t word[2];
  };
  Vector raw = {};
  if (type == kScaleFloat16) {
    const Two v = *reinterpret_cast<const Two*>(from);
    raw.word[0] = v.word[0];
    raw.word[1] = v.word[1];
  } else if (type == kScaleFloat32) {
    raw = *reinterpret_cast<const Vector*>(from);
  } else {
    raw.word[0] = *reinterpret_cast<const uint32_t*>(from);
  }
  return raw;
}

template <int type>
ONNXQ_DEVICE void read_scales_of(const Vector& raw, float (&s)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (type == kScaleFloat16) {
      s[i] = from_f16(raw.word[i / 2] >> (i % 2 * 16) & 0xffffu);
    } else if (type == kScaleFloat32) {
      s[i] = as_float(raw.word[i]);
    } else {  // 2^(u - 127); 2^-127 is subnormal, 255 is NaN
      const uint32_t u = raw.word[0] >> (8 * i) & 0xffu;
      s[i] = as_float(u == 0 ? 0x00400000u : u == 255 ? 0x7fc00000u : u << 23);
    }
  }
}

template <class Call>
ONNXQ_DEVICE void by_scale_type(int type, Call call) {
  if (type == kScaleFloat16) {
    call(std::integral_constant<int, kScaleFloat16>());
  } else if (type == kScaleFloat32) {
    call(std::integral_constant<int, kScaleFloat32>());
  } else {
    call(std::integral_constant<int, kScaleE8M0>());
  }
}

ONNXQ_DEVICE Vector fetch_scales(const char* from, int type) {
  Vector raw;
  by_scale_type(type, [&](auto t) { raw = fetch_scales_of<decltype(t)::value>(from); });
  return raw;
}

ONNXQ_DEVICE void read_scales(const Vector& raw, int type, float (&s)[4]) {
  by_scale_type(type, [&](auto t) { read_scales_of<decltype(t)::value>(raw, s); });
}

ONNXQ_DEVICE void load_scales(const char* from, int type, float (&s)[4]) {
  by_scale_type(type, [&](auto t) {
    read_scales_of<decltype(t)::value>(fetch_scales_of<decltype(t)::value>(from), s);
  });
}

}  // namespace
}  // namespace onnxq
