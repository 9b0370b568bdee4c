// How steps are cut into tasks, whatever their tensors hold.

#ifndef ONNXQ_REGION_TASKS_H_
#define ONNXQ_REGION_TASKS_H_

#include <algorithm>
#include <cstring>

#include "../cpu/run.h"
#include "kernel.h"
#include "plan.h"

namespace onnxq {

// Bytes, or products of a convolution by 64, that are worth waking a thread.
constexpr int64_t kWorthATask = 32768;
// Tasks for each thread: a second one where another thread is late; more take longer than they save.
constexpr int64_t kPerThread = 2;
// Weights that stay in the second-level cache while pixels pass.
constexpr int64_t kCachedBytes = 3 << 19;

// As many for each thread where there are more of them: one that got one more would keep the others waiting.
inline int64_t parts(int64_t items, int64_t work) {
  const int64_t found = std::max<int64_t>(1, std::min({items, kPerThread * threads(), work / kWorthATask}));
  return found > threads() ? found / threads() * threads() : found;
}

// work(first, last) for pieces of `rows`, which are `bytes` altogether.
template <typename Work>
void in_rows(const Place& place, int64_t rows, int64_t bytes, const Work& work) {
  if (bytes <= 0) {
    return;
  }
  const int64_t tasks = parts(rows, bytes);
  place.parallel(tasks, [&](int64_t task) { work(rows * task / tasks, rows * (task + 1) / tasks); });
}

// Pixels are cut where weights are small; blocks of outputs where they are more bytes than `cached`, or where there are
// few pixels.
template <typename Problem>
void in_tasks(const Place& place, const Problem& c,
              void (*conv)(const Problem&, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end),
              int64_t cached = kCachedBytes) {
  const int64_t blocks = c.groups * c.blocks, weight = blocks * c.chunks * kBlockBytes;
  const int64_t work = c.y.N * c.tiles * c.tile * (weight / kChunk), wanted = parts(INT32_MAX, work);
  const int64_t by_cache = std::min(blocks, weight > cached ? weight / (cached / 4) + 1 : 1);
  const int64_t images = c.y.N, pixels = std::max<int64_t>(1, std::min(c.units, wanted / std::max<int64_t>(1, images * by_cache)));
  const int64_t panels = std::max(by_cache, std::min(blocks, wanted / (images * pixels)));
  place.parallel(images * pixels * panels, [&](int64_t task) {
    const int64_t pixel = task % pixels, panel = task / pixels % panels, n = task / pixels / panels;
    conv(c, n, c.units * pixel / pixels, c.units * (pixel + 1) / pixels, blocks * panel / panels,
         blocks * (panel + 1) / panels);
  });
}

// Fills the pixels around images.
inline void fill_margin(const Placed& t, uint8_t* workspace, int value) {
  if (!t.has_margin() || t.is_empty()) {
    return;
  }
  uint8_t* at = workspace + t.offset;
  const size_t side = static_cast<size_t>(t.side * t.pixel()), inner = static_cast<size_t>(t.W * t.pixel());
  const size_t top = static_cast<size_t>(t.top * t.pitch()), bottom = static_cast<size_t>(t.bottom * t.pitch());
  for (int64_t n = 0; n < t.N; ++n) {
    std::memset(at, value, top);
    at += top;
    for (int64_t row = 0; row < t.H; ++row, at += side + inner) {
      std::memset(at, value, side);
    }
    std::memset(at, value, bottom);
    at += bottom;
  }
  std::memset(at, value, side);
}

}  // namespace onnxq

#endif  // ONNXQ_REGION_TASKS_H_
