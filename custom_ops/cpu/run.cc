#include "run.h"

#include <algorithm>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "../base/convert.h"

namespace onnxq {

using namespace ort;

Scratch::Scratch(const Place& place, int64_t bytes) : Scratch(place.api()) {
  if (bytes <= kOnStack) {
    next_ = stack_;
    return;
  }
  check(api_, api_->CreateCpuMemoryInfo(kArena, kDefaultMemory, &info_));
  check(api_, api_->KernelContext_GetAllocator(place.context(), info_, &allocator_));
  check(api_, api_->AllocatorAlloc(allocator_, static_cast<size_t>(bytes) + 63, &memory_));
  if (!memory_) {
    throw Refusal("onnxruntime has no memory left for " + std::to_string(bytes) + " bytes of a node's workspace");
  }
  next_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory_) + 63) / 64 * 64);
}

Scratch::~Scratch() {
  if (memory_) {
    if (OrtStatus* const status = api_->AllocatorFree(allocator_, memory_)) {
      api_->ReleaseStatus(status);
    }
  }
  if (allocator_) {
    api_->ReleaseAllocator(allocator_);
  }
  if (info_) {
    api_->ReleaseMemoryInfo(info_);
  }
}

void* Scratch::take(int64_t bytes) {
  char* const part = next_;
  next_ += round_up_to_line(bytes);
  return part;
}

Problem problem(const WeightAttributes& node, const WeightTensors& weight) {
  Problem p{};
  p.N = node.N;
  p.K = node.K;
  p.block = node.block;
  p.weight = weight.weight;
  p.scales = weight.scales;
  p.zero_points = weight.zero_points;
  p.format = node.format;
  p.scale_type = weight.scale_type;
  p.exact = node.exact;
  p.threads = threads();
  return p;
}

int threads() {
  static const int count = [] {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
      return std::max(1, CPU_COUNT(&set));
    }
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }();
  return count;
}

void run(const Place& place, const Kernel& kernel, const Problem& p, void* workspace) {
  for (int phase = 0; const int64_t tasks = kernel.tasks(p, phase); ++phase) {
    place.parallel(tasks, [&](int64_t task) { kernel.run(p, phase, task, tasks, workspace); });
  }
}

void to_float(const Place& place, ElementType type, const void* from, float* to, int64_t size) {
  const auto bits = static_cast<const uint16_t*>(from);
  const auto convert = type == kFloat16 ? from_half : from_bfloat16;
  in_chunks(place, size, [&](int64_t first, int64_t count) { convert(bits + first, to + first, count); });
}

void from_float(const Place& place, ElementType type, const float* from, void* to, int64_t size) {
  const auto bits = static_cast<uint16_t*>(to);
  const auto convert = type == kFloat16 ? to_half : to_bfloat16;
  in_chunks(place, size, [&](int64_t first, int64_t count) { convert(from + first, bits + first, count); });
}

}  // namespace onnxq
