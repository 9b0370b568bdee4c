// The GPU half for ctypes: what tests, benchmarks and programs without onnxruntime call. Null, or a sentence that stays
// readable until the same thread calls again.
#include "c_abi.h"

#include "../base/export.h"
#include "matmul.h"

using onnxq::kept;

ONNXQ_EXPORT const char* onnxq_cuda_matmul(const onnxq::Matmul* p, void* stream, void* library) {
  return kept(onnxq::matmul(*p, stream, library));
}
ONNXQ_EXPORT const char* onnxq_cuda_gather(const onnxq::Gather* p, void* stream) {
  return kept(onnxq::gather(*p, stream));
}
ONNXQ_EXPORT const char* onnxq_cuda_prepare(const onnxq::Matmul* p) { return kept(onnxq::prepare(*p)); }
// A product by cuBLAS alone: what others are compared with.
ONNXQ_EXPORT const char* onnxq_cuda_product(const onnxq::Product* p, void* library) {
  return kept(onnxq::has_cublas() ? onnxq::cublas_product(library, *p) : "cuBLAS is not loaded in this process.");
}
ONNXQ_EXPORT const char* onnxq_cuda_cublas_create(void** handle, void* stream) {
  return kept(onnxq::cublas_create(handle, stream));
}
ONNXQ_EXPORT void onnxq_cuda_cublas_destroy(void* handle) { onnxq::cublas_destroy(handle); }
