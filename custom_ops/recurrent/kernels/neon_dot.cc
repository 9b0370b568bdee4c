// ARM's dot product of bytes: registers of four numbers, a quarter of a tile's line.

#include <arm_neon.h>

#include "cells.h"

namespace onnxq {
namespace {

struct Quarter {
  static constexpr int kLanes = 4;
  static constexpr int kSums = 24;  // of 32 registers
  using F = float32x4_t;
  using I = int32x4_t;
  using U = uint32x4_t;
  using W = int8x16_t;

  // --- numbers ------------------------------------------------------------------------------------------------------------

  static F load(const float* p) { return vld1q_f32(p); }
  static F load(const float* p, int64_t lanes) {
    float held[kLanes] = {};
    memcpy(held, p, static_cast<size_t>(lanes) * sizeof(float));
    return vld1q_f32(held);
  }
  static void store(float* p, F a) { vst1q_f32(p, a); }
  static void store(float* p, F a, int64_t lanes) {
    float held[kLanes];
    vst1q_f32(held, a);
    memcpy(p, held, static_cast<size_t>(lanes) * sizeof(float));
  }
  static F all(float a) { return vdupq_n_f32(a); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F subtract(F a, F b) { return vsubq_f32(a, b); }
  static F multiply(F a, F b) { return vmulq_f32(a, b); }
  static F divide(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F round(F a) { return vrndnq_f32(a); }
  static F times_power(F a, F n) {
    const I exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
  }
  static F magnitude(F a) { return vabsq_f32(a); }
  static F with_sign_of(F a, F size) { return vbslq_f32(vdupq_n_u32(1u << 31), a, size); }
  static F when_negative(F x, F a, F b) {
    return vbslq_f32(vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(x), 31)), a, b);
  }

  // --- codes --------------------------------------------------------------------------------------------------------------

  static U no_bits() { return vdupq_n_u32(0); }
  static U magnitude_bits(F a) { return vreinterpretq_u32_f32(magnitude(a)); }
  static U larger(U a, U b) { return vmaxq_u32(a, b); }
  static uint32_t largest(U a) { return vmaxvq_u32(a); }
  static F finite(F a) { return max(min(a, all(kLargest)), all(-kLargest)); }
  static I nearest(F a) { return vcvtnq_s32_f32(a); }
  static I high_of(I a) { return vshrq_n_s32(vaddq_s32(a, vdupq_n_s32(64)), 7); }
  static I low_of(I a, I high) { return vsubq_s32(a, vshlq_n_s32(high, 7)); }
  static I no_sum() { return vdupq_n_s32(0); }
  static I sum(I a, I b) { return vaddq_s32(a, b); }
  static int32_t total(I a) { return vaddvq_s32(a); }
  static void store_bytes(char* to, I a) {
    const int32x2_t bytes = vreinterpret_s32_s8(narrow(a, a));
    const int32_t four = vget_lane_s32(bytes, 0);
    memcpy(to, &four, sizeof four);
  }
  static void store_pairs(char* to, I high, I low) { vst1_s8(reinterpret_cast<int8_t*>(to), narrow(high, low)); }

  // --- sums ---------------------------------------------------------------------------------------------------------------

  static W weights(const uint8_t* p) { return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(128))); }
  static I broadcast(const char* p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vdupq_n_s32(four);
  }
  static I start(int32_t) { return no_sum(); }
  static I dot(I sum, W w, I bytes) { return vdotq_s32(sum, w, vreinterpretq_s8_s32(bytes)); }
  static void renew(I& sum) { __asm__("" : "+w"(sum)); }
  static F to_float(I a) { return vcvtq_f32_s32(a); }

 private:
  static int8x8_t narrow(I a, I b) { return vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b))); }
};

}  // namespace

extern const RecurrentKernel recurrent_neon_dot;
constexpr RecurrentKernel recurrent_neon_dot = {"neon_dot", kNeonDot, 15, run_job<Quarter>};

}  // namespace onnxq
