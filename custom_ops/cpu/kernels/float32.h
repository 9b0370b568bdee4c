// `exact`: activations stay float32, and every product is summed in float32.
//
// Few rows: codes are decoded in registers and used at once, by at most kDirectRows rows, or V::kDirectRows where a decoded
// number is scaled before, so that there is one sum and not two. More than two such tiles: a panel of decoded weights, small
// enough for the second-level cache, is used for all rows.
//
// x is packed in tiles of R rows, [Kp][R], zeros behind K: one stream, whatever the distance between rows in memory is.

#ifndef ONNXQ_CPU_KERNELS_FLOAT32_H_
#define ONNXQ_CPU_KERNELS_FLOAT32_H_

#include <immintrin.h>

#include "streams.h"

namespace onnxq {
namespace {

// A panel: 512 k (at most) of two groups, 128 KB with vectors of 16. Rows are read once for both.
constexpr int64_t kPanel = 512, kPanelGroups = 2;

// A row of codes at a time: floats of 4 or 8 k, less the zero point.
template <class V>
struct NibbleFloats {
  static constexpr int kCount = 8;
  explicit NibbleFloats(int32_t format) {
    float codes[16];
    for (int i = 0; i < 16; ++i) {
      codes[i] = is_affine(format) ? static_cast<float>(i) : kLevels[format][i];
    }
    table = V::table(codes);
  }
  template <int i>
  typename V::F get(typename V::I line) const { return V::template nibble<i % 4 * 2 + i / 4>(table, line); }
  typename V::Table table;
};

template <class V>
struct ByteFloats {
  static constexpr int kCount = 4;
  explicit ByteFloats(int32_t) {}
  template <int i>
  typename V::F get(typename V::I line) const { return V::template byte<i>(line); }
};

template <class V>
struct PairFloats {
  static constexpr int kCount = 2;
  explicit PairFloats(int32_t) {}
  template <int i>
  typename V::F get(typename V::I line) const { return V::template pair<i>(line); }
};

template <class V>
struct HalfFloats {
  static constexpr int kCount = 2;
  explicit HalfFloats(int32_t) {}
  template <int i>
  typename V::F get(typename V::I line) const { return V::template half<i>(line); }
};

template <class V>
typename V::F zero_of(const Problem& p, const uint8_t* zero_points) {
  if (zero_points) {
    return V::to_float(V::from_bytes(zero_points));
  }
  const float middle = is_affine(p.format) ? middle_code(p.format) : 0.0f;
  return V::broadcast(&middle);
}

// --- few rows -------------------------------------------------------------------------------------------------------

// Rows up to which a block has a sum of its own, which is scaled: fewer instructions, twice as many registers. Of more
// rows a sum over so many k is put aside then: one over all of them would lose a digit.
constexpr int64_t kDirectRows = 4, kSummed = 512;

template <class V, class Codes, int R, int i>
inline __attribute__((always_inline)) void add_products(const Codes& codes, const typename V::I* line,
                                                        const typename V::F* zero, const typename V::F* scale,
                                                        const float* x, typename V::F (*sum)[kVectors]) {
  if constexpr (i < Codes::kCount) {
    for (int c = 0; c < kVectors; ++c) {
      const auto value = V::subtract(codes.template get<i>(line[c]), zero[c]);
      const auto w = R > kDirectRows ? V::multiply(value, scale[c]) : value;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sum[r][c] = V::fma(w, V::broadcast(x + i * R + r), sum[r][c]);
      }
    }
    add_products<V, Codes, R, i + 1>(codes, line, zero, scale, x, sum);
  }
}

template <class V, class Codes, int kScale, int R>
void multiply_floats(const Problem& p, const Group& g, const float* x, int64_t first) {
  using F = typename V::F;
  const Codes codes(p.format);
  const int64_t lines = p.block / Codes::kCount, count = blocks(p.K, p.block);
  const int64_t together = kSummed > p.block ? kSummed / p.block : 1;
  Group at = g;
  F y[R][kVectors], aside[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    y[r][0] = y[r][1] = aside[r][0] = aside[r][1] = V::zero();
  }
  const auto put_aside = [&] {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < kVectors; ++c) {
        aside[r][c] = V::add(aside[r][c], y[r][c]);
        y[r][c] = V::zero();
      }
    }
  };
  for (int64_t b = 0; b < count; ++b) {
    F of_block[R][kVectors], zero[kVectors], scale[kVectors];
    auto& sum = R > kDirectRows ? y : of_block;
#pragma GCC unroll 8
    for (int r = 0; r < R && R <= kDirectRows; ++r) {
      sum[r][0] = sum[r][1] = V::zero();
    }
    for (int c = 0; c < kVectors; ++c) {
      zero[c] = zero_of<V>(p, at.zero_points[c]);
      at.zero_points[c] += at.zero_points[c] ? kTile : 0;
    }
    const auto load_scale = [&] {
      for (int c = 0; c < kVectors; ++c) {
        scale[c] = load_scales<V, kScale>(at.scales[c]);
        at.scales[c] += kTile * scale_bytes(kScale);
      }
    };
    if constexpr (R > kDirectRows) {
      load_scale();
    }
    for (int64_t i = 0; i < lines; ++i, x += Codes::kCount * R) {
      const typename V::I line[kVectors] = {V::load(at.weight[0]), V::load(at.weight[1])};
      fetch_ahead(at.weight[0] + kAhead);
      fetch_ahead(at.weight[1] + kAhead);
      add_products<V, Codes, R, 0>(codes, line, zero, scale, x, sum);
      at.weight[0] += kLine;
      at.weight[1] += kLine;
    }
    if constexpr (R <= kDirectRows) {
      load_scale();
      for (int c = 0; c < kVectors; ++c) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          y[r][c] = V::fma(sum[r][c], scale[c], y[r][c]);
        }
      }
    } else if ((b + 1) % together == 0) {
      put_aside();
    }
  }
  if constexpr (R > kDirectRows) {
    put_aside();
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kVectors; ++c) {
      store_sum<V>(p, g, c, first + r, R > kDirectRows ? aside[r][c] : y[r][c], true);
    }
  }
}

