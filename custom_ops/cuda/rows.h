// Kernels that write whole rows of a weight, or of something else: dequantization for a library's matrix product, the
// gather of an embedding, the bias in every row of a result, and float32 as bfloat16.
#pragma once

#include "decode.h"

namespace onnxq {

constexpr int kRowThreads = 256;

struct DequantizeArguments {
  Matmul p;
  Extent extent;
  Divisor block;
  int first_tile, tiles;
  int64_t stride;  // elements from row to row of `to`, a multiple of 8
  void* to;        // [tiles · 16, stride]; k behind K are zeros, rows behind N are not written
  float levels[16];
};

struct GatherArguments {
  Gather p;
  Extent extent;
  Divisor block;
  float levels[16];
};

struct FillArguments {
  const void* from;
  void* to;
  int64_t count, period;  // to[i] = from[i % period]
};

namespace {

// The code of element e (0 … 7) in a row's bytes: one word of 4-bit codes or two of 8-bit ones.
ONNXQ_DEVICE uint32_t code_of(const uint32_t* word, int e, bool wide) {
  return wide ? word[e / 4] >> (e % 4 * 8) & 255u : word[0] >> (e % 4 * 8 + e / 4 * 4) & 15u;
}

// A warp is a tile × 64 k: it reads 512 contiguous bytes (1024 with 8-bit codes), and for each of its 16 rows the 8
// lanes that share it write 8 × 16 contiguous bytes.
template <class Y>
ONNXQ_KERNEL(kRowThreads, 2)
dequantize_kernel(ONNXQ_ARGUMENT DequantizeArguments a) {
  using Bits = typename Y::Bits;
  float* levels = reinterpret_cast<float*>(shared_memory());  // lanes read them at different places at once
  if (thread_index() < 16) {
    levels[thread_index()] = a.levels[thread_index()];
  }
  synchronize_block();
  const int lane = thread_index() % 32, c = lane & 3, wide = is_wide(a.p.format), vectors = wide ? 2 : 1;
  const int64_t steps = ceil_div(a.stride, kGemvStep);
  const int64_t warp = (static_cast<int64_t>(block_x()) * kRowThreads + thread_index()) / 32;
  const int64_t tile = a.first_tile + warp / steps, k = warp % steps * kGemvStep + (lane >> 2) * 8;
  if (warp / steps >= a.tiles || k >= a.stride) {
    return;
  }
  Vector v[2] = {};
  float s[4] = {};
  uint32_t zeros = wide ? 0x80808080u : 0x08080808u;
  if (k < a.p.K) {
    const int64_t at = (tile * a.extent.blocks + divide(static_cast<int>(k), a.block)) * kTileRows + c * 4;
    const int size = scale_size(a.p.scale_type);
    load_scales(static_cast<const char*>(a.p.scales) + at * size, a.p.scale_type, s);
    if (a.p.zero_points) {
      zeros = *reinterpret_cast<const uint32_t*>(a.p.zero_points + at);
    }
    const uint8_t* line = a.p.weight + (tile * a.extent.lines + k / 8 * vectors) * kLine + c * 16;
    v[0] = load_stream(line);
    if (wide) {
      v[1] = load_stream(line + kLine);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t n = tile * kTileRows + c * 4 + i;
    if (n >= a.p.N) {
      return;
    }
    const uint32_t word[2] = {v[0].word[i], v[1].word[i]};
    Bits* to = static_cast<Bits*>(a.to) + (n - static_cast<int64_t>(a.first_tile) * kTileRows) * a.stride + k;
    float value[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const uint32_t code = code_of(word, e, wide);
      value[e] = k + e < a.p.K ? s[i] * decode_one(code, a.p.format, zeros >> (8 * i) & 0xffu, levels) : 0.0f;
    }
    store_eight<Y>(to, value);
  }
}

// A thread decodes 8 k of one row. Of each line it needs 4 bytes of 64, so that a gather reads eight times what it
// uses: rows of a tile are made for products, and an embedding reads a few rows of many.
template <class Y>
ONNXQ_KERNEL(kRowThreads, 2)
gather_kernel(ONNXQ_ARGUMENT GatherArguments a) {
  using Bits = typename Y::Bits;
  const int wide = is_wide(a.p.format);
  const int64_t pieces = ceil_div(a.p.K, 8), at = static_cast<int64_t>(block_x()) * kRowThreads + thread_index();
  const int64_t i = at / pieces, k = at % pieces * 8;
  if (i >= a.p.count) {
    return;
  }
  int64_t n =
      a.p.index_bytes == 8 ? static_cast<const int64_t*>(a.p.indices)[i] : static_cast<const int32_t*>(a.p.indices)[i];
  n = n < 0 ? n + a.p.N : n;
  const bool there = n >= 0 && n < a.p.N;
  const int64_t row = there ? n : 0, tile = row / kTileRows, c = row % kTileRows;
  const int64_t scale = (tile * a.extent.blocks + divide(static_cast<int>(k), a.block)) * kTileRows + c;
  const uint32_t* line =
      reinterpret_cast<const uint32_t*>(a.p.weight + (tile * a.extent.lines + (wide ? k / 4 : k / 8)) * kLine) + c;
  const uint32_t word[2] = {line[0], wide ? line[kLine / 4] : 0u};
  float s[4];
  {
    const int size = scale_size(a.p.scale_type);
    load_scales(static_cast<const char*>(a.p.scales) + scale / 4 * 4 * size, a.p.scale_type, s);
  }
  const int q = static_cast<int>(scale % 4);
  const float factor = q == 0 ? s[0] : q == 1 ? s[1] : q == 2 ? s[2] : s[3];
  const uint32_t zero = a.p.zero_points ? a.p.zero_points[scale] : wide ? 128u : 8u;
  Bits* to = static_cast<Bits*>(a.p.y) + i * a.p.K + k;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (k + e < a.p.K) {
      const float value = factor * decode_one(code_of(word, e, wide), a.p.format, zero, a.levels);
      to[e] = there ? Y::bits(value) : Bits{0};
    }
  }
}

template <class X, class Y>
ONNXQ_KERNEL(kRowThreads, 2)
fill_kernel(ONNXQ_ARGUMENT FillArguments a) {
  const int64_t i = static_cast<int64_t>(block_x()) * kRowThreads + thread_index();
  if (i < a.count) {
    static_cast<typename Y::Bits*>(a.to)[i] =
        Y::bits(X::value(static_cast<const typename X::Bits*>(a.from)[i % a.period]));
  }
}

}  // namespace
}  // namespace onnxq
