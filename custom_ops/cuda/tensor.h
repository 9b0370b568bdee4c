// The tensor-core kernel: y = x · wᵀ with the weight as the 16-row operand of mma.m16n8k16, so that few rows of x waste
// little: columns come by 8.
//
// A block is 8 warps, `warps_n` side by side along N with 32 rows each, the others splitting K. A stage is two steps of
// 32 k of every warp; kDepth stages are on their way at any time, copied without a register waiting for them:
//
//   weights   each lane copies the 16 bytes that it will read itself        scales   of the 32 rows of each warp and step
//   x         kDepth × [rows, stage_k] as it is, padded so that the 8 lanes of a quarter of a warp hit different banks
//
// A step's product is summed in float32 without its scale and added to the result times the scale: the only rounding
// besides float32 sums is that of x and of the levels to 16 bits. Where K is split among blocks (grid y), each leaves its
// sums in `partial`, and the one that comes last adds them up in order, so that a result does not depend on who was last.
#pragma once

#include "decode.h"

namespace onnxq {

constexpr int kWarps = 8, kThreads = kWarps * 32, kStageSteps = 2;

// How a launch is cut; made by cut() in choose.h.
struct TensorShape {
  int warps_n, splits;
  int columns;          // rows of x a block takes: 8 · NT
  int steps, stages;    // of 32 k; of a stage's k, all splits together
  int stage_k, row_bytes;                                            // of x in a stage
  int x_at, scales_at, zeros_at, stage_bytes, stages_at, shared_bytes;  // bytes of shared memory
};

struct TensorArguments {
  Matmul p;
  TensorShape shape;
  Extent extent;
  Divisor block;
  int halves;         // scales a step needs for each row: 1, or 2 where blocks do not end at multiples of 32
  int x_aligned, y_aligned;
  float* partial;     // [grid z, grid x, splits, NT · 8 · warps_n, 32]
  uint32_t* counter;  // [grid z, grid x], zero
  float levels[16];
};

namespace {

template <class Decoder, class X, int NT>
struct TensorBlock {
  static constexpr int kVectors = Decoder::kWide ? 2 : 1;  // of 16 bytes, a step of a lane
  using Bits = typename X::Bits;

  const TensorArguments& a;
  int thread, warp, r, t, wn, wk, warps_k, tile, rows;
  bool active;
  float sum[NT][2][4];

  ONNXQ_DEVICE explicit TensorBlock(const TensorArguments& arguments) : a(arguments) {
    thread = thread_index();
    warp = thread / 32;
    r = thread % 32 >> 2;
    t = thread & 3;
    wn = warp % a.shape.warps_n;
    wk = warp / a.shape.warps_n;
    warps_k = kWarps / a.shape.warps_n;
    const int first = (block_x() * a.shape.warps_n + wn) * 2, tiles = static_cast<int>(a.extent.tiles);
    active = first < tiles;
    tile = first + (r >> 2) < tiles ? first + (r >> 2) : tiles - 1;  // what it computes there is not stored
    const int left = static_cast<int>(a.p.M) - block_z() * a.shape.columns;
    rows = left < a.shape.columns ? left : a.shape.columns;
#pragma unroll
    for (int i = 0; i < NT * 8; ++i) {
      sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
  }

  ONNXQ_DEVICE int step_of(int stage, int u) const { return (stage * warps_k + wk) * kStageSteps + u; }
  ONNXQ_DEVICE char* slot(int i) const { return shared_memory() + a.shape.stages_at + i * a.shape.stage_bytes; }
  // Bytes of scales, and of zero points, of one row: where row 0 of this warp's step u has them.
  ONNXQ_DEVICE int scale_index(int u, int half) const { return ((warp * kStageSteps + u) * a.halves + half) * kWarpRows; }

  ONNXQ_DEVICE void load(int stage, char* to) const {
    const uint8_t* weight = a.p.weight + tile * a.extent.lines * kLine + (r & 3) * 16;
    const int size = a.p.scale_type == kScaleFloat32 ? 4 : a.p.scale_type == kScaleFloat16 ? 2 : 1;
#pragma unroll
    for (int u = 0; u < kStageSteps; ++u) {
      const int step = step_of(stage, u);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int64_t line = warp_read(thread % 32, step, v, Decoder::kWide ? kInt8 : kInt4).line;
        const bool there = active && line < a.extent.lines;
        copy_async<16>(to + ((u * kVectors + v) * kThreads + thread) * 16, weight + (there ? line * kLine : 0),
                       there ? 16 : 0);
      }
      const int half = t & 1, b = divide(step * kStep + half * 16, a.block);
      const bool there = active && b < a.extent.blocks;
      const int64_t from = there ? (tile * a.extent.blocks + b) * kTileRows + (r & 3) * 4 : 0;
      const int at = scale_index(u, half) + r * 4;
      if (half < a.halves && t < 2) {
        char* target = to + a.shape.scales_at + at * size;
        const char* source = static_cast<const char*>(a.p.scales) + from * size;
        if (size == 2) {
          copy_async<8>(target, source, there ? 8 : 0);
        } else if (size == 4) {
          copy_async<16>(target, source, there ? 16 : 0);
        } else {
          copy_async<4>(target, source, there ? 4 : 0);
        }
      }
      if (a.p.zero_points && half < a.halves && t >= 2) {
        copy_async<4>(to + a.shape.zeros_at + at, a.p.zero_points + from, there ? 4 : 0);
      }
    }
    load_x(stage * a.shape.stage_k, to + a.shape.x_at);
  }

