// Which kernel takes a product, and how it is cut. Plain functions of sizes: tested without a GPU.
#pragma once

#include "platform.h"
#include "tensor.h"

namespace onnxq {

// The direct kernel (direct.h) takes blocks that end with steps, and x that is read 16 bytes at a time; of its rows so many
// at once, and in two rounds what the table says: float32 needs more registers.
inline int direct_columns(int type) { return type == kFloat32 ? 16 : 32; }
inline bool fits_direct(const Matmul& p, bool x_aligned) {
  return p.block % kStep == 0 && p.K % kStep == 0 && x_aligned;
}

// The one table of thresholds: up to `direct` rows of x the direct kernel, where it fits. Elsewhere up to `gemv` rows the
// vector kernel. Then up to `tensor` rows the other tensor-core kernel, and above it dequantization and a library's
// matrix product, or the tensor-core kernel where there is no library. Measured on an H100 with float16
// (docs/cuda.md): `custom_ops/bench/bench_cuda.py --thresholds` times every kernel at every M on the GPU at hand and
// prints this table.
struct Thresholds {
  int direct, gemv, tensor;
};
constexpr Thresholds kThresholds[kFormats] = {
    {64, 1, 64},  // int4
    {64, 2, 64},  // int8
    {64, 2, 64},  // nf4
    {64, 2, 64},  // fp4
    {64, 2, 64},  // mxfp4
};
constexpr int kExactGemvRows = 16;  // above it, float32 products by the library

// True where the tensor-core kernels lose nothing of `exact`: 16-bit activations, and values that 16 bits hold.
inline bool is_exact_in_halves(const Matmul& p) {
  return p.type != kFloat32 && (is_affine(p.format) || p.format == kMxfp4);
}

inline Path choose(const Matmul& p, bool has_library, bool x_aligned) {
  if (p.path != kAuto) {
    return p.path == kDirect && !fits_direct(p, x_aligned) ? kTensor : static_cast<Path>(p.path);
  }
  if (p.exact && !is_exact_in_halves(p)) {
    return has_library && p.M > kExactGemvRows ? kDequantize : kGemv;
  }
  const Thresholds& limit = kThresholds[p.format];
  if (p.M <= limit.direct && p.M <= 2 * direct_columns(p.type) && fits_direct(p, x_aligned)) {
    return kDirect;
  }
  return p.M <= limit.gemv ? kGemv : p.M > limit.tensor && has_library ? kDequantize : kTensor;
}

// Columns of the widest tensor-core kernel: float32 activations take twice the shared memory.
inline int widest(int type) { return type == kFloat32 ? 4 : 8; }

// Shared memory of one block of a shape whose warps_n and columns are set.
inline void lay_out(TensorShape* shape, const Matmul& p, int halves) {
  const bool wide = is_wide(p.format), table = !is_affine(p.format);
  const int size = p.type == kFloat32 ? 4 : 2, scale = static_cast<int>(scale_bytes(p.scale_type)),
            nt = shape->columns / 8;
  const int rows = nt == 1 && p.M < 8 ? static_cast<int>(p.M) : shape->columns;
  const int warps_k = shape->warps_k = kWarps / shape->warps_n, steps = steps_of(wide, table, nt),
            depth = depth_of(wide, table, nt);
  const auto align = [](int bytes) { return (bytes + 127) / 128 * 128; };
  shape->stage_k = warps_k * steps * kStep;
  // Rows start so many bytes apart that the 16-byte reads of 8 lanes, two rows × four, hit all 32 banks once: halves at
  // 0, 16, 32, 48 of both rows, float32 at 0, 32, 64, 96.
  shape->row_bytes = shape->stage_k * size + (size == 2 ? 64 : 16);
  shape->x_at = steps * kThreads * 16 * (wide ? 2 : 1);
  shape->scales_at = align(shape->x_at + rows * shape->row_bytes);
  shape->zeros_at = align(shape->scales_at + kWarps * steps * halves * kWarpRows * scale);
  shape->stage_bytes = align(shape->zeros_at + (p.zero_points ? kWarps * steps * halves * kWarpRows : 0));
  shape->stages_at = table ? 256 * 32 * 4 : 0;
  const int sums = (warps_k - 1) * shape->warps_n * shape->columns * kWarpRows * 4, stages = shape->stage_bytes * depth;
  shape->shared_bytes = shape->stages_at + (stages > sums ? stages : sums);
}

// Every block reads all of x, so the more columns, the more rows a block shares them among; and as many splits of K as
// fill the GPU twice, if each keeps its pipeline busy. Where the stages do not fit into shared memory, they get
// shorter, and then narrower.
inline TensorShape cut(const Matmul& p, int halves, const Device& device) {
  TensorShape shape{};
  const int64_t steps = ceil_div(ceil_div(p.K, p.block) * p.block, kStep);
  int nt = 1;
  while (nt < widest(p.type) && nt * 8 < p.M) {
    nt *= 2;
  }
  for (;; nt /= 2) {
    shape.columns = nt * 8;
    shape.warps_n = p.M <= 2 ? 1 : p.M <= 4 ? 2 : nt <= 2 ? 4 : 8;
    lay_out(&shape, p, halves);
    while (shape.shared_bytes > device.shared_bytes && shape.warps_n < kWarps) {
      shape.warps_n *= 2;
      lay_out(&shape, p, halves);
    }
    if (shape.shared_bytes <= device.shared_bytes || nt == 1) {
      break;
    }
  }
  shape.steps = static_cast<int>(steps);
  shape.stages = static_cast<int>(ceil_div(ceil_div(p.K, p.block) * p.block, shape.stage_k));
  const int64_t blocks = ceil_div(p.N, kWarpRows * shape.warps_n) * ceil_div(p.M, shape.columns);
  const int64_t wanted = 2 * device.multiprocessors / blocks;
  const int64_t most = shape.stages / depth_of(is_wide(p.format), !is_affine(p.format), nt);
  const int64_t splits = wanted < most ? wanted : most;
  shape.splits = static_cast<int>(splits < 1 ? 1 : splits > 16 ? 16 : splits);
  return shape;
}

// One block for 32 rows of the weight; of 16 warps where there are too few for two a multiprocessor, and several along K
// where even these leave multiprocessors idle for long: what adds up their sums takes as long as two turns of a warp.
inline TensorShape cut_direct(const Matmul& p, const Device& device) {
  TensorShape shape{};
  const int64_t steps = ceil_div(p.K, kStep), blocks = ceil_div(p.N, kWarpRows);
  int nt = 1;
  while (nt * 8 < direct_columns(p.type) && nt * 8 < p.M) {
    nt *= 2;
  }
  const int ahead = direct_ahead(is_wide(p.format), nt);
  shape.columns = nt * 8;
  shape.warps_n = 1;
  shape.warps_k = blocks < 2 * device.multiprocessors && steps >= 16 * ahead ? 16 : 8;
  shape.steps = static_cast<int>(steps);
  const int64_t most = steps / (shape.warps_k * ahead * 2), idle = device.multiprocessors / blocks;
  const int64_t splits = most < idle ? most : idle;
  shape.splits = static_cast<int>(splits < 2 ? 1 : splits > 16 ? 16 : splits);
  shape.stages_at = is_affine(p.format) ? 0 : 256 * 32 * 4;
  shape.shared_bytes = shape.stages_at + (shape.warps_k - 1) * shape.columns * kWarpRows * 4;
  return shape;
}

// Bytes of partial sums and of the counters behind them; none without splits.
struct Scratch {
  size_t partial, counters;
};
inline Scratch scratch_of(const TensorShape& shape, const Matmul& p) {
  if (shape.splits == 1) {
    return {0, 0};
  }
  const size_t x = static_cast<size_t>(ceil_div(p.N, kWarpRows * shape.warps_n));
  const size_t z = static_cast<size_t>(ceil_div(p.M, shape.columns));
  return {x * z * static_cast<size_t>(shape.splits * shape.columns * shape.warps_n * kWarpRows) * 4, x * z * 4};
}

}  // namespace onnxq
