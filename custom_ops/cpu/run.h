// Work inside a node: onnxruntime's own threads and memory, none of ours.

#ifndef ONNXQ_CPU_RUN_H_
#define ONNXQ_CPU_RUN_H_

#include "../base/tsan.h"
#include "../abi/weight.h"
#include "kernel.h"

namespace onnxq {

// Where a node computes.
class Place {
 public:
  Place(const ort::OrtApi* api, ort::OrtKernelContext* context) : api_(api), context_(context) {}

  // body(i) for i = 0 … tasks - 1 on the runtime's threads; must not throw. No tasks are no call.
  template <typename Body>
  void parallel(int64_t tasks, const Body& body) const {
    if (tasks <= 1) {
      if (tasks == 1) {
        body(int64_t{0});
      }
      return;
    }
    const auto call = [](void* data, size_t i) {
      taken_over(data);
      (*static_cast<const Body*>(data))(static_cast<int64_t>(i));
      handed_over(data);
    };
    void* data = const_cast<void*>(static_cast<const void*>(&body));
    handed_over(data);
    // As many batches as tasks: with 0 there are as many as threads, dealt out beforehand, and all wait for the slowest.
    check(api_, api_->KernelContext_ParallelFor(context_, call, static_cast<size_t>(tasks), static_cast<size_t>(tasks),
                                                data));
    taken_over(data);
  }

  const ort::OrtApi* api() const { return api_; }
  ort::OrtKernelContext* context() const { return context_; }

 private:
  const ort::OrtApi* api_;
  ort::OrtKernelContext* context_;
};

// Memory for the length of a run: little of it on the stack, as asking for some takes as long as a small product. More comes
// from the session's arena, which keeps it for the next run: pages that the operating system hands out afresh would cost
// more than the multiplication.
class Scratch {
 public:
  Scratch(const Place& place, int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // The next `bytes` of it, aligned to 64; all parts together must not exceed what was asked for, each rounded up to 64.
  void* take(int64_t bytes);

 private:
  explicit Scratch(const ort::OrtApi* api) : api_(api) {}

  const ort::OrtApi* api_;
  ort::OrtMemoryInfo* info_ = nullptr;
  ort::OrtAllocator* allocator_ = nullptr;
  void* memory_ = nullptr;
  char* next_ = nullptr;
  static constexpr int64_t kOnStack = 16384;
  alignas(64) char stack_[kOnStack];
};

constexpr int64_t round_up_to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// All of a problem that a node and its weight say, which leaves M, x, bias and y.
Problem problem(const WeightAttributes& node, const WeightTensors& weight);

// Threads that a node may count on. onnxruntime does not tell; this is what it takes where nobody says otherwise.
int threads();

// All phases of a kernel, in the memory it asks for.
void run(const Place& place, const Kernel& kernel, const Problem& p, void* workspace);

// body(first, count) for parts of an array, each of some microseconds of work.
template <typename Body>
void in_chunks(const Place& place, int64_t size, const Body& body) {
  constexpr int64_t kChunk = 16384;
  if (size > 0) {
    place.parallel((size + kChunk - 1) / kChunk, [&](int64_t i) {
      const int64_t left = size - i * kChunk;
      body(i * kChunk, left < kChunk ? left : kChunk);
    });
  }
}

// Arrays of any of the three float types as float32 and back, in parallel.
void to_float(const Place& place, ort::ElementType type, const void* from, float* to, int64_t size);
void from_float(const Place& place, ort::ElementType type, const float* from, void* to, int64_t size);

}  // namespace onnxq

#endif  // ONNXQ_CPU_RUN_H_
