// What every function that encodes needs: its visibility, a clone for each processor, and threads.

#ifndef ONNXQ_THREADS_H_
#define ONNXQ_THREADS_H_

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "clones.h"
#include "export.h"

namespace {

// Cuts 0…tasks into one piece a thread; work(first, last) is called once for each piece.
template <typename Work>
void in_threads(int64_t tasks, int32_t threads, const Work& work) {
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(threads, tasks));
  std::vector<std::thread> pool;
  for (int64_t i = 1; i < workers; ++i) {
    pool.emplace_back(work, tasks * i / workers, tasks * (i + 1) / workers);
  }
  work(0, tasks / workers);
  for (auto& thread : pool) {
    thread.join();
  }
}

}  // namespace

#endif  // ONNXQ_THREADS_H_
