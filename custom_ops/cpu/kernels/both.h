// A kernel made of integer.h for `fast` and float32.h for `exact`.

#ifndef ONNXQ_CPU_KERNELS_BOTH_H_
#define ONNXQ_CPU_KERNELS_BOTH_H_

#include "float32.h"
#include "integer.h"

namespace onnxq {
namespace {

// bfloat16 has products of its own, or these; float16 these. Without VNNI, dot products of bytes that are not nibbles take as
// long as those of floats, once a panel is worth it.
template <class V>
constexpr bool in_floats(const Problem& p) {
  return p.exact || is_dense(p.format) || (V::kSignedBytes && p.format != kInt4 && p.M >= 32);
}

template <class V>
int64_t workspace(const Problem& p) {
  return in_floats<V>(p) ? Float32<V>::workspace(p) : Integer<V>::workspace(p);
}

template <class V>
int64_t tasks(const Problem& p, int phase) {
  return in_floats<V>(p) ? Float32<V>::tasks(p, phase) : Integer<V>::tasks(p, phase);
}

template <class V>
void run(const Problem& p, int phase, int64_t task, int64_t tasks, void* workspace) {
  in_floats<V>(p) ? Float32<V>::run(p, phase, task, tasks, workspace) : Integer<V>::run(p, phase, task, tasks, workspace);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_BOTH_H_
