// Convolutions by dot products of four bytes: a tile of pixels times half a block or a whole one, sums in registers.
//
// V: of a `Problem`, which is a Conv, kLanes sums of a register I that begin with starts(problem, block); `weights(p)` reads
// four bytes for each, `pixel(p)` four bytes for all, dot(sum, X, W). kPixels × kVectors registers are sums. kIsInOrder: the
// first outputs are in the first register. `Finish` knows what the pixels of a block share, and stores one of an image, or
// two where it `kPairs`; where it `kTakesRegisters`, all of a tile as well, from the registers of the sums.

#ifndef ONNXQ_REGION_DOT_H_
#define ONNXQ_REGION_DOT_H_

#include "../../base/unrolled.h"
#include "tiles_of.h"

namespace onnxq {
namespace {

template <class V>
bool plan_dots(Conv& c) {
  plan_tiles(c, V::kPixels, 1);
  return true;
}

// Sums of P pixels and the outputs from `lane` on, `vectors` registers of them. Where V has matrices in the place of dot
// products, it has its own.
template <class V, int P, int vectors>
struct SumUp {
  [[gnu::always_inline]] static inline void run(const Conv& c, const uint8_t* window, const int8_t* w,
                                                const typename V::Sum* bias, int lane, typename V::I (&sum)[P][vectors]) {
    unrolled<vectors>([&](auto v) ONNXQ_INLINE {
      const typename V::I start = V::load(bias + lane + v * V::kLanes);
      unrolled<P>([&](auto i) ONNXQ_INLINE { sum[i][v] = start; });
    });
    for (int64_t k = 0; k < c.chunks; ++k, w += kBlockBytes) {
      const uint8_t* x = window + c.offsets[k];
      const int8_t* q = w;
      for (int64_t quad = 0; quad < c.quads[k]; ++quad, x += 4, q += 64) {
        typename V::W weight[vectors];
        unrolled<vectors>([&](auto v) ONNXQ_INLINE {
          const int at = lane + v * V::kLanes;
          weight[v] = V::weights(q + at / 16 * (kBlockBytes / 2) + at % 16 * 4);
        });
        unrolled<P>([&](auto i) ONNXQ_INLINE {
          const typename V::X pixel = V::pixel(x + i * c.step_x);
          unrolled<vectors>([&](auto v) ONNXQ_INLINE { sum[i][v] = V::dot(sum[i][v], pixel, weight[v]); });
        });
      }
    }
  }
};

// sums[P][32]
template <class V, int P, int vectors>
inline void dot_tile(const Conv& c, const uint8_t* window, const int8_t* w, const typename V::Sum* bias, int lane,
                     typename V::Sum* sums) {
  typename V::I sum[P][vectors];
  SumUp<V, P, vectors>::run(c, window, w, bias, lane, sum);
  unrolled<P>([&](auto i) ONNXQ_INLINE {
    unrolled<vectors>([&](auto v) ONNXQ_INLINE { V::store(sums + i * kBlock + lane + v * V::kLanes, sum[i][v]); });
  });
}

// The pixels of a tile that y has, and where their sums are.
template <class V, int P>
struct Tile {
  struct Row {
    int64_t sums;
    typename V::Finish::At at;
  };
  const uint8_t* window;
  Row rows[P];
  int64_t size = 0;

  // Whether all its pixels are there, one behind the other: then `rows` is left out.
  bool is_whole;

  Tile(const Conv& c, int64_t n, int64_t unit, const typename V::Finish& to) {
    Pixels pixel(c, n, unit);
    window = pixel.window;
    is_whole = V::Finish::kTakesRegisters && !c.floats && pixel.y < c.y.H && pixel.x + P <= c.y.W;
    if (is_whole) {
      rows[0].at = to.place(pixel.y, pixel.x);
      return;
    }
    for (int i = 0; i < P; ++i, pixel.next()) {
      if (pixel.is_there(c)) {
        rows[size++] = {i * kBlock, to.place(pixel.y, pixel.x)};
      }
    }
  }

  void finish(const typename V::Finish& shared, int64_t n, int64_t block, const typename V::Sum* from) const {
    // What is written could be any of its numbers: copies stay in registers.
    typename V::Finish to = shared;
    to.begin(block);
    const Row *row = rows, *const end = rows + size;
    if constexpr (V::Finish::kPairs) {
      for (; end - row > 1; row += 2) {
        to.store(n, row[0].at, from + row[0].sums, row[1].at, from + row[1].sums);
      }
    }
    for (; row != end; ++row) {
      to.store(n, row->at, from + row->sums);
    }
  }
};

// Of a tile that is whole, codes of a block's first `vectors` registers.
template <class V, int P, int vectors>
ONNXQ_INLINE inline void whole_tile(const typename V::Problem& c, const uint8_t* window, const int8_t* weight, const typename V::Sum* starts,
                const typename V::Finish& shared, int64_t n, int64_t block, typename V::Finish::At at) {
  typename V::I sum[P][vectors];
  SumUp<V, P, vectors>::run(c, window, weight, starts, 0, sum);
  // Sums that are still there behind the loop, and wait in memory, GCC would put there in each of its turns.
  unrolled<P>([&](auto i) ONNXQ_INLINE {
    unrolled<vectors>([&](auto v) ONNXQ_INLINE { V::renew(sum[i][v]); });
  });
  typename V::Finish to = shared;
  to.begin(block);
  to.template store_all<P>(n, at, sum);
}

template <class V, int P>
void conv_tiles(const typename V::Problem& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  alignas(64) typename V::Sum sums[P * kBlock] = {};
  const typename V::Finish to(c);
  for (int64_t unit = first; unit < last; ++unit) {
    const Tile<V, P> tile(c, n, unit, to);
    for (int64_t b = block; b < end; ++b) {
      const uint8_t* const window = tile.window + group_of(c, b) * c.group_in;
      const int8_t* const weight = c.weight + b * c.chunks * kBlockBytes;
      const typename V::Sum* const starts = V::starts(c, b);
      const int64_t outputs = outputs_of(c, b);
      if constexpr (V::Finish::kTakesRegisters) {
        if (tile.is_whole) {
          if constexpr (V::kIsInOrder) {
            if (outputs <= V::kLanes) {
              whole_tile<V, P, 1>(c, window, weight, starts, to, n, b, tile.rows[0].at);
              continue;
            }
          }
          whole_tile<V, P, V::kVectors>(c, window, weight, starts, to, n, b, tile.rows[0].at);
          continue;
        }
      }
      for (int lane = 0; lane < outputs; lane += V::kLanes * V::kVectors) {
        if (V::kIsInOrder && outputs <= lane + V::kLanes) {
          dot_tile<V, P, 1>(c, window, weight, starts, lane, sums);
        } else {
          dot_tile<V, P, V::kVectors>(c, window, weight, starts, lane, sums);
        }
      }
      tile.finish(to, n, b, sums);
    }
  }
}

template <class V, int P = V::kPixels>
void conv_dots(const typename V::Problem& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  if constexpr (P > 1) {
    if (c.tile < P) {
      return conv_dots<V, P - 1>(c, n, first, last, block, end);
    }
  }
  conv_tiles<V, P>(c, n, first, last, block, end);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_DOT_H_
