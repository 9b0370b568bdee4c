// Which convolutions are computed by Winograd's transformation (kernels/winograd.h), and how they are cut into tasks.

#ifndef ONNXQ_REGION_WINOGRAD_H_
#define ONNXQ_REGION_WINOGRAD_H_

#include "../cpu/run.h"
#include "plan.h"

namespace onnxq {

// Whether sums of an output are below 2^25, whatever the codes are: those of its weights that are above zero add up to
// `above`, the others to `below`.
constexpr bool fits_squares(int64_t above, int64_t below) { return 255 * above < 1 << 25 && 255 * below >= -(1 << 25); }

// Of convolutions that can be: those that it makes faster, all or none.
enum class WinogradUse { kWhereFaster, kAlways, kNever };

// By ONNXQ_WINOGRAD, for tests and to compare.
WinogradUse winograd_use();

// Decides about each convolution of a plan, and adds to the workspace what they need.
void plan_winograd(Plan& plan, const std::vector<Stage>& stages, const WinogradKernel& kernel, WinogradUse use);

// `memory`: Winograd::bytes of it.
void run_winograd(const Place& place, const WinogradKernel& kernel, const Conv& c, const Winograd& planned, uint8_t* memory);

}  // namespace onnxq

#endif  // ONNXQ_REGION_WINOGRAD_H_
