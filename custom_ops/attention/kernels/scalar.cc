// For every processor: in_floats.h on the compiler's own vectors of four; where they do not serve, a row of y at a time, whose
// scores are computed twice, so that there is no memory to ask for.

#include "in_floats.h"

namespace onnxq {
namespace {

float score(const Attention& p, const Head& h, int64_t s, int64_t t) {
  const float *q = h.q + s * p.q_row, *k = h.k + t * p.k_token;
  float sum = 0;
  for (int64_t d = 0; d < p.D; ++d) {
    sum += q[d] * k[d * p.k_number];
  }
  return sum * p.scale + (h.mask ? h.mask[s * p.mask_row + t * p.mask_token] : 0.0f);
}

void run_row(const Attention& p, int64_t row) {
  const Head& h = p.head[row / p.S];
  const int64_t s = row % p.S;
  float* const y = h.y + s * p.y_row;
  float most = -INFINITY, sum = 0;
  for (int64_t t = 0; t < p.T; ++t) {
    const float x = score(p, h, s, t);
    most = x > most ? x : most;
  }
  for (int64_t e = 0; e < p.E; ++e) {
    y[e] = 0;
  }
  for (int64_t t = 0; t < p.T; ++t) {
    const float weight = expf(score(p, h, s, t) - most);
    sum += weight;
    for (int64_t e = 0; e < p.E; ++e) {
      y[e] += weight * h.v[t * p.v_token + e];
    }
  }
  for (int64_t e = 0; e < p.E; ++e) {
    y[e] /= sum;
  }
}

// Registers that every x86-64 and every aarch64 has.
struct Four {
  static constexpr int kLanes = 4;
  static constexpr int kFloatRows = 4;
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));

  static F zero() { return F{}; }
  static F all(float a) { return F{a, a, a, a}; }
  static F broadcast(const float* p) { return all(*p); }
  static F load(const float* p) { return load(p, kLanes); }
  static F load(const float* p, int64_t lanes) {
    F made = {};
    memcpy(&made, p, static_cast<size_t>(lanes) * sizeof(float));
    return made;
  }
  static void store(float* p, F a) { store(p, a, kLanes); }
  static void store(float* p, F a, int64_t lanes) { memcpy(p, &a, static_cast<size_t>(lanes) * sizeof(float)); }
  static F add(F a, F b) { return a + b; }
  static F subtract(F a, F b) { return a - b; }
  static F multiply(F a, F b) { return a * b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F choose(I which, F a, F b) { return (F)((which & (I)a) | (~which & (I)b)); }
  // The second where either is NaN.
  static F max(F a, F b) { return choose(a > b, a, b); }
  static float sum(F a) { return (a[0] + a[1]) + (a[2] + a[3]); }

  static bool any_above(F a, float bound) {
    const I above = ~(a <= all(bound));
    return (above[0] | above[1] | above[2] | above[3]) != 0;
  }

  static float largest(F a) {
    float most = a[0];
    for (int i = 1; i < kLanes; ++i) {
      most = a[i] > most ? a[i] : most;
    }
    return most;
  }

  // e^x for x ≤ 0, NaN where x is, 0 where it would be subnormal; within 2^-22.
  static F exp(F x) {
    const F lowest = all(-87.0f), least = max(lowest, x);
    const F moved = least * 1.44269504f + 12582912.0f;  // to a whole number: base/rounding.h
    const F n = moved - 12582912.0f, r = (least - n * 0.693359375f) + n * 2.12194440e-4f;
    F y = all(1.0f / 720);
    constexpr float kFactors[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (const float factor : kFactors) {
      y = y * r + factor;
    }
    const I exponent = ((I)moved - 0x4B400000 + 127) << 23;
    return choose(x < lowest, zero(), y * (F)exponent);
  }
};

using Floats = InFloats<Four>;

bool by_vectors(const Attention& p) { return Floats::workspace(p) >= 0; }

int64_t workspace(const Attention& p) { return by_vectors(p) ? Floats::workspace(p) : 0; }

int64_t tasks(const Attention& p, int phase, int threads) {
  return by_vectors(p) ? Floats::tasks(p, phase, threads) : phase == 0 ? p.heads * p.S : 0;
}

void run(const Attention& p, int phase, int64_t task, int64_t tasks, void* workspace) {
  by_vectors(p) ? Floats::run(p, phase, task, tasks, workspace) : run_row(p, task);
}

}  // namespace

extern const AttentionKernel attention_scalar;
constexpr AttentionKernel attention_scalar = {"scalar", 0, workspace, tasks, run};

}  // namespace onnxq
