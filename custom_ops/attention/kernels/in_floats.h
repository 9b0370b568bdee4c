// Attention in float32. A block of rows meets all tokens, some at a time: of what is known so far it keeps the largest score,
// the sum of weights and the weighted sum of v, which are scaled down when a larger score comes (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). So no array is as long as S · T.
//
// Phase 0 turns k into panels, [tokens / kWide][D][kWide]. Of few rows that would cost more than it gives: they read k as it is.

#ifndef ONNXQ_ATTENTION_KERNELS_IN_FLOATS_H_
#define ONNXQ_ATTENTION_KERNELS_IN_FLOATS_H_

#include <math.h>

#include "../kernel.h"

namespace onnxq {
namespace {

constexpr int64_t kTokens = 256;    // at a time
constexpr int64_t kMostOutputs = 512;  // E
constexpr int64_t kFewRows = 4;

constexpr float kHidden = -1e30f;      // what is added to scores that are not to count

// How many tokens it takes to hold all that these rows see: behind them, masks hide everything, as causal ones do. All where a
// row sees none, whose weights are then as scores say.
template <class V>
int64_t tokens_seen(const Attention& p, const Head& h, int64_t row, int64_t rows) {
  if (!h.mask || !p.mask_token) {
    return p.T;
  }
  int64_t most = 0;
  for (int64_t r = 0; r < (p.mask_row ? rows : 1); ++r) {
    const float* const mask = h.mask + (row + r) * p.mask_row;
    int64_t t = p.T;
    while (t >= V::kLanes && !V::any_above(V::load(mask + t - V::kLanes), kHidden)) {
      t -= V::kLanes;
    }
    while (t < V::kLanes && t > 0 && mask[t - 1] <= kHidden) {
      --t;
    }
    if (t == 0) {
      return p.T;
    }
    most = t > most ? t : most;
  }
  return most;
}

// What a block of rows knows of the tokens so far, but for the weighted sums.
template <int kRows>
struct Known {
  float most[kRows], sum[kRows];
};

template <class V>
struct InFloats {
  using F = typename V::F;
  static constexpr int kRows = V::kFloatRows;
  static constexpr int64_t kLanes = V::kLanes, kWide = 2 * kLanes;
  static_assert(kTokens % kWide == 0, "a chunk is made of panels");

  // Scores, then weights, of a block of rows and a chunk of tokens, and weighted sums.
  struct Block {
    float weights[kRows][kTokens];
    float y[kRows][kMostOutputs];
    Known<kRows> known;
  };

  static bool packs(const Attention& p) { return p.S > kFewRows; }

  static int64_t panel_numbers(const Attention& p) { return rounded_up(p.T, kWide) * p.D; }

  static int64_t workspace(const Attention& p) {
    return p.E > kMostOutputs ? -1 : packs(p) ? p.heads * panel_numbers(p) * 4 : 0;
  }

  static int64_t blocks(const Attention& p) { return (p.S + kRows - 1) / kRows; }

  static int64_t units(const Attention& p, int phase) {
    const bool pack = packs(p) && phase == 0;
    return pack ? p.heads * (rounded_up(p.T, kWide) / kWide) : p.heads * blocks(p);
  }

  static int64_t tasks(const Attention& p, int phase, int threads) {
    return phase > (packs(p) ? 1 : 0) ? 0 : balanced(units(p, phase), threads);
  }

  static void run(const Attention& p, int phase, int64_t task, int64_t tasks, void* workspace) {
    const int64_t all = units(p, phase);
    float* const panels = static_cast<float*>(workspace);
    for (int64_t unit = part_begin(all, tasks, task); unit < part_begin(all, tasks, task + 1); ++unit) {
      if (packs(p) && phase == 0) {
        const int64_t of_head = rounded_up(p.T, kWide) / kWide, first = unit % of_head * kWide;
        pack(p, p.head[unit / of_head], first, panels + unit / of_head * panel_numbers(p) + first * p.D);
      } else {
        const int64_t head = unit / blocks(p), row = unit % blocks(p) * kRows;
        rows(p, head, row, p.S - row < kRows ? p.S - row : kRows, packs(p) ? panels + head * panel_numbers(p) : nullptr);
      }
    }
  }

