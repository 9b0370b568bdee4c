// What only the emulation offers: how threads are scheduled, a cuBLAS that follows its manual, and the small functions
// under the kernels, one at a time. Part of emulated.cc.
#pragma once

#include "choose.h"
#include "matmul.h"

namespace onnxq {
namespace {

float element(const void* from, int type, int64_t i) {
  return type == kReal32F   ? static_cast<const float*>(from)[i]
         : type == kReal16F ? from_f16(static_cast<const uint16_t*>(from)[i])
                            : from_bf16(static_cast<const uint16_t*>(from)[i]);
}

// cublasGemmEx for the arguments it is called with here: column-major, C = beta · C + op(A) · B.
int gemm(void*, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha, const void* a, int a_type,
         int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute,
         int) {
  if (transpose_a != kOpT || transpose_b != kOpN || a_type != b_type || lda < k || ldb < k || ldc < m) {
    return 7;  // invalid value
  }
  if (compute == kCompute32FPedantic && a_type == kReal16BF && c_type == kReal32F) {
    return 15;  // exact products do not come rounded
  }
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      double sum = 0;
      for (int l = 0; l < k; ++l) {
        sum += static_cast<double>(element(a, a_type, int64_t{i} * lda + l)) * element(b, b_type, int64_t{j} * ldb + l);
      }
      const int64_t at = int64_t{j} * ldc + i;
      const float factor = *static_cast<const float*>(beta);
      sum = sum * *static_cast<const float*>(alpha) +
            (factor == 0 ? 0.0 : factor * static_cast<double>(element(c, c_type, at)));
      if (c_type == kReal32F) {
        static_cast<float*>(c)[at] = static_cast<float>(sum);
      } else {
        static_cast<uint16_t*>(c)[at] = static_cast<uint16_t>(c_type == kReal16F ? to_f16(sum) : to_bf16(sum));
      }
    }
  }
  return 0;
}
int create(void** handle) {
  *handle = handle;
  return 0;
}
int destroy(void*) { return 0; }
int set_stream(void*, void*) { return 0; }
int get_stream(void*, void** stream) {
  *stream = nullptr;
  return 0;
}
const char* status_string(int) { return "invalid value"; }
Library open() { return {gemm, create, destroy, set_stream, get_stream, status_string}; }

template <class Decoder>
void decode_words(const uint32_t* words, int zero, const float* levels, uint32_t* pairs) {
  std::vector<uint32_t> table;
  if constexpr (Decoder::kTable) {
    table.resize(Decoder::kTableEntries);
    for (size_t i = 0; i < table.size(); ++i) {  // as fill() of one thread
      table[i] = 0;
    }
    Decoder::fill(table.data(), levels, 1);
  }
  uint32_t pair[4];
  Decoder::decode(words, Decoder::zero(static_cast<uint32_t>(zero)), table.data(), pair);
  std::copy(pair, pair + 4, pairs);
  static_cast<void>(levels);
}

}  // namespace
}  // namespace onnxq

// Bits of emulation::Mode; sizes of the device, or 0 for those of an ordinary one.
ONNXQ_EXPORT void onnxq_emulate(int32_t mode, int32_t multiprocessors, int32_t shared_bytes) {
  onnxq::emulation::mode = mode;
  onnxq::emulation::multiprocessors = multiprocessors;
  onnxq::emulation::device_bytes = shared_bytes;
}

// The 16-bit bits of a lane's 8 values, by k, that `format` makes of one or two words of codes; type of the tensor
// cores.
ONNXQ_EXPORT void onnxq_emulated_decode(int32_t format, int32_t type, const uint32_t* words, int32_t zero,
                                        uint16_t* by_k) {
  using namespace onnxq;
  std::vector<emulation::Lane> lanes(1);
  emulation::Block one{};
  one.lanes = std::move(lanes);
  emulation::block = &one;
  uint32_t pairs[4];
  PairOrder order = kPlain;
  if (format == kInt4) {
    order = kEven;
    type == kFloat16 ? decode_words<Int4<F16>>(words, zero, nullptr, pairs)
                     : decode_words<Int4<Bf16>>(words, zero, nullptr, pairs);
  } else if (format == kInt8) {
    type == kFloat16 ? decode_words<Int8<F16>>(words, zero, nullptr, pairs)
                     : decode_words<Int8<Bf16>>(words, zero, nullptr, pairs);
  } else {
    order = kSplit;
    type == kFloat16 ? decode_words<Table<F16>>(words, zero, kLevels[format], pairs)
                     : decode_words<Table<Bf16>>(words, zero, kLevels[format], pairs);
  }
  emulation::block = nullptr;
  for (int p = 0; p < 4; ++p) {
    for (int e = 0; e < 2; ++e) {
      by_k[pair_k(order, p, e)] = static_cast<uint16_t>(pairs[p] >> (16 * e));
    }
  }
}

// For every lane, vector and byte of one step: tile (0 or 1), row of it and first k (of the byte's codes) that it
// reads.
ONNXQ_EXPORT void onnxq_emulated_reads(int32_t format, int64_t step, int64_t* out) {
  using namespace onnxq;
  for (int lane = 0; lane < 32; ++lane) {
    for (int v = 0; v < (is_wide(format) ? 2 : 1); ++v) {
      for (int byte = 0; byte < 16; ++byte, out += 3) {
        const WarpRead read = warp_read(lane, step, v, format);
        out[0] = read.tile;
        out[1] = read.c * 4 + byte / 4;
        out[2] = read.line * (is_wide(format) ? 4 : 8) + byte % 4;
      }
    }
  }
}

// For each lane: k within its 8 of pair p, element e.
ONNXQ_EXPORT int32_t onnxq_emulated_pair_k(int32_t order, int32_t p, int32_t e) {
  return onnxq::pair_k(static_cast<onnxq::PairOrder>(order), p, e);
}
// Row and column of element e of operand 0 (A), 1 (B) or 2 (C) of lane `lane`.
ONNXQ_EXPORT void onnxq_emulated_mma(int32_t operand, int32_t lane, int32_t e, int32_t* out) {
  const onnxq::At at = operand == 0   ? onnxq::mma_a(lane, e)
                       : operand == 1 ? onnxq::mma_b(lane, e)
                                      : onnxq::mma_c(lane, e);
  out[0] = at.row;
  out[1] = at.column;
}
ONNXQ_EXPORT int32_t onnxq_emulated_divide(int32_t n, int32_t d) { return onnxq::divide(n, onnxq::make_divisor(d)); }
// warps_n, splits, columns, stages, row_bytes, shared_bytes, path.
ONNXQ_EXPORT void onnxq_emulated_cut(const onnxq::Matmul* p, int32_t multiprocessors, int32_t shared_bytes,
                                     int32_t* out) {
  using namespace onnxq;
  const TensorShape s = cut(*p, p->block % kStep == 0 ? 1 : 2, {multiprocessors, shared_bytes});
  const int made[] = {s.warps_n, s.splits, s.columns, s.stages, s.row_bytes, s.shared_bytes, choose(*p, true, true)};
  std::copy(made, made + 7, out);
}
