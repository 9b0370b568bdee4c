// The three element types of activations: how they lie in memory, and which tensor-core type they are multiplied in.
#pragma once

#include "device.h"

namespace onnxq {
namespace {

ONNXQ_DEVICE float from_bf16_bits(uint32_t bits) { return as_float(bits << 16); }

// A type of the tensor cores.
struct F16 {
  static ONNXQ_DEVICE uint32_t pack(float low, float high) { return pack_f16x2(low, high); }
  static ONNXQ_DEVICE void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                               uint32_t b1) {
    mma_f16(d, a0, a1, a2, a3, b0, b1);
  }
};
struct Bf16 {
  static ONNXQ_DEVICE uint32_t pack(float low, float high) { return pack_bf16x2(low, high); }
  static ONNXQ_DEVICE void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                               uint32_t b1) {
    mma_bf16(d, a0, a1, a2, a3, b0, b1);
  }
};

// Eight consecutive elements, 16 or 32 bytes, aligned to 16, as pairs in `order` for operand B.
template <PairOrder order>
ONNXQ_DEVICE void pairs_of_halves(const char* from, uint32_t (&pair)[4]) {
  const Vector v = *reinterpret_cast<const Vector*>(from);
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const int low = pair_k(order, p, 0), high = pair_k(order, p, 1);
    if (order == kPlain) {
      pair[p] = v.word[p];
    } else {
      pair[p] = permute(v.word[low / 2], v.word[high / 2], (low % 2 ? 0x32u : 0x10u) | (high % 2 ? 0x7600u : 0x5400u));
    }
  }
}

struct Float16 {
  using Compute = F16;
  using Bits = uint16_t;
  static ONNXQ_DEVICE float value(Bits bits) { return from_f16(bits); }
  static ONNXQ_DEVICE Bits bits(float value) { return static_cast<Bits>(pack_f16x2(value, 0.0f)); }
  template <PairOrder order>
  static ONNXQ_DEVICE void pairs(const char* from, uint32_t (&pair)[4]) {
    pairs_of_halves<order>(from, pair);
  }
};

struct Bfloat16 {
  using Compute = Bf16;
  using Bits = uint16_t;
  static ONNXQ_DEVICE float value(Bits bits) { return from_bf16_bits(bits); }
  static ONNXQ_DEVICE Bits bits(float value) { return static_cast<Bits>(pack_bf16x2(value, 0.0f)); }
  template <PairOrder order>
  static ONNXQ_DEVICE void pairs(const char* from, uint32_t (&pair)[4]) {
    pairs_of_halves<order>(from, pair);
  }
};

// Multiplied as bfloat16, which has the range of float32: float16 would turn 70000 into infinity.
struct Float32 {
  using Compute = Bf16;
  using Bits = uint32_t;
  static ONNXQ_DEVICE float value(Bits bits) { return as_float(bits); }
  static ONNXQ_DEVICE Bits bits(float value) { return as_bits(value); }
  template <PairOrder order>
  static ONNXQ_DEVICE void pairs(const char* from, uint32_t (&pair)[4]) {
    const Vector v[2] = {reinterpret_cast<const Vector*>(from)[0], reinterpret_cast<const Vector*>(from)[1]};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int low = pair_k(order, p, 0), high = pair_k(order, p, 1);
      pair[p] = Compute::pack(as_float(v[low / 4].word[low % 4]), as_float(v[high / 4].word[high % 4]));
    }
  }
};

// Eight elements from `from`, of which the first `count` exist; `aligned` to 16 bytes or not.
template <class X>
ONNXQ_DEVICE void load_eight(const typename X::Bits* from, int count, bool aligned, float (&v)[8]) {
  if (aligned && count >= 8) {
    constexpr int kPerVector = 16 / sizeof(typename X::Bits);
#pragma unroll
    for (int i = 0; i < 8 / kPerVector; ++i) {
      const Vector got = reinterpret_cast<const Vector*>(from)[i];
#pragma unroll
      for (int e = 0; e < kPerVector; ++e) {
        const uint32_t word = got.word[e * sizeof(typename X::Bits) / 4];
        v[i * kPerVector + e] = X::value(static_cast<typename X::Bits>(kPerVector == 8 ? word >> (e % 2 * 16) : word));
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    v[e] = e < count ? X::value(from[e]) : 0.0f;
  }
}

// 8 values to consecutive elements, aligned to 16 bytes. 16 bytes leave at a time: 8 lanes side by side fill whole sectors
// of memory, of which stores of 8 bytes would send each twice.
template <class X>
ONNXQ_DEVICE void store_eight(typename X::Bits* to, const float (&v)[8]) {
  constexpr int kPerVector = 16 / sizeof(typename X::Bits);
  struct alignas(16) Sixteen {
    typename X::Bits bits[kPerVector];
  };
#pragma unroll
  for (int i = 0; i < 8 / kPerVector; ++i) {
    Sixteen out;
#pragma unroll
    for (int e = 0; e < kPerVector; ++e) {
      out.bits[e] = X::bits(v[i * kPerVector + e]);
    }
    reinterpret_cast<Sixteen*>(to)[i] = out;
  }
}

// `count` (up to 4) values to consecutive elements; `aligned` to the four of them or not.
template <class X>
ONNXQ_DEVICE void store_four(typename X::Bits* to, const float (&v)[4], int count, bool aligned) {
  if (aligned && count >= 4) {
    struct alignas(4 * sizeof(typename X::Bits)) Four {
      typename X::Bits bits[4];
    };
    *reinterpret_cast<Four*>(to) = {{X::bits(v[0]), X::bits(v[1]), X::bits(v[2]), X::bits(v[3])}};
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (e < count) {
      to[e] = X::bits(v[e]);
    }
  }
}

}  // namespace
}  // namespace onnxq
