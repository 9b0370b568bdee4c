// `fast` products of bfloat16 weights: x is rounded to bfloat16, pairs of k are multiplied and summed in float32.
//
// x is packed in tiles of R rows, [Kp / 2][R][2], zeros behind K. A line of the weight is an operand as it lies.

#ifndef ONNXQ_CPU_KERNELS_DENSE_H_
#define ONNXQ_CPU_KERNELS_DENSE_H_

#include "streams.h"
#include "zmm.h"

namespace onnxq {
namespace {

constexpr bool by_pairs(const Problem& p) { return !p.exact && p.format == kDenseBfloat16; }

// Numbers x[k…k + 31] of a row in bfloat16, zeros behind `left` of them.
inline __m512i load_bfloat16(const float* x, int64_t left) {
  const auto part = [&](int64_t skip) {
    const int64_t lanes = left - skip;
    return lanes >= 16 ? Zmm::load(x + skip) : lanes > 0 ? Zmm::load(x + skip, lanes) : Zmm::zero();
  };
  return (__m512i)_mm512_cvtne2ps_pbh(part(16), part(0));
}

template <int R>
void multiply_pairs(const Problem& p, const Group& g, const int32_t* x, int64_t first) {
  __m512 y[R][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    y[r][0] = y[r][1] = Zmm::zero();
  }
  const uint8_t *w0 = g.weight[0], *w1 = g.weight[1];
  for (int64_t i = 0; i < padded(p.K, p.block) / 2; ++i, x += R, w0 += kLine, w1 += kLine) {
    const __m512i line0 = Zmm::load(w0), line1 = Zmm::load(w1);
    fetch_ahead(w0 + kAhead);
    fetch_ahead(w1 + kAhead);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512i pair = Zmm::broadcast(x + r);
      y[r][0] = _mm512_dpbf16_ps(y[r][0], (__m512bh)line0, (__m512bh)pair);
      y[r][1] = _mm512_dpbf16_ps(y[r][1], (__m512bh)line1, (__m512bh)pair);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kVectors; ++c) {
      store_sum<Zmm>(p, g, c, first + r, y[r][c], true);
    }
  }
}

template <int R>
void multiply_pairs(int64_t rows, const Problem& p, const Group& g, const int32_t* x, int64_t first) {
  if constexpr (R > 1) {
    if (rows != R) {
      return multiply_pairs<R - 1>(rows, p, g, x, first);
    }
  }
  multiply_pairs<R>(p, g, x, first);
}

// The two phases: pack rows, multiply.
struct Dense {
  static constexpr int64_t kRows = 12;

  static int64_t tiles_of_rows(const Problem& p) { return row_tiles(p.M, kRows); }

  static int64_t workspace(const Problem& p) { return p.M * padded(p.K, p.block) * 2; }

  static int64_t tasks(const Problem& p, int phase) {
    if (phase == 0) {
      return packing_tasks(p, tiles_of_rows(p));
    }
    const Cuts cuts = product_cuts(groups<Zmm>(p), tiles_of_rows(p), wanted_tasks(p));
    return phase == 1 ? cuts.columns * cuts.rows : 0;
  }

  static void run(const Problem& p, int phase, int64_t task, int64_t tasks, void* workspace) {
    int32_t* const packed = static_cast<int32_t*>(workspace);
    const int64_t tiles = tiles_of_rows(p), pairs = padded(p.K, p.block) / 2;
    const auto first = [&](int64_t tile) { return cut(p.M, tiles, tile); };
    if (phase == 0) {
      for (int64_t i = cut(tiles, tasks, task); i < cut(tiles, tasks, task + 1); ++i) {
        pack(p, first(i), first(i + 1) - first(i), packed + first(i) * pairs);
      }
      return;
    }
    const int64_t all = groups<Zmm>(p);
    const Cuts cuts = product_cuts(all, tiles, tasks);
    const int64_t column = task / cuts.rows, row = task % cuts.rows;
    for (int64_t j = cut(all, cuts.columns, column); j < cut(all, cuts.columns, column + 1); ++j) {
      const Group g = group<Zmm>(p, j);
      for (int64_t i = cut(tiles, cuts.rows, row); i < cut(tiles, cuts.rows, row + 1); ++i) {
        multiply_pairs<kRows>(first(i + 1) - first(i), p, g, packed + first(i) * pairs, first(i));
      }
    }
  }

 private:
  static void pack(const Problem& p, int64_t first, int64_t rows, int32_t* packed) {
    for (int64_t row = 0; row < rows; ++row) {
      const float* const x = p.x + (first + row) * p.K;
      for (int64_t k = 0; k < padded(p.K, p.block); k += 32) {
        int32_t pairs[16];
        _mm512_storeu_si512(pairs, load_bfloat16(x + k, p.K - k));
        for (int64_t i = 0; i < 16; ++i) {
          packed[(k / 2 + i) * rows + row] = pairs[i];
        }
      }
    }
  }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_DENSE_H_
