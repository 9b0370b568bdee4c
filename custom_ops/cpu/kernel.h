// What a kernel is. Kernels never see onnxruntime, and what calls them never sees an intrinsic.
//
// An ISA is one file in kernels/, compiled with its own flags: it includes this header, C headers and intrinsics, nothing
// of the C++ library, keeps everything in an anonymous namespace, and ends with
//
//     namespace onnxq { extern const Kernel kernel_NAME; constexpr Kernel kernel_NAME = {"NAME", kNeeds, …}; }
//
// which, with one line in CMakeLists.txt, is all it takes.

#ifndef ONNXQ_CPU_KERNEL_H_
#define ONNXQ_CPU_KERNEL_H_

#include "../base/format.h"

namespace onnxq {

// y = x · wᵀ + bias. Checked before it comes here: sizes fit together and into memory, K ≥ 1, N ≥ 1, M ≥ 1. No array is
// readable behind its end, and none is aligned to more than its elements; weight from a file usually is, to 64 bytes.
// The layout of this struct is part of the C ABI that tests and measurements use (tests/native/kernels.py).
struct Problem {
  int64_t M, N, K, block;
  const float* x;             // [M, K]
  const uint8_t* weight;      // tiles, see format.h
  const void* scales;         // [tiles(N), blocks(K, block), 16] of scale_type
  const uint8_t* zero_points; // as scales, or null: the middle code. Only for affine formats
  const float* bias;          // [N] or null
  float* y;                   // [M, N], not initialized
  int32_t format;             // enum Format
  int32_t scale_type;         // enum ScaleType
  int32_t exact;              // activations stay float32
  int32_t tile_rows;          // from how many rows on tiles are multiplied, by kernels that have some; 0: as they think
  int32_t threads;            // that run at once
};

// Bits of Kernel::needs: what the processor has, the operating system saves and, for AMX, has granted.
enum CpuFeature : uint64_t {
  kAvx2 = 1 << 0,         // AVX2, FMA and F16C
  kAvxVnni = 1 << 1,      // VEX-encoded VNNI
  kAvx512 = 1 << 2,       // F, BW, DQ, VL
  kAvx512Vnni = 1 << 3,
  kAvx512Bf16 = 1 << 4,
  kAvx512Vbmi = 1 << 5,
  kAmxInt8 = 1 << 6,      // with AMX-TILE
  kAmxBf16 = 1 << 7,      // with AMX-TILE
  kNeonDot = 1 << 8,      // Advanced SIMD and its dot product
  kNeonI8mm = 1 << 9,     // products of matrices of bytes
};

struct RowRange {
  int64_t first, count;
};

struct Kernel {
  const char* isa;
  uint64_t needs;  // of CpuFeature, all of them

  // Bytes of memory, aligned to 64 and not initialized, that all phases share; negative: nothing is offered for this
  // problem, and the next kernel in line takes it.
  int64_t (*workspace)(const Problem&);
  // How many tasks a phase is cut into; a few times as many as threads balance the load. 0: there is no such phase. Phases 0,
  // 1, … run one after another.
  int64_t (*tasks)(const Problem&, int phase);
  // One task, on any thread and in any order within its phase. Threads belong to others: leave no state behind.
  void (*run)(const Problem&, int phase, int64_t task, int64_t tasks, void* workspace);
  // Of problems in one phase whose tasks make all columns of some rows: these rows; none of others, and where it is null.
  RowRange (*rows)(const Problem&, int64_t task, int64_t tasks) = nullptr;
};

}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNEL_H_
