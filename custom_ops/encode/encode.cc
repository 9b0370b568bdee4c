// Encoding weights in blocks, bit for bit as onnxq/algorithms/mse.py and onnxq/formats do it in numpy, which is the
// reference. Called through ctypes, which releases Python's global lock.
//
// A weight is seen as [outer, k, inner], `block` consecutive elements along k sharing a scale. Whatever the axis, blocks
// are copied into a tile in which each has a column of its own:
//
//        column 0  column 1 … column kColumns-1
//   i=0   x[0]      x[0]          x[0]
//   i=1   x[1]      x[1]          x[1]
//   …
//
// so that the compiler works on many blocks with one instruction, and every sum over a block runs from its first element
// to its last, as in the reference. Built without contraction of products and sums, for the same reason.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "../base/export.h"
#include "../base/rounding.h"
#include "../base/threads.h"
#include "above.h"

namespace onnxq {
namespace encoding {
namespace {

constexpr int64_t kColumns = 64;
constexpr int kLevels = 16;
// As in onnxq/formats/kinds/affine.py: what the largest code times its scale may come to.
constexpr double kLargest = 3.4028e38;

// What to encode to. With `levels` null, codes are integers 0…qmax with a zero point; else they index `levels`.
struct Format {
  float qmax;
  const float* levels;   // ascending, kLevels of them
  const float* middles;  // between neighbouring levels, kLevels - 1 of them
  const uint8_t* order;  // code of each ascending level
};

struct Job {
  const float* w;  // [outer, k, inner]
  int64_t outer, k, inner, block;
  Format format;
  const float* factors;  // of the prescribed scale, to be tried in this order
  int64_t factor_count;
  uint8_t* codes;  // [outer, k, inner]
  float* scales;   // [outer, ceil(k / block), inner]
  uint8_t* zeros;  // as scales; null with levels

  int64_t blocks() const { return (k + block - 1) / block; }
};

// Up to kColumns blocks of `rows` elements each.
struct Tile {
  explicit Tile(int64_t block) : x(block * kColumns), code(block * kColumns) {}

