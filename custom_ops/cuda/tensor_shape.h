// How a launch of the tensor-core kernel is cut, and what it is given.
#pragma once

#include "layout.h"

namespace onnxq {

constexpr int kWarps = 8, kThreads = kWarps * 32;

// Steps of a stage, and stages: as much between two barriers, and as many bytes on their way, as fit into the shared
// memory of the smallest GPU (99 KB), a table included.
ONNXQ_HD constexpr int steps_of(bool wide, bool table, int nt) { return wide || table || nt == 8 ? 2 : 4; }
ONNXQ_HD constexpr int depth_of(bool wide, bool table, int nt) { return !wide && table != (nt == 8) ? 4 : 3; }

// Steps of a warp of the direct kernel whose loads leave together, in as many registers as columns of x leave.
ONNXQ_HD constexpr int direct_ahead(bool wide, int nt) { return wide ? 2 : nt == 1 ? 4 : 2; }

// How a launch is cut; made by cut() in choose.h.
struct TensorShape {
  int warps_n, warps_k, splits;                                         // warps_n · warps_k = 8, or 16 of the direct one
  int columns;                                                          // rows of x a block takes: 8 · NT
  int steps, stages;                                                    // of 32 k; of a stage's k, all splits together
  int stage_k, row_bytes;                                               // of x in a stage
  int x_at, scales_at, zeros_at, stage_bytes, stages_at, shared_bytes;  // bytes of shared memory
};

struct TensorArguments {
  Matmul p;
  TensorShape shape;
  Extent extent;
  Divisor block;
  int halves;  // scales a step needs for each row: 1, or 2 where blocks do not end at multiples of 32
  int span;    // k that a scale of a stage is good for: 32 / halves
  int group;   // steps of a stage that share a scale: 1, 2, or all of them
  int x_aligned, y_aligned;
  float* partial;     // [grid z, grid x, splits, warps_n, NT · 8, 32]
  uint32_t* counter;  // [grid z, grid x], zero
  float levels[16];
};

}  // namespace onnxq
