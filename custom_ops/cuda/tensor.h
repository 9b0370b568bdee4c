// The tensor-core kernel: y = x · wᵀ with the weight as the 16-row operand of mma.m16n8k16, so that few rows of x waste
// little: columns come by 8.
//
// A block is 8 warps, `warps_n` side by side along N with 32 rows each, the others splitting K. A stage is some steps
// of 32 k of every warp; all stages but one are on their way at any time, copied without a register waiting for them:
//
//   weights   each lane copies the 16 bytes that it will read itself        scales   of the 32 rows of each warp and
//   step x         [columns, stage_k] as it is, padded so that the 8 lanes of a quarter of a warp hit different banks
//
// A step's product is summed in float32 without its scale and added to the result times the scale: the only rounding
// besides float32 sums is that of x and of the levels to 16 bits. Where K is split among blocks (grid y), each leaves
// its sums in `partial`, and the one that comes last adds them up in order, so that a result does not depend on who was
// last.
#pragma once

#include "decode.h"
#include "tensor_sums.h"

namespace onnxq {
namespace {

template <class Decoder, class X, int NT>
struct TensorBlock : TensorSums<X, NT> {
  static constexpr bool kWide = Decoder::kWide;
  static constexpr int kVectors = kWide ? 2 : 1;                       // of 16 bytes, a step of a lane
  static constexpr int kStepLines = kWide ? 8 : 4;                     // lines of a step
  static constexpr int kSteps = steps_of(kWide, Decoder::kTable, NT);  // of a stage
  using Bits = typename X::Bits;

  using Sums = TensorSums<X, NT>;
  using Sums::a, Sums::thread, Sums::warp, Sums::r, Sums::t, Sums::wn, Sums::wk, Sums::rows, Sums::sum;

  int size;  // of a scale
  bool active;
  // Of the next stage to be loaded; what is this lane's own is in it.
  int k;                  // first k of the block's stage
  int lines_left;         // of the weight, from this lane's first one on
  const uint8_t* weight;  // its address
  const char* scales;     // of block 0
  const uint8_t* zeros;
  int scale_at, scale_k;  // where in a stage a lane's first scale goes, and for which k of the stage
  const Bits* x;          // first vector that this thread copies, in row x_row of the block, and where it goes
  int x_row, x_row_step, x_column, x_at;

  ONNXQ_DEVICE TensorBlock(const TensorArguments& arguments, int first_stage) : Sums(arguments) {
    size = scale_size(a.p.scale_type);
    const int first = (block_x() * a.shape.warps_n + wn) * 2, tiles = static_cast<int>(a.extent.tiles);
    active = first < tiles;
    int tile = first + (r >> 2);
    tile = tile < tiles ? tile : tiles - 1;  // what it computes there is not stored

    k = first_stage * a.shape.stage_k;
    const WarpRead read = warp_read(thread % 32, k / kStep + wk * kSteps, 0, kWide ? kInt8 : kInt4);
    lines_left = active ? static_cast<int>(a.extent.lines - read.line) : 0;
    weight = a.p.weight + (tile * a.extent.lines + read.line) * kLine + read.c * 16;
    const int64_t at = tile * a.extent.blocks * kTileRows + read.c * 4;
    scales = static_cast<const char*>(a.p.scales) + at * size;
    zeros = a.p.zero_points ? a.p.zero_points + at : nullptr;
    scale_at = keep((scale_index(t) + r * 4) * size);
    scale_k = keep(wk * kSteps * kStep + t * a.span);

    // A stage's row is 8 … 256 vectors, a power of two: a thread copies the same one of some rows.
    constexpr int kPerVector = 16 / sizeof(Bits);
    const int per_row = a.shape.stage_k / kPerVector;
    x_row = static_cast<int>(static_cast<unsigned>(thread) / static_cast<unsigned>(per_row));
    x_row_step = keep(static_cast<int>(static_cast<unsigned>(kThreads) / static_cast<unsigned>(per_row)));
    x_column = thread % per_row;
    x = static_cast<const Bits*>(a.p.x) + (static_cast<int64_t>(block_z()) * a.shape.columns + x_row) * a.p.K +
        x_column * kPerVector;
    x_at = keep(a.shape.x_at + x_row * a.shape.row_bytes + x_column * 16);
    x_column = keep(x_column * kPerVector);
  }

  // Where in a stage row 0 of this warp has its i-th scale, or zero point, counted in rows. A step has `halves` of
  // them.
  ONNXQ_DEVICE int scale_index(int i) const { return (warp * kSteps * a.halves + i) * kWarpRows; }

