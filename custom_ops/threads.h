// What every exported function needs: its visibility, a clone for each processor, and threads.

#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(_WIN32)
#define ONNXQ_EXPORT extern "C" __declspec(dllexport)
#else
#define ONNXQ_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ONNXQ_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define ONNXQ_CLONES
#endif

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
