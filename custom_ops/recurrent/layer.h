// A layer from its first phase to its last, on threads that somebody lends.

#ifndef ONNXQ_RECURRENT_LAYER_H_
#define ONNXQ_RECURRENT_LAYER_H_

#include "schedule.h"

namespace onnxq {

Schedule schedule(const Recurrent& p, int threads);

int64_t workspace_bytes(const Recurrent& p, const Schedule& s);

// States of before the first step; zeros behind the last step of short sequences.
void begin_layer(const Recurrent& p, const Schedule& s, void* workspace);

// States of behind the last step.
void finish_layer(const Recurrent& p, const Schedule& s, void* workspace);

Job job_of(const Recurrent& p, const Schedule& s, const Phase& phase, int64_t number);

// parallel(jobs, body) calls body(i) for i = 0 … jobs - 1, and returns when all are done.
template <typename Parallel>
void run_phase(const RecurrentKernel& kernel, const Recurrent& p, const Schedule& s, const Phase& phase, void* workspace,
               const Parallel& parallel) {
  const Cut& cut = phase.projects ? s.project : s.step;
  parallel(p.directions * cut.groups * cut.parts,
           [&](int64_t i) { kernel.run(p, s, phase, job_of(p, s, phase, i), workspace); });
}

template <typename Parallel>
void run_layer(const RecurrentKernel& kernel, const Recurrent& p, const Schedule& s, void* workspace, const Parallel& parallel) {
  begin_layer(p, s, workspace);
  for (int64_t first = 0; first < p.T; first += s.chunk) {
    const int64_t last = first + s.chunk < p.T ? first + s.chunk : p.T;
    run_phase(kernel, p, s, {true, first, last, first, 2}, workspace, parallel);
    if (s.step.parts == 1) {
      run_phase(kernel, p, s, {false, first, last, first, 2}, workspace, parallel);
      continue;
    }
    for (int64_t step = first; step < last; ++step) {
      for (int half = 0; half < s.halves; ++half) {
        run_phase(kernel, p, s, {false, step, step + 1, first, s.halves == 1 ? 2 : half}, workspace, parallel);
      }
    }
  }
  finish_layer(p, s, workspace);
}

// The best kernel that runs here, none before `isa` in the order of cpu/isa.h (null or "": from the first). Null where `isa` is
// unknown or does not run here.
const RecurrentKernel* recurrent_kernel_for(const char* isa);

}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_LAYER_H_
