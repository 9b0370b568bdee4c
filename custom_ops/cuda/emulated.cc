// All of the GPU code as one ordinary shared library, for the tests: the same sources, the same entry points, memory of
// the processor. Built by any C++17 compiler:
//
//   c++ -std=c++17 -O2 -shared -fPIC emulated.cc -o libonnxq_cuda_emulated.so
#include "c_abi.cu"
#include "cublas.cu"
#include "emulated_abi.h"
#include "gemv.cu"
#include "matmul.cu"
#include "rows.cu"
#include "runtime_abi.cu"
#include "tensor_int4.cu"
#include "tensor_int8.cu"
#include "tensor_table.cu"
