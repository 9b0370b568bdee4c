// Dot products of bfloat16 pairs for `fast` and weights of that type; for all else the next kernel is as fast.

#include "dense.h"

namespace onnxq {
namespace {

int64_t dense_workspace(const Problem& p) { return by_pairs(p) ? Dense::workspace(p) : -1; }

}  // namespace

extern const Kernel kernel_avx512_bf16;
constexpr Kernel kernel_avx512_bf16 = {"avx512_bf16", kAvx512 | kAvx512Bf16, dense_workspace, Dense::tasks, Dense::run};

}  // namespace onnxq
