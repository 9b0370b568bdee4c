// Moves elements of one tensor to another one, in tasks.

#ifndef ONNXQ_REGION_RUN_MOVES_H_
#define ONNXQ_REGION_RUN_MOVES_H_

#include <type_traits>

#include "tasks.h"

namespace onnxq {

template <typename Element>
void pick(const Element* x, const int32_t* picks, Element* y, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    y[i] = x[picks[i]];
  }
}

// T: Image or Numbers, whose pixels lie side by side. `fill`: a byte, of which what is kFill consists.
template <class T>
void run_moves(const Place& place, const Moves& moves, const T& from, const T& to, int fill) {
  constexpr int64_t kWidth = sizeof(std::remove_pointer_t<decltype(T::data)>);
  const int64_t bytes = to.N * to.H * to.W * to.C * kWidth;
  if (bytes == 0) {
    return;
  }
  if (moves.picks.empty()) {
    in_rows(place, static_cast<int64_t>(moves.runs.size()), bytes, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const Run& run = moves.runs[static_cast<size_t>(i)];
        const size_t size = static_cast<size_t>(run.size * kWidth);
        run.from == kFill ? std::memset(to.data + run.to, fill, size)
                          : std::memcpy(to.data + run.to, from.data + run.from, size);
      }
    });
    return;
  }
  in_rows(place, to.N * to.H, 4 * bytes, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const auto* x = from.data;
      auto* y = to.data + row / to.H * to.image + row % to.H * to.row;
      const int32_t* picks = moves.picks.data();
      if (moves.of_pixel) {
        x += row / to.H * from.image + row % to.H * from.row;
        for (int64_t pixel = 0; pixel < to.W; ++pixel, x += to.C, y += to.C) {
          pick(x, picks, y, to.C);
        }
      } else {
        pick(x, picks + row * to.W * to.C, y, to.W * to.C);
      }
    }
  });
}

}  // namespace onnxq

#endif  // ONNXQ_REGION_RUN_MOVES_H_
