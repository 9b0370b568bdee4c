// The vector kernel: y = x · wᵀ for one to four rows of x in float32 throughout, which makes it the kernel of `exact`
// too.
//
// A block is one tile of 16 rows; its 8 warps split K. A lane reads 4 rows × 8 k a step (layout.h), two or four loads
// ahead of what it multiplies. Per lane and step: sum += s · (Σ v x - offset · Σ x), where v is the code in the
// mantissa of a float and `offset` holds that float's constant and the zero point, so that neither costs anything for
// each weight.
#pragma once

#include "decode.h"

namespace onnxq {

constexpr int kGemvWarps = 8, kGemvThreads = kGemvWarps * 32;

struct GemvArguments {
  Matmul p;
  Extent extent;
  Divisor block;
  int x_aligned, y_aligned;
  float levels[16];
};

namespace {

template <int format>  // kInt4, kInt8, or kNf4 for any table
struct FloatDecoder {
  static constexpr int kVectors = is_wide(format) ? 2 : 1;  // of 16 bytes, a step of a lane
  static constexpr int kAhead = is_wide(format) ? 2 : 4;    // steps on their way

  // v[k] of a row's 8 codes, and what has to be taken from each.
  static ONNXQ_DEVICE float decode(const uint32_t* word, uint32_t zero, const float* table, float (&v)[8]) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int nibble = k % 4 * 2 + k / 4, up = 19 - 4 * nibble;
      if (format == kInt4) {  // the top four bits of the mantissa of 16.0
        const uint32_t w = up >= 0 ? word[0] << (up >= 0 ? up : 0) : word[0] >> (up >= 0 ? 0 : -up);
        v[k] = as_float((w & 0x00780000u) | 0x41800000u);
      } else if (format == kInt8) {  // the low bits of the mantissa of 2^23: exact only if taken away at once
        v[k] = as_float(permute(word[k / 4], 0x4b000000u, 0x7540u + k % 4)) - as_float(0x4b000000u + zero);
      } else {
        v[k] = table[(word[0] >> (4 * nibble) & 15u) * 32 + lane];
      }
    }
    return format == kInt4 ? 16.0f + static_cast<float>(zero) : 0.0f;
  }
};

template <int format, class X, int R>
ONNXQ_KERNEL(kGemvThreads, (R == 1 ? 3 : 2))
gemv_kernel(ONNXQ_ARGUMENT GemvArguments a) {
  using Decoder = FloatDecoder<format>;
  using Bits = typename X::Bits;
  constexpr int kVectors = Decoder::kVectors, kAhead = Decoder::kAhead;
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32, c = lane & 3, l = lane >> 2;
  const int tile = block_x(), K = static_cast<int>(a.p.K), blocks = static_cast<int>(a.extent.blocks);
  const int left = static_cast<int>(a.p.M) - block_z() * R, rows = left < R ? left : R;
  const int steps = static_cast<int>(ceil_div(a.extent.lines, 8 * kVectors));
  const int size = scale_size(a.p.scale_type);
  const uint8_t* weight = a.p.weight + tile * a.extent.lines * kLine + c * 16;
  const Bits* x = static_cast<const Bits*>(a.p.x) + static_cast<int64_t>(block_z()) * R * a.p.K;
  float* table = reinterpret_cast<float*>(shared_memory());
  float* buffer = table + (format == kNf4 ? 16 * 32 : 0);  // [warps, R, 16]

  if constexpr (format == kNf4) {
    for (int i = thread; i < 16 * 32; i += kGemvThreads) {
      table[i] = a.levels[i / 32];
    }
    synchronize_block();
  }

  // What a lane reads of the weight for one step.
  struct Read {
    Vector codes[kVectors], scales;
    uint32_t zeros;
  };
  const auto scales_at = [&](int k) {
    return (static_cast<int64_t>(tile) * blocks + divide(k, a.block)) * kTileRows + c * 4;
  };
  float sum[R][4] = {};
  for (int first = warp * kAhead; first < steps; first += kGemvWarps * kAhead) {
    Read read[kAhead];  // all loads leave before the first is waited for
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = (first + u) * kGemvStep + l * 8;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int64_t line = (static_cast<int64_t>(first + u) * 8 + l) * kVectors + v;
        read[u].codes[v] = line < a.extent.lines ? load_stream(weight + line * kLine) : Vector{};
      }
      const bool there = k < K;  // behind K codes stand for zeros, and scales may not be there
      read[u].scales =
          there ? fetch_scales(static_cast<const char*>(a.p.scales) + scales_at(k) * size, a.p.scale_type) : Vector{};
      read[u].zeros = format == kInt8 ? 0x80808080u : 0x08080808u;
      if (a.p.zero_points && there) {
        read[u].zeros = *reinterpret_cast<const uint32_t*>(a.p.zero_points + scales_at(k));
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = (first + u) * kGemvStep + l * 8;
      if (k >= K) {
        break;
      }
      float s[4], values[R][8], total[R];
      read_scales(read[u].scales, a.p.scale_type, s);
#pragma unroll
      for (int m = 0; m < R; ++m) {
        load_eight<X>(x + (m < rows ? m : 0) * a.p.K + k, K - k, a.x_aligned, values[m]);
        total[m] = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          total[m] += values[m][e];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word[2] = {read[u].codes[0].word[i], read[u].codes[kVectors - 1].word[i]};
        float v[8];
        const float offset = Decoder::decode(word, read[u].zeros >> (8 * i) & 0xffu, table, v);
#pragma unroll
        for (int m = 0; m < R; ++m) {
          float dot = -offset * total[m];
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            dot += v[e] * values[m][e];
          }
          sum[m][i] += s[i] * dot;
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < R; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (int mask = 4; mask < 32; mask *= 2) {
        sum[m][i] += shuffle_xor(sum[m][i], mask);
      }
      if (l == 0) {
        buffer[(warp * R + m) * kTileRows + c * 4 + i] = sum[m][i];
      }
    }
  }
  synchronize_block();
  const int m = thread / kTileRows, n = tile * kTileRows + thread % kTileRows;
  if (thread < R * kTileRows && m < rows && n < a.p.N) {
    const Bits* bias = static_cast<const Bits*>(a.p.bias);
    float y = 0.0f;
    for (int w = 0; w < kGemvWarps; ++w) {
      y += buffer[w * R * kTileRows + thread];
    }
    y += bias ? X::value(bias[n]) : 0.0f;
    static_cast<Bits*>(a.p.y)[(static_cast<int64_t>(block_z()) * R + m) * a.p.N + n] = X::bits(y);
  }
}

}  // namespace
}  // namespace onnxq
