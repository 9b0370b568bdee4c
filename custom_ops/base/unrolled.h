// Loops without a counter: arrays of registers that are only indexed by constants stay in registers.

#ifndef ONNXQ_BASE_UNROLLED_H_
#define ONNXQ_BASE_UNROLLED_H_

#include <utility>

// Behind the parameters of a lambda for `unrolled`.
#define ONNXQ_INLINE __attribute__((always_inline))

namespace onnxq {
namespace {

template <typename Work, int... i>
ONNXQ_INLINE inline void unrolled_by(const Work& work, std::integer_sequence<int, i...>) {
  (work(std::integral_constant<int, i>()), ...);
}

// work(0) … work(count - 1), of numbers that are constants.
template <int count, typename Work>
ONNXQ_INLINE inline void unrolled(const Work& work) {
  unrolled_by(work, std::make_integer_sequence<int, count>());
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_BASE_UNROLLED_H_
