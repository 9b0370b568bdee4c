// The kernels for ctypes: what tests and measurements call. onnxruntime does not come this way.

#include <algorithm>
#include <atomic>
#include <new>
#include <string>

#include "../base/export.h"
#include "../base/threads.h"
#include "gather.h"
#include "isa.h"

namespace {

// Runs every task of a phase on `threads` threads, which fetch them one by one.
void run_phase(const onnxq::Kernel& kernel, const onnxq::Problem& p, int phase, int64_t tasks, int threads,
               void* workspace) {
  std::atomic<int64_t> next{0};
  onnxq::in_threads(std::min<int64_t>(threads, tasks), threads, [&](int64_t, int64_t) {
    for (int64_t task = next++; task < tasks; task = next++) {
      kernel.run(p, phase, task, tasks, workspace);
    }
  });
}

}  // namespace

// Names of the kernels that run on this machine, best first, separated by spaces.
ONNXQ_EXPORT const char* onnxq_isas() {
  static const std::string names = [] {
    std::string all;
    for (const onnxq::Kernel* const* each = onnxq::kKernels; *each; ++each) {
      if (((*each)->needs & ~onnxq::cpu_features()) == 0) {
        all += (all.empty() ? "" : " ") + std::string((*each)->isa);
      }
    }
    return all;
  }();
  return names.c_str();
}

ONNXQ_EXPORT int64_t onnxq_problem_size() { return sizeof(onnxq::Problem); }

// The name of the kernel that `onnxq_matmul` would run, or null.
ONNXQ_EXPORT const char* onnxq_kernel_for(const char* isa, const onnxq::Problem* p) {
  const onnxq::Kernel* kernel = onnxq::kernel_for(isa, *p);
  return kernel ? kernel->isa : nullptr;
}

// 0, or 1 where there is no such kernel here; Problem::threads is not read. Null or "" for `isa`: the best one.
ONNXQ_EXPORT int32_t onnxq_matmul(const char* isa, const onnxq::Problem* given, int32_t threads) {
  onnxq::Problem p = *given;
  p.threads = threads;
  const onnxq::Kernel* kernel = onnxq::kernel_for(isa, p);
  if (!kernel) {
    return 1;
  }
  const int64_t bytes = kernel->workspace(p);
  // Exactly as large as was asked for, so that tools see what is written behind its end.
  const auto workspace = static_cast<char*>(::operator new(static_cast<size_t>(bytes), std::align_val_t(64)));
  for (int phase = 0; const int64_t tasks = kernel->tasks(p, phase); ++phase) {
    run_phase(*kernel, p, phase, tasks, threads, workspace);
  }
  ::operator delete(workspace, std::align_val_t(64));
  return 0;
}

// y[count, K] = rows of the weight that `p` describes.
ONNXQ_EXPORT void onnxq_gather(const onnxq::Problem* p, const int64_t* rows, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) {
    onnxq::gather_row(*p, rows[i], y + i * p->K);
  }
}
