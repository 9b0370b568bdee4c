// The GPU half behind its entry points: every function checks what it is given, starts its kernels on `stream` without
// waiting for any, and returns an empty string or a sentence.
#pragma once

#include "problem.h"

namespace onnxq {

// y = x · wᵀ + bias. `library`: a cuBLAS handle whose stream is `stream`, or null.
Error matmul(const Matmul& p, Stream stream, void* library);
Error gather(const Gather& p, Stream stream);

// Loads the kernels that products like `p` can need, for every M: neither may first happen during the capture of a
// graph.
Error prepare(const Matmul& p);
Error prepare_gather();

// cuBLAS, where this process has it already: y[M, N] = beta · y + x[M, K] · w[N, K]ᵀ with rows of w `stride` elements
// apart. The element types are those of problem.h; `exact` forbids tensor-core roundings of float32.
bool has_cublas();
bool cublas_has_stream(void* handle, Stream stream);  // a handle from elsewhere is asked before it is used
struct Product {
  int64_t M, N, K, stride, y_stride;
  int type, y_type, exact, beta;
  const void* x;
  const void* w;
  void* y;
};
Error cublas_product(void* handle, const Product& product);
Error cublas_create(void** handle, Stream stream);  // for callers that have no handle of the stream yet
void cublas_destroy(void* handle);

}  // namespace onnxq