  int64_t rows = 0;
  std::vector<float> x;       // [rows, kColumns]
  std::vector<uint8_t> code;  // [rows, kColumns]
  float scale[kColumns], zero[kColumns];
};

// Codes are clipped to a few hundred afterwards: what is too large to be rounded may be any large number.
ONNXQ_INLINE float nearest(float x) {
  x = x < -4194304.0f ? -4194304.0f : x;
  x = x > 4194303.0f ? 4194303.0f : x;
  return round_half_even(x);
}

// The prescribed scale of the range [low, high]; in double, as the width of a finite float range can overflow a float.
inline float fit_scale(float low, float high, float qmax) {
  const double scale = (static_cast<double>(high) - static_cast<double>(low)) / static_cast<double>(qmax);
  if (scale < std::numeric_limits<float>::min()) {
    return 1.0f;
  }
  return static_cast<float>(std::min(scale, kLargest / static_cast<double>(qmax)));
}

// The kernels below take plain arrays, [rows, kColumns] or [kColumns]: what they call must be inlined into every clone.

ONNXQ_CLONES void find_range(const float* __restrict x, int64_t rows, float* __restrict low, float* __restrict high) {
  for (int64_t i = 0; i < rows; ++i, x += kColumns) {
    for (int64_t c = 0; c < kColumns; ++c) {
      low[c] = x[c] < low[c] ? x[c] : low[c];
      high[c] = x[c] > high[c] ? x[c] : high[c];
    }
  }
}

// Sum of squared errors of each column with scales `s`.
ONNXQ_CLONES void affine_errors(const float* __restrict x, int64_t rows, const float* __restrict s,
                                const float* __restrict zero, float qmax, float* __restrict error) {
  for (int64_t i = 0; i < rows; ++i, x += kColumns) {
    for (int64_t c = 0; c < kColumns; ++c) {
      float q = nearest(x[c] / s[c]) + zero[c];
      q = q < 0.0f ? 0.0f : q;
      q = q > qmax ? qmax : q;
      const float e = (q - zero[c]) * s[c] - x[c];
      error[c] += e * e;
    }
  }
}

ONNXQ_CLONES void level_errors(const float* __restrict x, int64_t rows, const float* __restrict s,
                               const float* __restrict levels, const float* __restrict middles,
                               float* __restrict error) {
  for (int64_t i = 0; i < rows; ++i, x += kColumns) {
    int32_t index[kColumns];
    for (int64_t c = 0; c < kColumns; ++c) {
      index[c] = above<kLevels - 1>(x[c] / s[c], middles);
    }
    for (int64_t c = 0; c < kColumns; ++c) {
      const float e = levels[index[c]] * s[c] - x[c];
      error[c] += e * e;
    }
  }
}

ONNXQ_CLONES void encode_affine(const float* __restrict x, int64_t rows, const float* __restrict s,
                                const float* __restrict zero, float qmax, uint8_t* __restrict code) {
  for (int64_t i = 0; i < rows; ++i, x += kColumns, code += kColumns) {
    for (int64_t c = 0; c < kColumns; ++c) {
      float q = nearest(x[c] / s[c]) + zero[c];
      q = q < 0.0f ? 0.0f : q;
      q = q > qmax ? qmax : q;
      code[c] = static_cast<uint8_t>(static_cast<int32_t>(q));
    }
  }
}

// Codes are positions among the ascending levels.
ONNXQ_CLONES void encode_levels(const float* __restrict x, int64_t rows, const float* __restrict s,
                                const float* __restrict middles, uint8_t* __restrict code) {
  for (int64_t i = 0; i < rows; ++i, x += kColumns, code += kColumns) {
    for (int64_t c = 0; c < kColumns; ++c) {
      code[c] = static_cast<uint8_t>(above<kLevels - 1>(x[c] / s[c], middles));
    }
  }
}

// The prescribed scale of every column, and its zero point.
void fit(Tile& t, const Format& format) {
  float low[kColumns] = {}, high[kColumns] = {};
  find_range(t.x.data(), t.rows, low, high);
  for (int64_t c = 0; c < kColumns; ++c) {
    if (format.levels) {
      t.scale[c] = std::max(high[c], -low[c]);  // in this order, as equals give the first: +0 for a block of zeros
    } else {
      t.scale[c] = fit_scale(low[c], high[c], format.qmax);
      const double zero = round_half_even(-static_cast<double>(low[c]) / static_cast<double>(t.scale[c]));
      t.zero[c] = static_cast<float>(std::min(std::max(zero, 0.0), static_cast<double>(format.qmax)));
    }
  }
}

void find_errors(const Tile& t, const Format& format, const float* s, float* error) {
  std::fill_n(error, kColumns, 0.0f);
  if (format.levels) {
    level_errors(t.x.data(), t.rows, s, format.levels, format.middles, error);
  } else {
    affine_errors(t.x.data(), t.rows, s, t.zero, format.qmax, error);
  }
}

// Replaces the scale of every column by the best of `factors` times it, if that is better.
void search(Tile& t, const Job& job) {
  const float tiny = std::numeric_limits<float>::min();
  float prescribed[kColumns], tried[kColumns], least[kColumns], error[kColumns];
  for (int64_t c = 0; c < kColumns; ++c) {
    prescribed[c] = t.scale[c];
    tried[c] = prescribed[c] == 0 ? 1.0f : prescribed[c];
  }
  find_errors(t, job.format, tried, least);
  for (int64_t f = 0; f < job.factor_count; ++f) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const float s = prescribed[c] * job.factors[f];
      tried[c] = s < tiny ? 1.0f : s;
    }
    find_errors(t, job.format, tried, error);
    for (int64_t c = 0; c < kColumns; ++c) {
      if (prescribed[c] * job.factors[f] >= tiny && error[c] < least[c]) {
        least[c] = error[c];
        t.scale[c] = tried[c];
      }
    }
  }
}

void encode_tile(Tile& t, const Job& job) {
  fit(t, job.format);
  if (job.factor_count > 0) {
    search(t, job);
  }
  if (!job.format.levels) {
    encode_affine(t.x.data(), t.rows, t.scale, t.zero, job.format.qmax, t.code.data());
    return;
  }
  float divisor[kColumns];
  for (int64_t c = 0; c < kColumns; ++c) {
    divisor[c] = t.scale[c] == 0 ? 1.0f : t.scale[c];
  }
  encode_levels(t.x.data(), t.rows, divisor, job.format.middles, t.code.data());
  for (int64_t i = 0; i < t.rows * kColumns; ++i) {
    t.code[i] = job.format.order[t.code[i]];
  }
}

// Where the element i of the block in column c of a tile lies: offset + i * row_stride + c * column_stride.
struct Place {
  int64_t offset, row_stride, column_stride, columns;
  int64_t scale_offset, scale_stride;
};

void process(Tile& t, const Job& job, const Place& p) {
  for (int64_t i = 0; i < t.rows; ++i) {
    const float* from = job.w + p.offset + i * p.row_stride;
    float* to = &t.x[i * kColumns];
    for (int64_t c = 0; c < p.columns; ++c) {
      to[c] = from[c * p.column_stride];
    }
    std::fill(to + p.columns, to + kColumns, 0.0f);
  }
  encode_tile(t, job);
  for (int64_t i = 0; i < t.rows; ++i) {
    uint8_t* to = job.codes + p.offset + i * p.row_stride;
    for (int64_t c = 0; c < p.columns; ++c) {
      to[c * p.column_stride] = t.code[i * kColumns + c];
    }
  }
  for (int64_t c = 0; c < p.columns; ++c) {
    job.scales[p.scale_offset + c * p.scale_stride] = t.scale[c];
    if (job.zeros) {
      job.zeros[p.scale_offset + c * p.scale_stride] = static_cast<uint8_t>(t.zero[c]);
    }
  }
}

// Blocks along the last axis: the full blocks of a row side by side, then its short one.
void encode_row(Tile& t, const Job& job, int64_t row) {
  const int64_t full = job.k / job.block;
  t.rows = job.block;
  for (int64_t b = 0; b < full; b += kColumns) {
    process(t, job, {row * job.k + b * job.block, 1, job.block, std::min(kColumns, full - b), row * job.blocks() + b, 1});
  }
  if (full < job.blocks()) {
    t.rows = job.k - full * job.block;
    process(t, job, {row * job.k + full * job.block, 1, job.block, 1, row * job.blocks() + full, 1});
  }
}

// Blocks along an outer axis: neighbouring columns of the weight are neighbouring columns of the tile.
void encode_band(Tile& t, const Job& job, int64_t outer, int64_t b) {
  const int64_t start = b * job.block;
  t.rows = std::min(job.block, job.k - start);
  for (int64_t c = 0; c < job.inner; c += kColumns) {
    process(t, job,
            {(outer * job.k + start) * job.inner + c, job.inner, 1, std::min(kColumns, job.inner - c),
             (outer * job.blocks() + b) * job.inner + c, 1});
  }
}

// Every output is written by one thread only, so results do not depend on their number.
void run(const Job& job, int32_t threads) {
  const int64_t tasks = job.inner == 1 ? job.outer : job.outer * job.blocks();
  in_threads(tasks, threads, [&job](int64_t first, int64_t last) {
    Tile tile(job.block);
    for (int64_t task = first; task < last; ++task) {
      if (job.inner == 1) {
        encode_row(tile, job, task);
      } else {
        encode_band(tile, job, task / job.blocks(), task % job.blocks());
      }
    }
  });
}

}  // namespace
}  // namespace encoding
}  // namespace onnxq

