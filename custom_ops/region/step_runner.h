// What runs of all steps have: the step, where its tensors lie, and who computes.

#ifndef ONNXQ_REGION_STEP_RUNNER_H_
#define ONNXQ_REGION_STEP_RUNNER_H_

#include "run_stage.h"
#include "tasks.h"

namespace onnxq {

template <class Kernel>
class StepRunner {
 public:
  StepRunner(const std::vector<const Kernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan, size_t number,
             const Memory& memory, const Place& place)
      : kernels_(kernels), stages_(stages), plan_(plan), stage_(stages[number]), number_(number), memory_(memory),
        place_(place), kernel_(*kernels.front()) {}

 protected:
  const Placed& made() const { return plan_.tensors[number_]; }
  const Placed& x(size_t i = 0) const { return plan_.tensors[static_cast<size_t>(stage_.step.x[i])]; }
  const Stage& stage_of(size_t i = 0) const { return stages_[static_cast<size_t>(stage_.step.x[i])]; }

  // work(first, last) for pieces of `rows`, which take as long as so many bytes that are moved.
  template <typename Work>
  void in_rows(int64_t rows, int64_t bytes, const Work& work) const {
    onnxq::in_rows(place_, rows, bytes, work);
  }

  const std::vector<const Kernel*>& kernels_;
  const std::vector<Stage>& stages_;
  const Plan& plan_;
  const Stage& stage_;
  const size_t number_;
  const Memory& memory_;
  const Place& place_;
  const Kernel& kernel_;  // the best one
};

}  // namespace onnxq

#endif  // ONNXQ_REGION_STEP_RUNNER_H_