  // Starts to copy the next stage.
  ONNXQ_DEVICE void load(char* to) {
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        copy_async<16>(to + ((u * kVectors + v) * kThreads + thread) * 16, weight + (u * kStepLines + v) * kLine,
                       u * kStepLines + v < lines_left ? 16 : 0);
      }
    }
#pragma unroll 1
    for (int i = t; i < kSteps * a.halves; i += 4) {  // lanes of the same rows share the scales among them
      const int b = divide(k + scale_k + (i - t) * a.span, a.block), at = scale_at + (i - t) * kWarpRows * size;
      const bool there = active && b < static_cast<int>(a.extent.blocks);
      char* target = to + a.shape.scales_at + at;
      const char* source = scales + static_cast<int64_t>(b) * (kTileRows * size);
      if (size == 2) {
        copy_async<8>(target, source, there ? 8 : 0);
      } else if (size == 4) {
        copy_async<16>(target, source, there ? 16 : 0);
      } else {
        copy_async<4>(target, source, there ? 4 : 0);
      }
      if (a.p.zero_points) {
        copy_async<4>(to + a.shape.zeros_at + scale_index(i) + r * 4, zeros + static_cast<int64_t>(b) * kTileRows,
                      there ? 4 : 0);
      }
    }
    if (a.x_aligned) {
      const int bytes = k + x_column < static_cast<int>(a.p.K) ? 16 : 0;
      if (x_row < rows) {
        copy_async<16>(to + x_at, x + k, bytes);
      }
#pragma unroll 1
      for (int m = x_row + x_row_step; m < rows; m += x_row_step) {
        copy_async<16>(to + x_at + (m - x_row) * a.shape.row_bytes, x + k + (m - x_row) * a.p.K, bytes);
      }
    } else {
      copy_x(to + a.shape.x_at);
    }
    k += a.shape.stage_k;
    const int lines = a.shape.warps_k * kSteps * kStepLines;
    lines_left -= lines;
    weight += lines * kLine;
  }

  // One element at a time, where rows of x do not start at multiples of 16 bytes.
  ONNXQ_DEVICE void copy_x(char* to) const {
    const Bits* from = static_cast<const Bits*>(a.p.x) + static_cast<int64_t>(block_z()) * a.shape.columns * a.p.K;
#pragma unroll 1
    for (int m = 0; m < rows; ++m) {
#pragma unroll 1
      for (int c = thread; c < a.shape.stage_k; c += kThreads) {
        reinterpret_cast<Bits*>(to + m * a.shape.row_bytes)[c] = k + c < a.p.K ? from[m * a.p.K + k + c] : Bits{0};
      }
    }
  }

