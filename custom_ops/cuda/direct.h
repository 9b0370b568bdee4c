// The tensor-core kernel for few rows of x: what a lane multiplies goes from memory into its registers, without shared memory,
// copies or barriers in between, so that three blocks of a multiprocessor hide each other's waiting.
//
// A block is 8 or 16 warps that split K and have the same 32 rows of the weight. The loads of two or four steps of 32 k leave
// before the first is waited for; x comes from the caches, as every block reads all of it. The sums of warps, and of
// blocks where K is split among them, are added up as the other tensor-core kernel does.
//
// For blocks of whole steps, K a multiple of 32 and rows of x that start at multiples of 16 bytes (fits_direct).
#pragma once

#include "decode.h"
#include "tensor_sums.h"

namespace onnxq {
namespace {

// What a lane reads of the weight for one step.
template <int vectors>
struct StepRead {
  Vector codes[vectors], scales;
  uint32_t zeros;
};

template <class Decoder, class X, int NT>
struct DirectBlock : TensorSums<X, NT> {
  static constexpr bool kWide = Decoder::kWide;
  static constexpr int kVectors = kWide ? 2 : 1, kStepLines = kWide ? 8 : 4;
  static constexpr int kAhead = direct_ahead(kWide, NT);
  using Bits = typename X::Bits;
  using Read = StepRead<kVectors>;
  using Sums = TensorSums<X, NT>;
  using Sums::a, Sums::thread, Sums::warp, Sums::r, Sums::t, Sums::rows, Sums::sum;

  const uint8_t* weight;  // this lane's first line
  int64_t scales;         // of block 0, counted in rows
  const char* x[NT];      // this lane's first k of its row; of one that does not exist, of the last: it is not stored

  ONNXQ_DEVICE explicit DirectBlock(const TensorArguments& arguments) : Sums(arguments) {
    int tile = block_x() * 2 + (r >> 2);
    tile = tile < static_cast<int>(a.extent.tiles) ? tile : static_cast<int>(a.extent.tiles) - 1;
    const WarpRead read = warp_read(thread % 32, 0, 0, kWide ? kInt8 : kInt4);
    weight = a.p.weight + (tile * a.extent.lines + read.line) * kLine + read.c * 16;
    scales = tile * a.extent.blocks * kTileRows + read.c * 4;
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      const int row = nt * 8 + r < rows ? nt * 8 + r : rows - 1;
      x[nt] = reinterpret_cast<const char*>(static_cast<const Bits*>(a.p.x) +
                                            (static_cast<int64_t>(block_z()) * a.shape.columns + row) * a.p.K + t * 8);
    }
  }

  ONNXQ_DEVICE void load(int step, Read& to) const {
    const bool there = step < a.shape.steps;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      to.codes[v] = there ? load_stream(weight + (step * kStepLines + v) * kLine) : Vector{};
    }
    const int64_t at = scales + static_cast<int64_t>(divide(step * kStep, a.block)) * kTileRows;
    const char* source = static_cast<const char*>(a.p.scales) + at * scale_size(a.p.scale_type);
    to.scales = there ? fetch_scales(source, a.p.scale_type) : Vector{};
    to.zeros = kWide ? 0x80808080u : 0x08080808u;
    if (a.p.zero_points && there) {
      to.zeros = *reinterpret_cast<const uint32_t*>(a.p.zero_points + at);
    }
  }

  ONNXQ_DEVICE void decode(const Read& read, uint32_t (&w)[4][4]) const {
    const uint32_t* table = reinterpret_cast<const uint32_t*>(shared_memory());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word[2] = {read.codes[0].word[i], read.codes[kVectors - 1].word[i]};
      Decoder::decode(word, Decoder::zero(read.zeros >> (8 * i) & 0xffu), table, w[i]);
    }
  }

  // The steps from `first` on; `together`: they share a scale.
  template <bool together>
  ONNXQ_DEVICE void steps(int first) {
    Read read[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      load(first + u, read[u]);
    }
    float s[4], d[NT][2][4] = {};
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (first + u >= a.shape.steps) {
        break;  // the whole warp
      }
      uint32_t w[4][4];
      decode(read[u], w);
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        uint32_t pair[4];
        X::template pairs<Decoder::kOrder>(x[nt] + (first + u) * kStep * static_cast<int>(sizeof(Bits)), pair);
        multiply_step<X>(d[nt], w, pair);
      }
      if (!together) {
        read_scales(read[u].scales, a.p.scale_type, s);
        add(d, s);
      }
    }
    if (together) {
      read_scales(read[0].scales, a.p.scale_type, s);
      add(d, s);
    }
  }

  ONNXQ_DEVICE void add(float (&d)[NT][2][4], const float (&s)[4]) {
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum[nt][i / 4][i % 4] += s[i / 2] * d[nt][i / 4][i % 4];
        d[nt][i / 4][i % 4] = 0.0f;
      }
    }
  }
};

// Of 8 warps, blocks of a multiprocessor. A third one leaves 80 registers a thread, and is worth the few words that do not
// fit into these: 16 rows by [11008, 4096] took 22 µs with two and 16 with three.
constexpr int direct_blocks(size_t bytes_of_x, int nt) { return bytes_of_x == 2 && nt <= 2 ? 3 : 2; }

template <class Decoder, class X, int NT, int warps>
ONNXQ_KERNEL(warps * 32, (warps > 8 ? 1 : direct_blocks(sizeof(typename X::Bits), NT)))
direct_kernel(ONNXQ_ARGUMENT TensorArguments a) {
  using Block = DirectBlock<Decoder, X, NT>;
  Block block(a);
  if constexpr (Decoder::kTable) {
    Decoder::fill(reinterpret_cast<uint32_t*>(shared_memory()), a.levels, warps * 32);
    synchronize_block();
  }
  const int stages = (a.shape.steps + Block::kAhead - 1) / Block::kAhead;
  const int last = static_cast<int>(static_cast<int64_t>(stages) * (block_y() + 1) / a.shape.splits);
  int stage = static_cast<int>(static_cast<int64_t>(stages) * block_y() / a.shape.splits) + block.warp;
  if (a.group == Block::kAhead) {
#pragma unroll 1
    for (; stage < last; stage += warps) {
      block.template steps<true>(stage * Block::kAhead);
    }
  } else {
#pragma unroll 1
    for (; stage < last; stage += warps) {
      block.template steps<false>(stage * Block::kAhead);
    }
  }
  block.reduce_block();
  if (a.shape.splits == 1 || block.reduce_splits()) {
    block.store();
  }
}

}  // namespace
}  // namespace onnxq
