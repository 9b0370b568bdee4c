// Runs one stage of a plan, in tasks.

#ifndef ONNXQ_REGION_RUN_STAGE_H_
#define ONNXQ_REGION_RUN_STAGE_H_

#include <vector>

#include "../cpu/run.h"
#include "plan.h"

namespace onnxq {

// Memory of a run: inputs and outputs are those of the node, null where no step reads or makes them.
struct Memory {
  uint8_t* workspace;
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
  const RowKernel* rows;  // of codes
};

// `kernels`: best first; the last takes every problem. All but convolutions run on the first.
void run_stage(const std::vector<const RegionKernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan,
               size_t number, const Memory& memory, const Place& place);
void run_stage(const std::vector<const NumberKernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan,
               size_t number, const Memory& memory, const Place& place);  // bf16_run.cc

}  // namespace onnxq

#endif  // ONNXQ_REGION_RUN_STAGE_H_
