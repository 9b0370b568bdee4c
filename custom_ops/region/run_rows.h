// Runs steps that make or read float32, or compute in it.

#ifndef ONNXQ_REGION_RUN_ROWS_H_
#define ONNXQ_REGION_RUN_ROWS_H_

#include "run_stage.h"

namespace onnxq {

// Where a tensor of float32 lies.
float* floats_of(const Placed& t, const Memory& memory);

// Those that `run_stage` has no case for, and moves of float32.
void run_row_stage(const std::vector<const RegionKernel*>& kernels, const std::vector<Stage>& stages, const Plan& plan,
                   size_t number, const Memory& memory, const Place& place);

}  // namespace onnxq

#endif  // ONNXQ_REGION_RUN_ROWS_H_
