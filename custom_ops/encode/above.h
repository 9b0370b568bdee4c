// Which of a table's levels is nearest, by the middles between them.

#pragma once

#include <cstdint>

#include "../base/clones.h"

namespace onnxq {
namespace encoding {
namespace {

// How many of the first J middles lie below y; no loop, as the compiler vectorizes only what is around it.
template <int J>
ONNXQ_INLINE int32_t above(float y, const float* middles) {
  if constexpr (J == 0) {
    return 0;
  } else {
    return above<J - 1>(y, middles) + (y > middles[J - 1] ? 1 : 0);
  }
}

}  // namespace
}  // namespace encoding
}  // namespace onnxq
