// Rows of a weight, decoded: what an embedding reads.

#ifndef ONNXQ_CPU_GATHER_H_
#define ONNXQ_CPU_GATHER_H_

#include "kernel.h"

namespace onnxq {

// y[K] = w[row, :] in float32, the code's value times the scale. Of `p`, only what describes the weight is read.
void gather_row(const Problem& p, int64_t row, float* y);

}  // namespace onnxq

#endif  // ONNXQ_CPU_GATHER_H_
