// Every operator of the domain, each defined in a file of its own.

#ifndef ONNXQ_OPS_H_
#define ONNXQ_OPS_H_

#include "op.h"

namespace onnxq {

extern const Ops kMatMulNBits;  // cpu/matmul_nbits.cc
extern const Ops kDenseMatMul;  // cpu/dense_matmul.cc
extern const Ops kGatherNBits;  // cpu/gather_nbits.cc
extern const Ops kObserve;      // cpu/observe.cc
extern const Ops kRegion, kBf16Region;  // region/node.cc
extern const Ops kAttention;    // attention/node.cc
extern const Ops kRecurrent;    // recurrent/node.cc

#if defined(ONNXQ_CUDA)
extern const Ops kCudaMatMulNBits, kCudaGatherNBits;  // cuda/nodes.cc
#endif

}  // namespace onnxq

#endif  // ONNXQ_OPS_H_
