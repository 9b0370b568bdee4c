// What a kernel of attention is, as cpu/kernel.h: an ISA is one file in kernels/, which includes this header, C headers and
// intrinsics, and keeps everything in an anonymous namespace.

#ifndef ONNXQ_ATTENTION_KERNEL_H_
#define ONNXQ_ATTENTION_KERNEL_H_

#include "../cpu/kernel.h"

namespace onnxq {

// Where the arrays of one head begin.
struct Head {
  const float *q, *k, *v;
  const float* mask;  // or null
  float* y;           // [S, E], not initialized
};

// y = softmax(scale · q kᵀ + mask) v, head by head. Checked before it comes here: all sizes ≥ 1. No array is readable behind
// its end. The layout of this struct is part of the C ABI that tests use (tests/native/attention.py).
struct Attention {
  int64_t heads, S, T, D, E;  // rows of q, of k and v; numbers in a row of q and k, of v
  const Head* head;           // [heads]
  int64_t q_row, v_token, y_row;  // numbers between rows of q (0: there is one for all), of v and of y
  int64_t k_token, k_number;  // between rows of k, and between the numbers of one: (D or more, 1), or (1, T)
  int64_t mask_row, mask_token;  // 0: the same for all
  float scale;
  int32_t exact;  // nothing is rounded to less than float32
};

struct AttentionKernel {
  const char* isa;
  uint64_t needs;  // of CpuFeature

  // As those of Kernel (cpu/kernel.h).
  int64_t (*workspace)(const Attention&);
  int64_t (*tasks)(const Attention&, int phase, int threads);
  void (*run)(const Attention&, int phase, int64_t task, int64_t tasks, void* workspace);
};

namespace {

// Where the i-th of n parts of `all` begins.
constexpr int64_t part_begin(int64_t all, int64_t n, int64_t i) { return all * i / n; }

constexpr int64_t rounded_up(int64_t a, int64_t unit) { return (a + unit - 1) / unit * unit; }

// Parts of work that balance the load, of `units` that there are.
constexpr int64_t balanced(int64_t units, int threads) {
  const int64_t most = 8 * static_cast<int64_t>(threads);
  return threads <= 1 ? 1 : units < most ? units : most;
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_ATTENTION_KERNEL_H_
