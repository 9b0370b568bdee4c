// What a kernel of recurrent layers is, as cpu/kernel.h: an ISA is one file in kernels/, which includes this header, C headers
// and intrinsics, and keeps everything in an anonymous namespace.
//
// A layer has G gates of H numbers, in tiles of 16 numbers. All gates of a tile lie together, so that what is done with the
// gates of a number is done in registers:
//
//   weight      uint8 [directions, ceil(H/16), ceil(K/4), G, 16, 4], codes with 128 added: a line of 64 bytes holds four k of
//               one gate; K is the number of inputs, or H
//   scales      float [directions, ceil(H/16), G, 16]
//   bias        float [directions, ceil(H/16), sums, 16]; sums: as many as gates, and one more where the bias of the
//               recurrence of GRU's last gate is multiplied by the reset gate (kLinearBeforeReset)
//
// Numbers behind H have scale 0; k behind K hold 128.

#ifndef ONNXQ_RECURRENT_KERNEL_H_
#define ONNXQ_RECURRENT_KERNEL_H_

#include "../cpu/kernel.h"

namespace onnxq {

// Numbers are part of the C ABI that tests use (tests/native/recurrent.py).
enum Cell : int32_t { kLstm = 0, kGru = 1, kLinearBeforeReset = 2, kRnn = 3, kCells = 4 };

// Sums of so many products of codes fit into 32 bits.
constexpr int64_t kMostSummed = 65536;

// Checked before it comes here: all sizes ≥ 1, I and H at most kMostSummed. No array is readable behind its end. Arrays of
// outputs are not initialized. The layout of this struct is part of the C ABI that tests use.
struct Recurrent {
  int64_t T, B, I, H, directions;  // steps, sequences, inputs, numbers of the state
  int32_t cell;                    // enum Cell
  int32_t backward;                // bit d: direction d begins with the last step
  const float* x;                  // [T, B, I]
  const uint8_t *weight, *recurrence;
  const float *weight_scales, *recurrence_scales;
  const float* bias;
  const int32_t* lengths;  // [B], steps of each sequence, from 0 to T; or null: all have T
  const float *h, *c;      // [directions, B, H], before the first step; null: zeros
  float* y;                // [T, directions, B, H] or null
  float *last_h, *last_c;  // [directions, B, H] or null
  float clip;              // what goes into activation functions is at most that large; infinite: as large as it is
  int32_t bits;            // of activations: 15, or 8; each is a whole number of steps of its row's largest over 16256, or 127
};

struct Schedule;
struct Phase;
struct Job;

struct RecurrentKernel {
  const char* isa;
  uint64_t needs;  // of CpuFeature
  int32_t bits;    // of activations, where speed counts: fewer than 15 where products of bytes take long

  // A job of a phase (schedule.h), on any thread and in any order within its phase.
  void (*run)(const Recurrent&, const Schedule&, const Phase&, const Job&, void* workspace);
};

namespace {

constexpr int64_t gates_of(int32_t cell) { return cell == kLstm ? 4 : cell == kRnn ? 1 : 3; }
constexpr int64_t sums_of(int32_t cell) { return cell == kRnn ? 1 : cell == kGru ? 3 : 4; }
constexpr int64_t fours(int64_t K) { return (K + 3) / 4; }
constexpr int64_t weight_bytes(int32_t cell, int64_t H, int64_t K) { return tiles(H) * fours(K) * gates_of(cell) * kLine; }

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_KERNEL_H_
