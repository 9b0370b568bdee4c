// What a block of the tensor-core kernel has added up, and how it becomes y.
#pragma once

#include "element.h"
#include "tensor_shape.h"

namespace onnxq {
namespace {

// d += a step of 32 k: of w each register pair of 8 k of four rows, of x the pairs of the same k of a column.
template <class X>
ONNXQ_DEVICE void multiply_step(float (&d)[2][4], const uint32_t (&w)[4][4], const uint32_t (&pair)[4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    X::Compute::mma(d[j], w[2 * j][0], w[2 * j + 1][0], w[2 * j][1], w[2 * j + 1][1], pair[0], pair[1]);
    X::Compute::mma(d[j], w[2 * j][2], w[2 * j + 1][2], w[2 * j][3], w[2 * j + 1][3], pair[2], pair[3]);
  }
}

// Each thread's share: for n8 tile nt and mma j, the four elements of operand C.
template <class X, int NT>
struct TensorSums {
  using Bits = typename X::Bits;

  const TensorArguments& a;
  int thread, warp, r, t;  // lane 4r + t
  int wn, wk;              // place of the warp along N, and along K
  int rows;                // of x that this block has
  float sum[NT][2][4];

  ONNXQ_DEVICE explicit TensorSums(const TensorArguments& arguments) : a(arguments) {
    thread = thread_index();
    warp = thread / 32;
    r = thread % 32 >> 2;
    t = thread & 3;
    wn = warp % a.shape.warps_n;
    wk = warp / a.shape.warps_n;
    const int left = static_cast<int>(a.p.M) - block_z() * a.shape.columns;
    rows = left < a.shape.columns ? left : a.shape.columns;
#pragma unroll
    for (int i = 0; i < NT * 8; ++i) {
      sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
  }

  ONNXQ_DEVICE char* slot(int i) const { return shared_memory() + a.shape.stages_at + i * a.shape.stage_bytes; }

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
#pragma unroll 1
      for (int other = 0; other < a.shape.warps_k - 1; ++other) {
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
    const int64_t floats = static_cast<int64_t>(a.shape.warps_n) * NT * 8 * 32;
    float* mine = a.partial + place * a.shape.splits * floats + wn * NT * 8 * 32 + thread % 32;
    if (wk == 0) {
#pragma unroll
      for (int i = 0; i < NT * 8; ++i) {
        mine[block_y() * floats + i * 32] = sum[i / 8][i / 4 % 2][i % 4];
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
      sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
#pragma unroll 1
    for (int split = 0; split < a.shape.splits; ++split, mine += floats) {
#pragma unroll
      for (int i = 0; i < NT * 8; ++i) {
        sum[i / 8][i / 4 % 2][i % 4] += load_fresh(mine + i * 32);
      }
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
          const float v[4] = {sum[nt][0][e] + b[0], sum[nt][0][2 + e] + b[1], sum[nt][1][e] + b[2],
                              sum[nt][1][2 + e] + b[3]};
          store_four<X>(y + m * a.p.N, v, count, a.y_aligned);
        }
      }
    }
  }
};

}  // namespace
}  // namespace onnxq