// --- many rows ------------------------------------------------------------------------------------------------------

template <class V, class Codes, int i>
inline __attribute__((always_inline)) void decode_line(const Codes& codes, typename V::I line, typename V::F zero,
                                                       typename V::F scale, float* panel) {
  if constexpr (i < Codes::kCount) {
    V::store(panel + i * kVectors * V::kLanes, V::multiply(V::subtract(codes.template get<i>(line), zero), scale));
    decode_line<V, Codes, i + 1>(codes, line, zero, scale, panel);
  }
}

// Blocks [from, to) of a group, as float32 [k][kVectors · kLanes].
template <class V, class Codes, int kScale>
void decode_panel(const Problem& p, const Group& g, int64_t from, int64_t to, float* panel) {
  const Codes codes(p.format);
  for (int c = 0; c < kVectors; ++c) {
    const uint8_t* weight = g.weight[c] + from * p.block / Codes::kCount * kLine;
    float* out = panel + c * V::kLanes;
    for (int64_t b = from; b < to; ++b) {
      const auto scale = load_scales<V, kScale>(g.scales[c] + b * kTile * scale_bytes(kScale));
      const auto zero = zero_of<V>(p, g.zero_points[c] ? g.zero_points[c] + b * kTile : nullptr);
      for (int64_t k = 0; k < p.block; k += Codes::kCount) {
        decode_line<V, Codes, 0>(codes, V::load(weight), zero, scale, out);
        weight += kLine;
        out += Codes::kCount * kVectors * V::kLanes;
      }
    }
  }
}

