#include "choose.h"

#include <atomic>
#include <cstring>
#include <new>

#include "../base/export.h"
#include "../base/threads.h"
#include "../cpu/isa.h"

namespace onnxq {

#define ONNXQ_ATTENTION(name) extern const AttentionKernel attention_##name;
#include "attentions.inc"  // written by CMake, best first
#undef ONNXQ_ATTENTION

namespace {

constexpr const AttentionKernel* kAttentions[] = {
#define ONNXQ_ATTENTION(name) &attention_##name,
#include "attentions.inc"
#undef ONNXQ_ATTENTION
};

}  // namespace

const AttentionKernel* attention_kernel_for(const char* isa, const Attention& p) {
  if (isa && *isa && !why_not(isa).empty()) {
    return nullptr;
  }
  bool allowed = !isa || !*isa;
  for (const Kernel* const* each = kKernels; *each; ++each) {
    allowed = allowed || std::strcmp((*each)->isa, isa) == 0;
    for (const AttentionKernel* kernel : kAttentions) {
      const bool runs = (kernel->needs & ~cpu_features()) == 0 && std::strcmp(kernel->isa, (*each)->isa) == 0;
      if (allowed && runs && kernel->workspace(p) >= 0) {
        return kernel;
      }
    }
  }
  return nullptr;  // never: the last kernel takes everything
}

}  // namespace onnxq

ONNXQ_EXPORT int64_t onnxq_attention_size() { return sizeof(onnxq::Attention); }

// The name of the kernel that `onnxq_attention` would run, or null.
ONNXQ_EXPORT const char* onnxq_attention_kernel_for(const char* isa, const onnxq::Attention* p) {
  const onnxq::AttentionKernel* const kernel = onnxq::attention_kernel_for(isa, *p);
  return kernel ? kernel->isa : nullptr;
}

// For tests and measurements. 0, or 1 where there is no such kernel here.
ONNXQ_EXPORT int32_t onnxq_attention(const char* isa, const onnxq::Attention* p, int32_t threads) {
  const onnxq::AttentionKernel* const kernel = onnxq::attention_kernel_for(isa, *p);
  if (!kernel) {
    return 1;
  }
  const auto bytes = static_cast<size_t>(kernel->workspace(*p));
  const auto workspace = static_cast<char*>(::operator new(bytes, std::align_val_t(64)));
  for (int phase = 0; const int64_t tasks = kernel->tasks(*p, phase, threads); ++phase) {
    std::atomic<int64_t> next{0};
    onnxq::in_threads(std::min<int64_t>(threads, tasks), threads, [&](int64_t, int64_t) {
      for (int64_t task = next++; task < tasks; task = next++) {
        kernel->run(*p, phase, task, tasks, workspace);
      }
    });
  }
  ::operator delete(workspace, std::align_val_t(64));
  return 0;
}