  ONNXQ_DEVICE void load_x(int k0, char* to) const {
    const Bits* x = static_cast<const Bits*>(a.p.x) + static_cast<int64_t>(block_z()) * a.shape.columns * a.p.K;
    const int K = static_cast<int>(a.p.K);
    if (a.x_aligned) {
      constexpr int kPerVector = 16 / sizeof(Bits);
      const int per_row = a.shape.stage_k / kPerVector;
      for (int i = thread; i < rows * per_row; i += kThreads) {
        const int m = i / per_row, c = i % per_row, k = k0 + c * kPerVector;
        copy_async<16>(to + m * a.shape.row_bytes + c * 16, x + (k < K ? m * a.p.K + k : 0), k < K ? 16 : 0);
      }
      return;
    }
    for (int i = thread; i < rows * a.shape.stage_k; i += kThreads) {
      const int m = i / a.shape.stage_k, c = i % a.shape.stage_k;
      reinterpret_cast<Bits*>(to + m * a.shape.row_bytes)[c] = k0 + c < K ? x[m * a.p.K + k0 + c] : Bits{0};
    }
  }

  // One n8 tile of one step: sum[nt] += scale · (codes · x). `masked` lets lanes of the other half of k add nothing.
  ONNXQ_DEVICE void multiply(const uint32_t (&w)[4][4], const uint32_t (&x)[4], const float (&s)[4], int nt) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      X::Compute::mma(d, w[2 * j][0], w[2 * j + 1][0], w[2 * j][1], w[2 * j + 1][1], x[0], x[1]);
      X::Compute::mma(d, w[2 * j][2], w[2 * j + 1][2], w[2 * j][3], w[2 * j + 1][3], x[2], x[3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum[nt][j][e] += s[2 * j + e / 2] * d[e];
      }
    }
  }

