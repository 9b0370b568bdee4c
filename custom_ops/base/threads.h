// Threads of our own, where no session lends its threads: encoding, and the kernels behind their C ABI.

#ifndef ONNXQ_THREADS_H_
#define ONNXQ_THREADS_H_

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace onnxq {
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
}  // namespace onnxq

#endif  // ONNXQ_THREADS_H_