  // The codes of step u of a stage.
  ONNXQ_DEVICE void decode(const char* from, int u, uint32_t (&w)[4][4]) const {
    const uint32_t* table = reinterpret_cast<const uint32_t*>(shared_memory());
    Vector v[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      v[i] = *reinterpret_cast<const Vector*>(from + ((u * kVectors + i) * kThreads + thread) * 16);
    }
    if (Decoder::kTable || !a.p.zero_points) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word[2] = {v[0].word[i], v[kVectors - 1].word[i]};
        Decoder::decode(word, Decoder::zero(kWide ? 128 : 8), table, w[i]);
      }
      return;
    }
    const int at = scale_index(u * a.halves + (a.halves == 2 ? t >> 1 : 0));  // a lane's 8 k lie in one half
    const uint32_t z = *reinterpret_cast<const uint32_t*>(from + a.shape.zeros_at + at + r * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word[2] = {v[0].word[i], v[kVectors - 1].word[i]};
      Decoder::decode(word, Decoder::zero(z >> (8 * i) & 0xffu), table, w[i]);
    }
  }

  ONNXQ_DEVICE void add(int nt, const float (&d)[2][4], const float (&s)[4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[nt][i / 4][i % 4] += s[i / 2] * d[i / 4][i % 4];
    }
  }

  // All steps of a stage, `group` of which share a scale: one sum for all of them.
  template <int group>
  ONNXQ_DEVICE void compute(int steps, const char* from, const char* x_row, const char* scale) {
#pragma unroll
    for (int first = 0; first < kSteps; first += group, scale += group * kWarpRows * size) {
      if (first >= steps) {
        return;
      }
      float d[group == 1 ? 1 : NT][2][4] = {};
      float s[4];
      load_scales(scale, a.p.scale_type, s);
#pragma unroll
      for (int u = first; u < first + group; ++u) {
        if (group > 1 && u >= steps) {
          break;  // where K ends in the middle of a group; its other blocks do not exist
        }
        uint32_t w[4][4];
        decode(from, u, w);
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          uint32_t pair[4];
          X::template pairs<Decoder::kOrder>(x_row + nt * 8 * a.shape.row_bytes + u * kStep * sizeof(Bits), pair);
          if constexpr (group == 1) {
            float one[2][4] = {};
            multiply_step<X>(one, w, pair);
            add(nt, one, s);
          } else {
            multiply_step<X>(d[nt], w, pair);
          }
        }
      }
      if constexpr (group > 1) {
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          add(nt, d[nt], s);
        }
      }
    }
  }

  // The same where blocks end in the middle of a step: once for each half, in which lanes of the other half add
  // nothing.
  ONNXQ_DEVICE void compute_halves(int steps, const char* from, const char* x_row, const char* scale) {
#pragma unroll 1
    for (int i = 0; i < 2 * kSteps && i < 2 * steps; ++i, scale += kWarpRows * size) {
      uint32_t w[4][4];
      float s[4];
      decode(from, i / 2, w);
      load_scales(scale, a.p.scale_type, s);
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        uint32_t pair[4];
        float d[2][4] = {};
        X::template pairs<Decoder::kOrder>(
            x_row + nt * 8 * a.shape.row_bytes + i / 2 * kStep * static_cast<int>(sizeof(Bits)), pair);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          pair[p] = t >> 1 == i % 2 ? pair[p] : 0u;
        }
        multiply_step<X>(d, w, pair);
        add(nt, d, s);
      }
    }
  }

  // `first` is the first k of the stage.
  ONNXQ_DEVICE void compute(int first, const char* from) {
    const int steps = a.shape.steps - (static_cast<int>(static_cast<unsigned>(first) / kStep) + wk * kSteps);
    if (!active || steps <= 0) {
      return;  // the whole warp: no lane is left alone in an mma
    }
    // With one n8 tile, only rows of x that exist have room in a stage. A column behind them repeats the last one, or
    // is whatever lies there, and is not stored.
    const int row = NT == 1 && r >= rows ? rows - 1 : r;
    const char* x_row = from + keep(a.shape.x_at + row * a.shape.row_bytes +
                                    (wk * kSteps * kStep + t * 8) * static_cast<int>(sizeof(Bits)));
    const char* scale = from + keep(a.shape.scales_at + (scale_index(0) + r * 4) * size);
    if (a.halves == 2) {
      return compute_halves(steps, from, x_row, scale);
    }
    if constexpr (NT <= 2) {
      if (a.group == kSteps) {
        return compute<kSteps>(steps, from, x_row, scale);
      }
      if (a.group == 2) {
        return compute<2>(steps, from, x_row, scale);
      }
    }
    compute<1>(steps, from, x_row, scale);
  }
};

// Two blocks a multiprocessor leave 128 registers a thread: enough for 16 columns of anything, 32 of int4 with halves.
template <class Decoder, class X>
constexpr int widest_of_two() {
  return Decoder::kTable || Decoder::kWide || sizeof(typename X::Bits) == 4 ? 2 : 4;
}

template <class Decoder, class X, int NT>
ONNXQ_KERNEL(kThreads, (NT <= widest_of_two<Decoder, X>() ? 2 : 1))
tensor_kernel(ONNXQ_ARGUMENT TensorArguments a) {
  constexpr int kDepth = depth_of(Decoder::kWide, Decoder::kTable, NT);
  const int first = static_cast<int>(static_cast<int64_t>(a.shape.stages) * block_y() / a.shape.splits);
  const int last = static_cast<int>(static_cast<int64_t>(a.shape.stages) * (block_y() + 1) / a.shape.splits);
  TensorBlock<Decoder, X, NT> block(a, first);
  if constexpr (Decoder::kTable) {
    Decoder::fill(reinterpret_cast<uint32_t*>(shared_memory()), a.levels, kThreads);
  }
#pragma unroll 1
  for (int i = 0; i < kDepth - 1; ++i) {
    if (first + i < last) {
      block.load(block.slot(i));
    }
    copy_commit();
  }
  int read = 0, write = kDepth - 1;
#pragma unroll 1
  for (int stage = first; stage < last; ++stage) {
    copy_wait<kDepth - 2>();
    synchronize_block();  // everybody's copies of this stage are there, and nobody reads the one before any more
    if (stage + kDepth - 1 < last) {
      block.load(block.slot(write));
    }
    copy_commit();
    block.compute(stage * a.shape.stage_k, block.slot(read));
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
