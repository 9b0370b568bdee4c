// `fast`: products of 8-bit activations (quantize.h) with codes as they are, summed in integers over S k, then in float32.

#ifndef ONNXQ_CPU_KERNELS_INTEGER_H_
#define ONNXQ_CPU_KERNELS_INTEGER_H_

#include "quantize.h"

namespace onnxq {
namespace {

// How the bytes of a weight become operands of a dot product. operand<i>(at): the four k from 4i on.
template <class V>
struct NibbleCodes {
  static constexpr int64_t kBytes = 2 * kLine;  // of 16 k
  explicit NibbleCodes(int32_t) {}
  float zero() const { return 0.0f; }
  template <int i>
  typename V::I operand(const uint8_t* at) const {
    const auto line = V::load(at + i / 2 * kLine);
    return i % 2 ? V::high(line) : V::low(line);
  }
  static typename V::I start(typename V::I from) { return V::start_nibbles(from); }
  static typename V::I dot(typename V::I sum, typename V::I w, typename V::I q) { return V::dot_nibbles(sum, w, q); }
  static typename V::I finish(typename V::I sum, typename V::I from) { return V::finish_nibbles(sum, from); }
};

template <class V>
struct ByteDots {
  static typename V::I start(typename V::I from) { return from; }
  static typename V::I dot(typename V::I sum, typename V::I w, typename V::I q) { return V::dot_bytes(sum, w, q); }
  static typename V::I finish(typename V::I sum, typename V::I) { return sum; }
};

template <class V>
struct LevelCodes : ByteDots<V> {
  static constexpr int64_t kBytes = 2 * kLine;
  explicit LevelCodes(int32_t format) : levels(rounded_levels(format)), table(V::table(levels.level)) {
    table = V::kSignedBytes ? table : V::flip_sign_bit(table);
  }
  float zero() const { return levels.zero; }
  template <int i>
  typename V::I operand(const uint8_t* at) const {
    const auto line = V::load(at + i / 2 * kLine);
    return V::look_up(table, i % 2 ? V::high(line) : V::low(line));
  }
  Levels levels;
  typename V::I table;
};

template <class V>
struct ByteCodes : ByteDots<V> {
  static constexpr int64_t kBytes = 4 * kLine;
  explicit ByteCodes(int32_t) {}
  float zero() const { return 0.0f; }
  template <int i>
  typename V::I operand(const uint8_t* at) const {
    const auto codes = V::load(at + i * kLine);
    return V::kSignedBytes ? V::flip_sign_bit(codes) : codes;
  }
};

template <class V, class Codes, int R, int i>
inline __attribute__((always_inline)) void dot_four(const Codes& codes, const uint8_t* const* weight, const char* q,
                                                    typename V::I (*sum)[kVectors]) {
  typename V::I w[kVectors];
  for (int c = 0; c < kVectors; ++c) {
    w[c] = codes.template operand<i>(weight[c]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const auto four = V::broadcast(reinterpret_cast<const int32_t*>(q) + i * R + r);
    for (int c = 0; c < kVectors; ++c) {
      sum[r][c] = Codes::dot(sum[r][c], w[c], four);
    }
  }
}

template <class V, class Codes, int R, int fours, int i = 0>
inline __attribute__((always_inline)) void dot_all(const Codes& codes, const uint8_t* const* weight, const char* q,
                                                   typename V::I (*sum)[kVectors]) {
  if constexpr (i < fours) {
    dot_four<V, Codes, R, i>(codes, weight, q, sum);
    dot_all<V, Codes, R, fours, i + 1>(codes, weight, q, sum);
  }
}

// y += the product of one record and its S k of the weight; both move on. The weight is fetched `ahead`.
template <class V, class Codes, int S, int R>
inline __attribute__((always_inline)) void add_record(const Codes& codes, const uint8_t** weight, const typename V::F* scale,
                                                      const char*& record, int64_t ahead,
                                                      typename V::F (*y)[kVectors]) {
  constexpr int64_t kBytes = Codes::kBytes * S / 16;
  typename V::I sum[R][kVectors];
  const auto start = reinterpret_cast<const int32_t*>(record);
  const auto steps = reinterpret_cast<const float*>(record) + R;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    sum[r][0] = sum[r][1] = Codes::start(V::broadcast(start + r));
  }
  dot_all<V, Codes, R, S / 4>(codes, weight, record + 8 * R, sum);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kVectors; ++c) {
      const auto whole = Codes::finish(sum[r][c], V::broadcast(start + r));
      y[r][c] = V::fma(V::to_float(whole), V::multiply(scale[c], V::broadcast(steps + r)), y[r][c]);
    }
  }
  for (int c = 0; c < kVectors; ++c) {
    for (int64_t i = 0; i < kBytes; i += kLine) {  // over the edge of a page, where the processor stops by itself
      fetch_ahead(weight[c] + ahead + i);
    }
    weight[c] += kBytes;
  }
  record += R * record_bytes(S);
}