// y[first…first + R) (+)= x[k][R] · panel[k][…], for K numbers k.
template <class V, int R>
void multiply_panel(const Problem& p, const Group& g, const float* x, const float* panel, int64_t K, int64_t first,
                    bool fresh) {
  typename V::F y[R][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    y[r][0] = y[r][1] = V::zero();
  }
  for (int64_t k = 0; k < K; ++k, x += R, panel += kVectors * V::kLanes) {
    const auto w0 = V::load(panel), w1 = V::load(panel + V::kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const auto one = V::broadcast(x + r);
      y[r][0] = V::fma(w0, one, y[r][0]);
      y[r][1] = V::fma(w1, one, y[r][1]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kVectors; ++c) {
      store_sum<V>(p, g, c, first + r, y[r][c], fresh);
    }
  }
}

// --- by format, scale and rows --------------------------------------------------------------------------------------

constexpr int64_t kMostDirectRows = 8;

struct FloatKernels {
  void (*direct[kMostDirectRows])(const Problem&, const Group&, const float*, int64_t);
  void (*decode)(const Problem&, const Group&, int64_t, int64_t, float*);
};

// Of vectors that have too few registers for so many rows: nobody asks for it.
template <class V, class Codes, int kScale, int R>
constexpr auto direct_kernel() -> void (*)(const Problem&, const Group&, const float*, int64_t) {
  if constexpr (R <= V::kDirectRows) {
    return multiply_floats<V, Codes, kScale, R>;
  } else {
    return nullptr;
  }
}

template <class V, class Codes, int kScale>
constexpr FloatKernels kFloatKernels = {
    {direct_kernel<V, Codes, kScale, 1>(), direct_kernel<V, Codes, kScale, 2>(), direct_kernel<V, Codes, kScale, 3>(),
     direct_kernel<V, Codes, kScale, 4>(), direct_kernel<V, Codes, kScale, 5>(), direct_kernel<V, Codes, kScale, 6>(),
     direct_kernel<V, Codes, kScale, 7>(), direct_kernel<V, Codes, kScale, 8>()},
    decode_panel<V, Codes, kScale>};

template <class V, class Codes>
const FloatKernels& float_kernels(int32_t scale_type) {
  return scale_type == kScaleFloat32   ? kFloatKernels<V, Codes, kScaleFloat32>
         : scale_type == kScaleFloat16 ? kFloatKernels<V, Codes, kScaleFloat16>
                                       : kFloatKernels<V, Codes, kScaleE8M0>;
}

template <class V, int R>
void multiply_panel_rows(int64_t rows, const Problem& p, const Group& g, const float* x, const float* panel, int64_t K,
                         int64_t first, bool fresh) {
  if constexpr (R > 1) {
    if (rows != R) {
      return multiply_panel_rows<V, R - 1>(rows, p, g, x, panel, K, first, fresh);
    }
  }
  multiply_panel<V, R>(p, g, x, panel, K, first, fresh);
}

// The two phases of a kernel that works so: pack rows, multiply.
template <class V>
struct Float32 {
  static bool is_direct(const Problem& p) {
    return p.M <= (V::kDirectRows > kDirectRows ? 2 * V::kDirectRows : kDirectRows);
  }

  static int64_t tiles_of_rows(const Problem& p) {
    return row_tiles(p.M, is_direct(p) ? int64_t{V::kDirectRows} : int64_t{V::kFloatRows});
  }

  static int64_t workspace(const Problem& p) { return p.M * padded(p.K, p.block) * 4; }

  static int64_t tasks(const Problem& p, int phase) {
    if (phase == 0) {
      return packing_tasks(p, tiles_of_rows(p));
    }
    const Cuts cuts = product_cuts(groups<V>(p), tiles_of_rows(p), wanted_tasks(p));
    return phase == 1 ? cuts.columns * cuts.rows : 0;
  }

  static void pack(const Problem& p, int64_t first, int64_t rows, float* packed) {
    for (int64_t row = 0; row < rows; ++row) {
      const float* x = p.x + (first + row) * p.K;
      for (int64_t k = 0; k < p.K; ++k) {
        packed[k * rows + row] = x[k];
      }
    }
    for (int64_t i = p.K * rows; i < padded(p.K, p.block) * rows; ++i) {
      packed[i] = 0.0f;
    }
  }

  static void run(const Problem& p, int phase, int64_t task, int64_t tasks, void* workspace) {
    float* packed = static_cast<float*>(workspace);
    const int64_t tiles = tiles_of_rows(p), Kp = padded(p.K, p.block);
    if (phase == 0) {
      for (int64_t i = cut(tiles, tasks, task); i < cut(tiles, tasks, task + 1); ++i) {
        const int64_t first = cut(p.M, tiles, i);
        pack(p, first, cut(p.M, tiles, i + 1) - first, packed + first * Kp);
      }
      return;
    }
    const FloatKernels& kernels = p.format == kDenseBfloat16  ? kFloatKernels<V, PairFloats<V>, kNoScales>
                                  : p.format == kDenseFloat16 ? kFloatKernels<V, HalfFloats<V>, kNoScales>
                                  : p.format == kInt8         ? float_kernels<V, ByteFloats<V>>(p.scale_type)
                                                              : float_kernels<V, NibbleFloats<V>>(p.scale_type);
    const Cuts cuts = product_cuts(groups<V>(p), tiles, tasks);
    const int64_t column = task / cuts.rows, row = task % cuts.rows, all = groups<V>(p);
    const int64_t from = cut(tiles, cuts.rows, row), to = cut(tiles, cuts.rows, row + 1);
    const int64_t first_group = cut(all, cuts.columns, column), last_group = cut(all, cuts.columns, column + 1);
    if (is_direct(p)) {
      for (int64_t j = first_group; j < last_group; ++j) {
        for (int64_t i = from; i < to; ++i) {
          const int64_t first = cut(p.M, tiles, i), rows = cut(p.M, tiles, i + 1) - first;
          kernels.direct[rows - 1](p, group<V>(p, j), packed + first * Kp, first);
        }
      }
      return;
    }
    constexpr int64_t kPanelFloats = kPanel * kVectors * V::kLanes;
    alignas(64) float panel[kPanelGroups * kPanelFloats];
    const int64_t step = kPanel / p.block, count = blocks(p.K, p.block);
    for (int64_t j = first_group; j < last_group; j += kPanelGroups) {
      const int64_t here = last_group - j < kPanelGroups ? last_group - j : kPanelGroups;
      for (int64_t b = 0; b < count; b += step) {
        const int64_t end = b + step < count ? b + step : count;
        for (int64_t g = 0; g < here; ++g) {
          kernels.decode(p, group<V>(p, j + g), b, end, panel + g * kPanelFloats);
        }
        for (int64_t i = from; i < to; ++i) {
          const int64_t first = cut(p.M, tiles, i), rows = cut(p.M, tiles, i + 1) - first;
          for (int64_t g = 0; g < here; ++g) {
            multiply_panel_rows<V, V::kFloatRows>(rows, p, group<V>(p, j + g), packed + first * Kp + b * p.block * rows,
                                                  panel + g * kPanelFloats, (end - b) * p.block, first, b == 0);
          }
        }
      }
    }
  }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_FLOAT32_H_
