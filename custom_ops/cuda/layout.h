// Where the kernels find each code, and which lane of a warp works on it. Runs on the host and on the device.
//
// Weights are read as they lie on disk. A tile has 16 rows; its bytes are lines of 64, one for each 8 (4-bit codes) or
// 4 (8-bit codes) consecutive k, and a line is 16 rows × 4 bytes. So 16 bytes at a multiple of 16 are 4 rows × one
// line, and a warp that reads 32 × 16 bytes uses every byte of every 32-byte sector it touches:
//
//   tensor-core kernel (4-bit)                       GEMV (4-bit)
//   lane = 4r + t: rows 4r … 4r+3 of 32,             lane = 4l + c: rows 4c … 4c+3 of 16,
//   k = 8t … 8t+7 of 32                              k = 8l … 8l+7 of 64
//   two tiles × 256 contiguous bytes                 512 contiguous bytes of one tile
//
// A matrix product sums over k in any order and may name its rows in any order, so mma.m16n8k16 takes these registers
// as its operand A without a shuffle, provided that operand B (the activations) is permuted alike: a lane needs the
// same 8 k of its activation row. That is why nothing is repacked: fragment order would save no transaction, and would
// cost a second copy of every weight and the time to make it.
#pragma once

#include "problem.h"

#if defined(__CUDACC__)
#define ONNXQ_HD __host__ __device__ __forceinline__
#else
#define ONNXQ_HD inline
#endif

namespace onnxq {

constexpr int kTileRows = static_cast<int>(kTile);
constexpr int kStep = 32;      // k of one step of a warp of the tensor-core kernel
constexpr int kWarpRows = 32;  // rows of a warp of the tensor-core kernel
constexpr int kGemvStep = 64;  // k of one step of a warp of the GEMV

ONNXQ_HD constexpr bool is_wide(int format) { return format == kInt8; }  // 8-bit codes
ONNXQ_HD constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// n / d for 2 ≤ d ≤ 256 and n < 2^24 by one multiplication: magic = ceil(2^32 / d) exceeds 2^32 / d by less than 1, so
// the quotient is exact as long as n < 2^32 / d.
struct Divisor {
  uint32_t magic;
};
ONNXQ_HD Divisor make_divisor(int d) { return {static_cast<uint32_t>((0x100000000ull + d - 1) / d)}; }
ONNXQ_HD int divide(int n, Divisor d) {
  return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * d.magic) >> 32);
}

// The shape of a weight: tiles, lines of 64 bytes a tile, blocks of scales a tile.
struct Extent {
  int64_t tiles, lines, blocks;
};
ONNXQ_HD Extent extent(int64_t N, int64_t K, int block, int format) {
  const int64_t blocks = ceil_div(K, block);
  return {ceil_div(N, kTileRows), blocks * block / (is_wide(format) ? 4 : 8), blocks};
}

// What lane 4r + t of a warp of the tensor-core kernel reads at a step, as vector v (of one for 4 bits, two for 8).
struct WarpRead {
  int tile;      // 0 or 1: of the warp's two tiles
  int c;         // quad of rows: rows 4c … 4c+3 of that tile
  int64_t line;  // of the tile
};
ONNXQ_HD WarpRead warp_read(int lane, int64_t step, int v, int format) {
  const int r = lane >> 2, t = lane & 3;
  return {r >> 2, r & 3, is_wide(format) ? step * 8 + 2 * t + v : step * 4 + t};
}

// Row within the warp's 32 of the register pair i (0 … 3) of a lane: mma j = i / 2 has it as its row r + 8 (i % 2).
ONNXQ_HD int warp_row(int lane, int i) { return (lane >> 2) * 4 + i; }

// Which two k of a lane's 8 a pair p holds. Pairs 0 and 1 are the first mma of a step (its k slots 2t, 2t+1 and 2t+8,
// 2t+9), pairs 2 and 3 the second one.
enum PairOrder { kEven, kSplit, kPlain };
ONNXQ_HD int pair_k(PairOrder order, int p, int e) {
  switch (order) {
    case kEven:  // (0, 2) (4, 6) (1, 3) (5, 7): nibbles four apart lie in one half each after a mask
      return (p & 1) * 4 + (p >> 1) + 2 * e;
    case kSplit:  // (0, 4) (1, 5) (2, 6) (3, 7): the two nibbles of a byte, for a table of 256 pairs
      return p + 4 * e;
    default:  // (0, 1) (2, 3) (4, 5) (6, 7)
      return 2 * p + e;
  }
}

// mma.m16n8k16 as the PTX manual numbers its fragments: the row and k slot of element e (0 … 7) of operand A, the k
// slot and column of element e (0 … 3) of operand B, the row and column of element e (0 … 3) of C.
struct At {
  int row, column;
};
ONNXQ_HD At mma_a(int lane, int e) { return {(lane >> 2) + (e >> 1 & 1) * 8, (lane & 3) * 2 + (e & 1) + (e >> 2) * 8}; }
ONNXQ_HD At mma_b(int lane, int e) { return {(lane & 3) * 2 + (e & 1) + (e >> 1) * 8, lane >> 2}; }
ONNXQ_HD At mma_c(int lane, int e) { return {(lane >> 2) + (e >> 1) * 8, (lane & 3) * 2 + (e & 1)}; }

}  // namespace onnxq