// R rows of activations, packed, times one group: y[first…first + R), all of K.
template <class V, class Codes, int U, int R>
void multiply_rows(const Problem& p, const Group& g, const Packed& packed, int64_t first) {
  using F = typename V::F;
  const Codes codes(p.format);
  const int64_t units = p.block / U, count = blocks(p.K, p.block);
  const char* record = packed.records;
  const float* sums = packed.sums;
  const uint8_t* size = packed.sizes;
  const bool moved = p.zero_points || codes.zero() != 0.0f;
  const float fixed_zero = codes.zero(), byte_middle = Codes::kBytes == 4 * kLine && V::kSignedBytes ? 128.0f : 0.0f;
  const Fetch<V> fetch(p, g);
  Group at = g;
  F y[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    y[r][0] = y[r][1] = V::zero();
  }
  for (int64_t b = 0; b < count; ++b, sums += R) {
    F scale[kVectors];
    for (int c = 0; c < kVectors; ++c) {
      scale[c] = load_scales<V>(at.scales[c], p.scale_type);
      at.scales[c] += kTile * scale_bytes(p.scale_type);
    }
    if (moved) {
      for (int c = 0; c < kVectors; ++c) {
        const F zero = p.zero_points ? V::subtract(V::to_float(V::from_bytes(at.zero_points[c])), V::broadcast(&byte_middle))
                                     : V::broadcast(&fixed_zero);
        const F scaled = V::multiply(zero, scale[c]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          y[r][c] = V::fma(scaled, V::broadcast(sums + r), y[r][c]);
        }
        at.zero_points[c] += p.zero_points ? kTile : 0;
      }
    }
    const int64_t ahead = fetch.ahead(at.weight[0]);
    for (const uint8_t* end = size + units; size < end; ++size) {
      if (*size == U) {
        add_record<V, Codes, U, R>(codes, at.weight, scale, record, ahead, y);
      } else if (*size == 16) {
        for (int i = 0; i < U; i += 16) {
          add_record<V, Codes, 16, R>(codes, at.weight, scale, record, ahead, y);
        }
      } else {
        for (int i = 0; i < U; i += kLeastSize) {
          add_record<V, Codes, kLeastSize, R>(codes, at.weight, scale, record, ahead, y);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kVectors; ++c) {
      store_sum<V>(p, g, c, first + r, y[r][c], true);
    }
  }
}

using MultiplyRows = void (*)(const Problem&, const Group&, const Packed&, int64_t);

template <class V, class Codes, int U, int R = V::kIntegerRows>
MultiplyRows rows_kernel(int64_t rows) {
  if constexpr (R > 1) {
    return rows == R ? multiply_rows<V, Codes, U, R> : rows_kernel<V, Codes, U, R - 1>(rows);
  } else {
    return multiply_rows<V, Codes, U, 1>;
  }
}

template <class V, class Codes>
MultiplyRows rows_kernel(const Problem& p, int64_t rows) {
  return unit_k(p) == 32 ? rows_kernel<V, Codes, 32>(rows) : rows_kernel<V, Codes, 16>(rows);
}

template <class V>
MultiplyRows rows_kernel(const Problem& p, int64_t rows) {
  return p.format == kInt4   ? rows_kernel<V, NibbleCodes<V>>(p, rows)
         : p.format == kInt8 ? rows_kernel<V, ByteCodes<V>>(p, rows)
                             : rows_kernel<V, LevelCodes<V>>(p, rows);
}

// A kernel that works so: quantize rows, multiply. Weights that stay in a core's cache are multiplied by whoever quantized the
// rows, in one phase: else what one thread has written the others would have to fetch from its cache.
template <class V>
struct Integer {
  static_assert(V::kIntegerRows <= kRowsOfTile, "");

  static int64_t tiles_of_rows(const Problem& p) { return row_tiles(p.M, V::kIntegerRows); }

  static bool in_one_phase(const Problem& p) {
    constexpr int64_t kCache = 1 << 20, kEnoughTiles = 8;
    return tiles_of_rows(p) >= kEnoughTiles && tiles(p.N) * tile_bytes(p.format, padded(p.K, p.block)) <= kCache;
  }

  static int64_t workspace(const Problem& p) { return p.M * packed_row_bytes(p); }

  static int64_t tasks(const Problem& p, int phase) {
    const int64_t wanted = wanted_tasks(p), most = tiles_of_rows(p);
    if (in_one_phase(p)) {
      return phase > 0 ? 0 : wanted < most ? wanted : most;
    }
    if (phase == 0) {
      return packing_tasks(p, most);
    }
    const Cuts cuts = product_cuts(groups<V>(p), most, wanted);
    return phase == 1 ? cuts.columns * cuts.rows : 0;
  }

  static void run(const Problem& p, int phase, int64_t task, int64_t tasks, void* workspace) {
    char* const memory = static_cast<char*>(workspace);
    const int64_t most = tiles_of_rows(p), all = groups<V>(p);
    if (phase == 0) {
      const int64_t begin = cut(most, tasks, task), end = cut(most, tasks, task + 1);
      quantize(p, begin, end, memory);
      if (in_one_phase(p)) {
        multiply(p, 0, all, begin, end, memory);
      }
      return;
    }
    const Cuts cuts = product_cuts(all, most, tasks);
    const int64_t column = task / cuts.rows, row = task % cuts.rows;
    multiply(p, cut(all, cuts.columns, column), cut(all, cuts.columns, column + 1), cut(most, cuts.rows, row),
             cut(most, cuts.rows, row + 1), memory);
  }

 private:
  // Tiles [begin, end) of rows.
  static void quantize(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const float unit = is_affine(p.format) ? 1.0f : rounded_levels(p.format).unit;
    const bool signed_bytes = V::kSignedBytes && p.format != kInt4;
    const int32_t middle = p.zero_points || signed_bytes ? 0 : p.format == kInt4 ? 8 : 128;
    const auto quantize_rows = unit_k(p) == 32 ? quantize_tile<32> : quantize_tile<16>;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = cut(p.M, tiles_of_rows(p), i), rows = cut(p.M, tiles_of_rows(p), i + 1) - first;
      quantize_rows(p, first, rows, unit, middle, packed_tile(p, first, rows, memory));
    }
  }

  // Groups [from, to) of columns by tiles [begin, end) of rows.
  static void multiply(const Problem& p, int64_t from, int64_t to, int64_t begin, int64_t end, char* memory) {
    for (int64_t j = from; j < to; ++j) {
      const Group g = group<V>(p, j);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = cut(p.M, tiles_of_rows(p), i), rows = cut(p.M, tiles_of_rows(p), i + 1) - first;
        rows_kernel<V>(p, rows)(p, g, packed_tile(p, first, rows, memory), first);
      }
    }
  }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_INTEGER_H_
