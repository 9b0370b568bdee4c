// Which kernel computes an attention on this machine.

#ifndef ONNXQ_ATTENTION_CHOOSE_H_
#define ONNXQ_ATTENTION_CHOOSE_H_

#include "kernel.h"

namespace onnxq {

// The best that runs here and offers something for `p`, none before `isa` in the order of cpu/isa.h (null or "": from the
// first). Null where `isa` is unknown or does not run here.
const AttentionKernel* attention_kernel_for(const char* isa, const Attention& p);

}  // namespace onnxq

#endif  // ONNXQ_ATTENTION_CHOOSE_H_