  ONNXQ_DEVICE void compute(int stage, const char* from) {
    const int size = a.p.scale_type == kScaleFloat32 ? 4 : a.p.scale_type == kScaleFloat16 ? 2 : 1;
    const uint32_t* table = reinterpret_cast<const uint32_t*>(shared_memory());
#pragma unroll
    for (int u = 0; u < kStageSteps; ++u) {
      if (!active || step_of(stage, u) >= a.shape.steps) {
        return;  // the whole warp: no lane is left alone in an mma
      }
      uint32_t w[4][4];
      {
        Vector v[kVectors];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          v[i] = *reinterpret_cast<const Vector*>(from + ((u * kVectors + i) * kThreads + thread) * 16);
        }
        uint32_t zeros = Decoder::kWide ? 0x80808080u : 0x08080808u;
        if (a.p.zero_points) {
          const int half = a.halves == 2 ? t >> 1 : 0;  // a lane's 8 k lie in one half
          zeros = *reinterpret_cast<const uint32_t*>(from + a.shape.zeros_at + scale_index(u, half) + r * 4);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t word[2] = {v[0].word[i], v[kVectors - 1].word[i]};
          Decoder::decode(word, Decoder::zero(zeros >> (8 * i) & 0xffu), table, w[i]);
        }
      }
      const char* x = from + a.shape.x_at + ((wk * kStageSteps + u) * kStep + t * 8) * sizeof(Bits);
      const char* scales = from + a.shape.scales_at;
      float s[4];
      load_scales(scales + (scale_index(u, 0) + r * 4) * size, a.p.scale_type, s);
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const int m = nt * 8 + r;  // a column behind the last row of x repeats it and is not stored
        uint32_t pair[4];
        X::template pairs<Decoder::kOrder>(x + (m < rows ? m : rows - 1) * a.shape.row_bytes, pair);
        if (a.halves == 1) {
          multiply(w, pair, s, nt);
          continue;
        }
        float other[4];
        load_scales(scales + (scale_index(u, 1) + r * 4) * size, a.p.scale_type, other);
        const bool first = t < 2;
        const uint32_t low[4] = {first ? pair[0] : 0u, first ? pair[1] : 0u, first ? pair[2] : 0u, first ? pair[3] : 0u};
        const uint32_t high[4] = {first ? 0u : pair[0], first ? 0u : pair[1], first ? 0u : pair[2], first ? 0u : pair[3]};
        multiply(w, low, s, nt);
        multiply(w, high, other, nt);
      }
    }
  }

  // The sums of all warps that share rows, to those with wk = 0.
  ONNXQ_DEVICE void reduce_block() {
    copy_wait<0>();
    synchronize_block();
    float* buffer = reinterpret_cast<float*>(slot(0));
    if (wk > 0) {
#pragma unroll
      for (int i = 0; i < NT * 8; ++i) {
        buffer[(((wk - 1) * a.shape.warps_n + wn) * NT * 8 + i) * 32 + thread % 32] = sum[i / 8][i / 4 % 2][i % 4];
      }
    }
    synchronize_block();
    if (wk == 0) {
      for (int other = 0; other < warps_k - 1; ++other) {
#pragma unroll
        for (int i = 0; i < NT * 8; ++i) {
          sum[i / 8][i / 4 % 2][i % 4] += buffer[((other * a.shape.warps_n + wn) * NT * 8 + i) * 32 + thread % 32];
        }
      }
    }
  }

  // True for the block that has the sums of all splits.
  ONNXQ_DEVICE bool reduce_splits() {
    const int place = block_z() * blocks_x() + block_x();
    const int64_t size = static_cast<int64_t>(a.shape.warps_n) * NT * 8 * 32;
    float* mine = a.partial + place * a.shape.splits * size + wn * NT * 8 * 32 + thread % 32;
    if (wk == 0) {
#pragma unroll
      for (int i = 0; i < NT * 8; ++i) {
        mine[block_y() * size + i * 32] = sum[i / 8][i / 4 % 2][i % 4];
      }
      fence();
    }
    synchronize_block();
    int* last = reinterpret_cast<int*>(slot(0));
    if (thread == 0) {
      *last = increment(a.counter + place) == static_cast<uint32_t>(a.shape.splits - 1);
      fence();
    }
    synchronize_block();
    if (!*last || wk > 0) {
      return *last;
    }
#pragma unroll
    for (int i = 0; i < NT * 8; ++i) {
      float total = 0.0f;
      for (int split = 0; split < a.shape.splits; ++split) {
        total += load_fresh(mine + split * size + i * 32);
      }
      sum[i / 8][i / 4 % 2][i % 4] = total;
    }
    return true;
  }

  ONNXQ_DEVICE void store() const {
    const int n = (block_x() * a.shape.warps_n + wn) * kWarpRows + warp_row(thread % 32, 0);
    const int count = static_cast<int>(a.p.N) - n;
    if (wk > 0 || count <= 0) {
      return;
    }
    const Bits* bias = static_cast<const Bits*>(a.p.bias);
    float b[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b[i] = bias && i < count ? X::value(bias[n + i]) : 0.0f;
    }
    Bits* y = static_cast<Bits*>(a.p.y) + static_cast<int64_t>(block_z()) * a.shape.columns * a.p.N + n;
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = nt * 8 + t * 2 + e;
        if (m < rows) {
          const float v[4] = {sum[nt][0][e] + b[0], sum[nt][0][2 + e] + b[1], sum[nt][1][e] + b[2], sum[nt][1][2 + e] + b[3]};
          store_four<X>(y + m * a.p.N, v, count, a.y_aligned);
        }
      }
    }
  }
};

// Two blocks a multiprocessor leave 128 registers a thread, which is enough for up to 32 columns.
template <class Decoder, class X, int NT>
ONNXQ_KERNEL(kThreads, NT < 8 ? 2 : 1)
tensor_kernel(ONNXQ_ARGUMENT TensorArguments a) {
  constexpr int kDepth = Decoder::kDepth;
  TensorBlock<Decoder, X, NT> block(a);
  if constexpr (Decoder::kTable) {
    Decoder::fill(reinterpret_cast<uint32_t*>(shared_memory()), a.levels, kThreads);
  }
  const int first = static_cast<int>(static_cast<int64_t>(a.shape.stages) * block_y() / a.shape.splits);
  const int last = static_cast<int>(static_cast<int64_t>(a.shape.stages) * (block_y() + 1) / a.shape.splits);
#pragma unroll
  for (int i = 0; i < kDepth - 1; ++i) {
    if (first + i < last) {
      block.load(first + i, block.slot(i));
    }
    copy_commit();
  }
  int read = 0, write = kDepth - 1;
  for (int stage = first; stage < last; ++stage) {
    copy_wait<kDepth - 2>();
    synchronize_block();  // everybody's copies of this stage are there, and nobody reads the one before any more
    if (stage + kDepth - 1 < last) {
      block.load(stage + kDepth - 1, block.slot(write));
    }
    copy_commit();
    block.compute(stage, block.slot(read));
    read = read + 1 == kDepth ? 0 : read + 1;
    write = write + 1 == kDepth ? 0 : write + 1;
  }
  block.reduce_block();
  if (a.shape.splits == 1 || block.reduce_splits()) {
    block.store();
  }
}

}  // namespace
}  // namespace onnxq
