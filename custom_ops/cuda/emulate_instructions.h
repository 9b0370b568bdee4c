// Instructions of device.h in plain C++; part of emulate.h. Halves are computed in double and rounded once.
#pragma once

#include "emulate.h"

namespace onnxq {

inline float as_float(uint32_t bits) { return bits_to_float(bits); }
inline uint32_t as_bits(float value) { return float_to_bits(value); }
template <uint32_t mask>
uint32_t and_or(uint32_t a, uint32_t magic) {
  return (a & mask) | magic;
}
template <class T>
T keep(T value) {
  return value;
}
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t d = 0;
  for (int i = 0; i < 4; ++i) {
    d |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return d;
}

// To nearest, ties to even, of a number with `mantissa` bits behind the point and the least normal exponent `least`.
inline double round_to(double v, int mantissa, int least) {
  if (v == 0 || !std::isfinite(v)) {
    return v;
  }
  int exponent;
  std::frexp(v, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 1, least) - mantissa);
  return std::nearbyint(v / unit) * unit;
}
inline uint32_t to_f16(double v) {
  const double r = round_to(v, 10, -14);
  const uint32_t sign = std::signbit(v) ? 0x8000u : 0u;
  if (std::isnan(v)) {
    return 0x7fff;
  }
  const double magnitude = std::fabs(r);
  if (magnitude >= 65536.0) {
    return sign | 0x7c00u;
  }
  if (magnitude < std::ldexp(1.0, -14)) {
    return sign | static_cast<uint32_t>(std::ldexp(magnitude, 24));
  }
  int exponent;
  const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  return sign | (static_cast<uint32_t>(exponent + 14) << 10) |
         (static_cast<uint32_t>(std::ldexp(fraction, 11)) & 0x3ffu);
}
inline uint32_t to_bf16(double v) {
  if (std::isnan(v)) {
    return 0x7fff;
  }
  return as_bits(static_cast<float>(round_to(v, 7, -126))) >> 16;
}
inline float from_f16(uint32_t bits) { return half_to_float(static_cast<uint16_t>(bits)); }
inline float from_bf16(uint32_t bits) { return as_float(bits << 16); }

inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
  const auto sum = [](uint32_t p, uint32_t q) {
    return to_f16(static_cast<double>(from_f16(p & 0xffff)) + from_f16(q & 0xffff));
  };
  return sum(a, b) | sum(a >> 16, b >> 16) << 16;
}
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [](uint32_t p, uint32_t q, uint32_t r) {
    return to_f16(static_cast<double>(from_f16(p & 0xffff)) * from_f16(q & 0xffff) + from_f16(r & 0xffff));
  };
  return one(a, b, c) | one(a >> 16, b >> 16, c >> 16) << 16;
}
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [](uint32_t p, uint32_t q, uint32_t r) {
    return to_bf16(static_cast<double>(from_bf16(p & 0xffff)) * from_bf16(q & 0xffff) + from_bf16(r & 0xffff));
  };
  return one(a, b, c) | one(a >> 16, b >> 16, c >> 16) << 16;
}
inline uint32_t pack_f16x2(float low, float high) { return to_f16(low) | to_f16(high) << 16; }
inline uint32_t pack_bf16x2(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }

inline Vector load_stream(const void* address) {
  emulation::check_alignment(address, 16);
  Vector v;
  std::memcpy(&v, address, sizeof v);
  return v;
}

template <int size>
void copy_async(void* to, const void* from, int bytes) {
  emulation::check_alignment(to, size);
  emulation::check_alignment(from, size);
  emulation::check_shared(to, size);
  if (bytes < 0 || bytes > size) {
    emulation::fail("a copy of more bytes than its size");
  }
  const emulation::Copy copy{static_cast<char*>(to), static_cast<const char*>(from), size, bytes};
  if (emulation::block->mode & emulation::kEager) {
    emulation::run_copy(copy);
  } else {
    emulation::lane().groups.back().push_back(copy);
  }
}
inline void copy_commit() { emulation::lane().groups.emplace_back(); }
template <int groups>
void copy_wait() {
  auto& pending = emulation::lane().groups;  // the last one is still open
  while (pending.size() > groups + 1) {
    for (const emulation::Copy& copy : pending.front()) {
      emulation::run_copy(copy);
    }
    pending.erase(pending.begin());
  }
}

// Every lane leaves its operands where the others see them; once all have come, each takes its own elements of the
// result, which are numbered as the PTX manual numbers them.
template <class Convert>
void mma(Convert convert, float (&d)[4], const uint32_t (&operands)[6]) {
  emulation::meet_with(operands);
  emulation::Operands& all = emulation::block->warps[thread_index() / 32];
  if (all.used++ % 32 == 0) {
    for (int lane = 0; lane < 32; ++lane) {
      const uint32_t* from = emulation::operands_of(lane);
      const auto half = [&](int i, int e) { return convert(from[i] >> (16 * e) & 0xffffu); };
      for (int e = 0; e < 8; ++e) {
        const At at = mma_a(lane, e);
        all.a[at.row][at.column] = half(e / 2, e % 2);
      }
      for (int e = 0; e < 4; ++e) {
        const At at = mma_b(lane, e);
        all.b[at.row][at.column] = half(4 + e / 2, e % 2);
      }
    }
  }
  for (int e = 0; e < 4; ++e) {
    const At at = mma_c(thread_index() % 32, e);
    for (int k = 0; k < 16; ++k) {
      d[e] += all.a[at.row][k] * all.b[k][at.column];
    }
  }
}
inline void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  mma(from_f16, d, {a0, a1, a2, a3, b0, b1});
}
inline void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  mma(from_bf16, d, {a0, a1, a2, a3, b0, b1});
}

inline float shuffle_xor(float v, int mask) {
  emulation::meet_with({as_bits(v)});
  return as_float(emulation::operands_of((thread_index() % 32) ^ mask)[0]);
}

inline void fence() {}
inline uint32_t increment(uint32_t* counter) { return (*counter)++; }
inline float load_fresh(const float* p) { return *p; }

}  // namespace onnxq
