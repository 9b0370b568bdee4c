// Convolutions by dot products of four bytes: a tile of pixels times half a block or a whole one, sums in registers.
//
// V: of a `Problem`, which is a Conv, kLanes sums of a register I that begin with starts(problem); `weights(p)` reads four
// bytes for each, `pixel(p)` four bytes for all, dot(sum, X, W).
// kPixels × kVectors registers are sums.

#ifndef ONNXQ_REGION_DOT_H_
#define ONNXQ_REGION_DOT_H_

#include "tiles_of.h"

namespace onnxq {
namespace {

template <class V>
bool plan_dots(Conv& c) {
  plan_tiles(c, V::kPixels, 1);
  return true;
}

// sums[P][32], outputs from `lane` on.
template <class V, int P>
inline void dot_tile(const Conv& c, const uint8_t* window, const int8_t* w, const typename V::Sum* bias, int lane,
                     typename V::Sum* sums) {
  typename V::I sum[P][V::kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < V::kVectors; ++v) {
    const typename V::I start = V::load(bias + lane + v * V::kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < P; ++i) {
      sum[i][v] = start;
    }
  }
  for (int64_t k = 0; k < c.chunks; ++k, w += kBlockBytes) {
    const uint8_t* x = window + c.offsets[k];
    const int8_t* q = w;
    for (int64_t quad = 0; quad < c.quads[k]; ++quad, x += 4, q += 64) {
      typename V::W weight[V::kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < V::kVectors; ++v) {
        const int at = lane + v * V::kLanes;
        weight[v] = V::weights(q + at / 16 * (kBlockBytes / 2) + at % 16 * 4);
      }
#pragma GCC unroll 16
      for (int i = 0; i < P; ++i) {
        const typename V::X pixel = V::pixel(x + i * c.step_x);
#pragma GCC unroll 4
        for (int v = 0; v < V::kVectors; ++v) {
          sum[i][v] = V::dot(sum[i][v], pixel, weight[v]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < P; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < V::kVectors; ++v) {
      V::store(sums + i * kBlock + lane + v * V::kLanes, sum[i][v]);
    }
  }
}

template <class V, int P>
void conv_tiles(const typename V::Problem& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  alignas(64) typename V::Sum sums[P * kBlock];
  for (int64_t unit = first; unit < last; ++unit) {
    const Pixels start(c, n, unit);
    for (int64_t b = block; b < end; ++b) {
      const int64_t outputs = outputs_of(c, b);
      for (int lane = 0; lane < outputs; lane += V::kLanes * V::kVectors) {
        dot_tile<V, P>(c, start.window + b / c.blocks * c.group_in, c.weight + b * c.chunks * kBlockBytes,
                       V::starts(c) + b * kBlock, lane, sums);
      }
      Pixels at = start;
      for (int i = 0; i < P; ++i, at.next(c)) {
        if (at.is_there(c)) {
          V::finish(c, n, at.y, at.x, b, sums + i * kBlock);
        }
      }
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
