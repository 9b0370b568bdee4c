// What the GPU entry points are given: plain data, sizes and device addresses, nothing of onnxruntime. The layout of
// these structs is part of the C ABI (tests/cuda/abi.py).
#pragma once

#include <string>

#include "../base/format.h"

namespace onnxq {

using Stream = void*;       // a cudaStream_t
using Error = std::string;  // a sentence; none if empty

// Element types by their numbers in ONNX.
enum ElementType : int32_t { kFloat32 = 1, kFloat16 = 10, kBfloat16 = 16 };

// Which kernel; kAuto takes the one that the table in choose.h names.
enum Path : int32_t { kAuto = 0, kGemv = 1, kTensor = 2, kDequantize = 3, kDirect = 4 };

// y[M, N] = x[M, K] · w[N, K]ᵀ + bias. Addresses are the device's; x, bias and y are dense and share `type`.
struct Matmul {
  int64_t M, N, K;
  int32_t block, format, type, scale_type, exact, path;
  const void* x;
  const uint8_t* weight;       // tiles, see ../format.h
  const void* scales;          // [ceil(N / 16), blocks, 16]
  const uint8_t* zero_points;  // as scales, or null
  const void* bias;            // [N], or null
  void* y;
};

// y[i, K] = row indices[i] of w[N, K]; a negative index counts from the end, one that is out of range gives zeros, as
// onnxruntime's Gather does on the GPU, where nothing can be raised without waiting for it.
struct Gather {
  int64_t count, N, K;
  int32_t block, format, type, scale_type, index_bytes, unused;
  const void* indices;  // int32 or int64
  const uint8_t* weight;
  const void* scales;
  const uint8_t* zero_points;
  void* y;
};

}  // namespace onnxq
