// Which kernels this machine can run, and which one is taken.

#ifndef ONNXQ_CPU_ISA_H_
#define ONNXQ_CPU_ISA_H_

#include <string>

#include "kernel.h"

namespace onnxq {

// All kernels of this build, best first; ends with null. The last one needs nothing and takes every problem.
extern const Kernel* const kKernels[];

// Bits of CpuFeature. The first call asks the operating system for the AMX tiles, once for the process.
uint64_t cpu_features();

// Those of kKernels from `isa` on (null or "": from the first) that run here, the first of which offers something for
// `p`. Null where the first that is named is unknown or does not run here.
const Kernel* kernel_for(const char* isa, const Problem& p);

// The value of ONNXQ_FORCE_ISA, or null where it is not set or empty.
const char* forced_isa();

// Empty, or why `isa` cannot be forced.
std::string why_not(const char* isa);

}  // namespace onnxq

#endif  // ONNXQ_CPU_ISA_H_