 private:
  static void pack(const Attention& p, const Head& h, int64_t first, float* panel) {
    const int64_t count = p.T - first < kWide ? p.T - first : kWide;
    for (int64_t d = 0; d < p.D; ++d) {
      const float* const k = h.k + first * p.k_token + d * p.k_number;
      for (int64_t t = 0; t < kWide; ++t) {
        panel[d * kWide + t] = t < count ? k[t * p.k_token] : 0.0f;
      }
    }
  }

  static F load(const float* from, int64_t lanes) {
    return lanes >= kLanes ? V::load(from) : lanes > 0 ? V::load(from, lanes) : V::zero();
  }

  // Up to two vectors, of which the array may end within either.
  template <bool full>
  static void load(const float* from, int64_t lanes, F& first, F& second) {
    first = full ? V::load(from) : load(from, lanes);
    second = full ? V::load(from + kLanes) : lanes > kLanes ? load(from + kLanes, lanes - kLanes) : V::zero();
  }

  // Scores of R rows and up to kWide tokens. `k`: the numbers d of the tokens lie side by side, `stride` from those of d + 1.
  template <int R, bool full>
  static void scores(const float* q, int64_t q_row, int64_t D, const float* k, int64_t stride, int64_t tokens, float* to) {
    F sum[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      sum[r][0] = sum[r][1] = V::zero();
    }
    for (int64_t d = 0; d < D; ++d, k += stride) {
      F k0, k1;
      load<full>(k, tokens, k0, k1);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const F x = V::broadcast(q + r * q_row + d);
        sum[r][0] = V::fma(x, k0, sum[r][0]);
        sum[r][1] = V::fma(x, k1, sum[r][1]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      V::store(to + r * kTokens, sum[r][0]);
      V::store(to + r * kTokens + kLanes, sum[r][1]);
    }
  }

  // The same of tokens whose numbers lie side by side.
  static float score(const float* q, const float* k, int64_t D) {
    F sum = V::zero();
    for (int64_t d = 0; d < D; d += kLanes) {
      sum = V::fma(load(q + d, D - d), load(k + d, D - d), sum);
    }
    return V::sum(sum);
  }

  template <int R>
  static void score_tokens(const Attention& p, const Head& h, int64_t row, const float* panels, int64_t first, int64_t count,
                           Block& b) {
    const float* const q = h.q + row * p.q_row;
    if (!panels && p.k_number == 1) {
      for (int64_t t = 0; t < count; ++t) {
        for (int r = 0; r < R; ++r) {
          b.weights[r][t] = score(q + r * p.q_row, h.k + (first + t) * p.k_token, p.D);
        }
      }
      return;
    }
    for (int64_t t = 0; t < count; t += kWide) {
      const float* const k = panels ? panels + (first + t) * p.D : h.k + first + t;
      const int64_t stride = panels ? kWide : p.k_number;
      panels || count - t >= kWide ? scores<R, true>(q, p.q_row, p.D, k, stride, kWide, &b.weights[0][t])
                                   : scores<R, false>(q, p.q_row, p.D, k, stride, count - t, &b.weights[0][t]);
    }
  }

  // Scores of a row become weights, relative to the largest score so far; behind `count` they become 0. Returns by what the
  // sums so far are to be multiplied.
  static float weigh(const Attention& p, const Head& h, int64_t row, int64_t first, int64_t count, float* x, float& most,
                     float& sum) {
    const float* mask = h.mask ? h.mask + row * p.mask_row + first * p.mask_token : nullptr;
    const F scale = V::broadcast(&p.scale);
    const float nothing = -INFINITY;
    F largest = V::broadcast(&most);
    for (int64_t t = 0; t < count; t += kLanes) {
      const F added = !mask ? V::zero() : p.mask_token ? load(mask + t, count - t) : V::broadcast(mask);
      F score = V::fma(V::load(x + t), scale, added);
      V::store(x + t, score);
      for (int64_t behind = count; behind < t + kLanes; ++behind) {
        x[behind] = nothing;
      }
      largest = V::max(V::load(x + t), largest);
    }
    const float now = V::largest(largest), origin = now == nothing ? 0.0f : now;
    const F from = V::broadcast(&origin);
    F total = V::zero();
    for (int64_t t = 0; t < count; t += kLanes) {
      const F weight = V::exp(V::subtract(V::load(x + t), from));
      V::store(x + t, weight);
      total = V::add(total, weight);
    }
    const float factor = expf(most - origin);  // 0 where there was nothing
    sum = sum * factor + V::sum(total);
    most = now;
    return factor;
  }

  // y += weights · v, for up to kWide outputs.
  template <int R, bool full>
  static void add_values(const float* v, int64_t E, int64_t count, int64_t left, const float (*weights)[kTokens],
                         float* y) {
    F sum[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      load<full>(y + r * kMostOutputs, left, sum[r][0], sum[r][1]);
    }
    for (int64_t t = 0; t < count; ++t, v += E) {
      F v0, v1;
      load<full>(v, left, v0, v1);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const F weight = V::broadcast(&weights[r][t]);
        sum[r][0] = V::fma(weight, v0, sum[r][0]);
        sum[r][1] = V::fma(weight, v1, sum[r][1]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      store(y + r * kMostOutputs, sum[r][0], left);
      if (full || left > kLanes) {
        store(y + r * kMostOutputs + kLanes, sum[r][1], left - kLanes);
      }
    }
  }

  static void store(float* to, F numbers, int64_t lanes) { lanes >= kLanes ? V::store(to, numbers) : V::store(to, numbers, lanes); }

  static void multiply(float* y, const float* from, int64_t size, float factor) {
    const F by = V::broadcast(&factor);
    for (int64_t e = 0; e < size; e += kLanes) {
      store(y + e, V::multiply(load(from + e, size - e), by), size - e);
    }
  }

  template <int R>
  static void block(const Attention& p, int64_t head, int64_t row, const float* panels) {
    alignas(64) Block b;
    const Head& h = p.head[head];
    for (int r = 0; r < R; ++r) {
      b.known.most[r] = -INFINITY;
      b.known.sum[r] = 0;
      for (int64_t e = 0; e < p.E; ++e) {
        b.y[r][e] = 0;
      }
    }
    const int64_t seen = tokens_seen<V>(p, h, row, R);
    for (int64_t first = 0; first < seen; first += kTokens) {
      const int64_t count = seen - first < kTokens ? seen - first : kTokens;
      score_tokens<R>(p, h, row, panels, first, count, b);
      for (int r = 0; r < R; ++r) {
        const float factor = weigh(p, h, row + r, first, count, b.weights[r], b.known.most[r], b.known.sum[r]);
        if (factor != 1.0f && first > 0) {
          multiply(b.y[r], b.y[r], p.E, factor);
        }
      }
      for (int64_t e = 0; e < p.E; e += kWide) {
        const float* const v = h.v + first * p.v_token + e;
        p.E - e >= kWide ? add_values<R, true>(v, p.v_token, count, kWide, b.weights, &b.y[0][e])
                         : add_values<R, false>(v, p.v_token, count, p.E - e, b.weights, &b.y[0][e]);
      }
    }
    for (int r = 0; r < R; ++r) {
      multiply(h.y + (row + r) * p.y_row, b.y[r], p.E, 1.0f / b.known.sum[r]);
    }
  }

  template <int R = kRows>
  static void rows(const Attention& p, int64_t head, int64_t row, int64_t count, const float* panels) {
    if constexpr (R > 1) {
      if (count != R) {
        return rows<R - 1>(p, head, row, count, panels);
      }
    }
    block<R>(p, head, row, panels);
  }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_ATTENTION_KERNELS_IN_FLOATS_H_