// Number of the C ABI; the Python side refuses a library of another one.
ONNXQ_EXPORT int32_t onnxq_abi_version() { return 6; }

// Encodes finite weights to codes 0…qmax with a scale and a zero point a block: those that spread the block's range over
// the codes or, of that scale times each of `factors`, the one with the least squared error.
ONNXQ_EXPORT void onnxq_encode_affine_blocks(const float* w, int64_t outer, int64_t k, int64_t inner, int64_t block,
                                             int32_t qmax, const float* factors, int64_t factor_count, uint8_t* codes,
                                             float* scales, uint8_t* zeros, int32_t threads) {
  using namespace onnxq::encoding;
  const Format format{static_cast<float>(qmax), nullptr, nullptr, nullptr};
  run({w, outer, k, inner, block, format, factors, factor_count, codes, scales, zeros}, threads);
}

// The same for 16 levels times the block's absmax: `levels` ascend, `middles` lie between neighbours, `order` gives the
// code of each.
ONNXQ_EXPORT void onnxq_encode_level_blocks(const float* w, int64_t outer, int64_t k, int64_t inner, int64_t block,
                                            const float* levels, const float* middles, const uint8_t* order,
                                            const float* factors, int64_t factor_count, uint8_t* codes, float* scales,
                                            int32_t threads) {
  using namespace onnxq::encoding;
  const Format format{0.0f, levels, middles, order};
  run({w, outer, k, inner, block, format, factors, factor_count, codes, scales, nullptr}, threads);
}
