// For every processor: what the others are measured against. A task is a row of y; its scores are computed twice, so
// that there is no memory to ask for.

#include <math.h>

#include "../kernel.h"

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

int64_t workspace(const Attention&) { return 0; }

int64_t tasks(const Attention& p, int phase, int) { return phase == 0 ? p.heads * p.S : 0; }

void run(const Attention& p, int, int64_t row, int64_t, void*) {
  const Head& h = p.head[row / p.S];
  const int64_t s = row % p.S;
  float* const y = p.y + row * p.E;
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
      y[e] += weight * h.v[t * p.E + e];
    }
  }
  for (int64_t e = 0; e < p.E; ++e) {
    y[e] /= sum;
  }
}

}  // namespace

extern const AttentionKernel attention_scalar;
constexpr AttentionKernel attention_scalar = {"scalar", 0, workspace, tasks, run};

}  // namespace onnxq
