// Steps that make or read float32, or compute in it: what they may read, and their constants.

#ifndef ONNXQ_REGION_ROW_STAGE_H_
#define ONNXQ_REGION_ROW_STAGE_H_

#include "plan.h"
#include "reader.h"

namespace onnxq {

// Whether what a step reads holds what it can read, codes or float32; sets Stage::floats. Throws Refusal.
void check_elements(Stage& stage, size_t number, const std::vector<Stage>& before);

// Reads the constants of steps that `make_stage` has no case for.
void make_row_stage(Stage& stage, size_t number, const std::vector<Stage>& before, const Reader& read);

// Reads the numbers of a normalization. Throws Refusal where epsilon is negative or none.
void make_norm(Stage& stage, size_t number, const Reader& read);

// What such a step makes of `x`; marks what is read behind these. Throws Refusal where they do not fit.
Placed row_shape(size_t number, const Stage& stage, const std::vector<Placed*>& x, Plan& plan);  // row_plan.cc

}  // namespace onnxq

#endif  // ONNXQ_REGION_ROW_STAGE_H_
