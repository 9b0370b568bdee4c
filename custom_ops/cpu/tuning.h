// What is better measured than assumed: from how many rows on a kernel's tiles are faster than its dot products.
//
// Measured once a machine, at the first product that needs the answer, in some milliseconds; kept in
// $XDG_CACHE_HOME/onnxq (~/.cache/onnxq), in a file for each kind of processor. Where that cannot be written, every
// process measures for itself; what is wrong in it is measured anew. A machine profile gives the numbers of the machine that
// it was measured on (onnxq_give_tile_rows), and ONNXQ_TILE_ROWS one number before all of them.

#ifndef ONNXQ_CPU_TUNING_H_
#define ONNXQ_CPU_TUNING_H_

#include "kernel.h"

namespace onnxq {

// What Problem::tile_rows should be for `p`; 0 where the kernel has no tiles or it makes no difference.
int32_t tile_rows(const Kernel& kernel, const Problem& p);

}  // namespace onnxq

#endif  // ONNXQ_CPU_TUNING_H_
