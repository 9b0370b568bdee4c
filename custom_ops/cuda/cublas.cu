// cuBLAS without linking it: onnxruntime's CUDA provider and PyTorch bring their own, and where neither did there is
// none. The functions and the numbers below are those of cublas_api.h, unchanged since CUDA 11.
#include <dlfcn.h>

#include "matmul.h"
#include "platform.h"

namespace onnxq {
namespace {

enum {
  kOpN = 0,
  kOpT = 1,
  kReal32F = 0,
  kReal16F = 2,
  kReal16BF = 14,
  kCompute32F = 68,
  kCompute32FPedantic = 69,
  kDefault = -1
};

using GemmEx = int(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha,
                   const void* a, int a_type, int lda, const void* b, int b_type, int ldb, const void* beta, void* c,
                   int c_type, int ldc, int compute, int algorithm);
struct Library {
  GemmEx* gemm;
  int (*create)(void**);
  int (*destroy)(void*);
  int (*set_stream)(void*, void*);
  int (*get_stream)(void*, void**);
  const char* (*status_string)(int);
};

#if defined(__CUDACC__)
Library open() {
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so.14", "libcublas.so"}) {
    if (void* found = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {  // never loads one that the process does not have
      const auto symbol = [found](const char* function) { return dlsym(found, function); };
      const Library library{reinterpret_cast<GemmEx*>(symbol("cublasGemmEx")),
                            reinterpret_cast<int (*)(void**)>(symbol("cublasCreate_v2")),
                            reinterpret_cast<int (*)(void*)>(symbol("cublasDestroy_v2")),
                            reinterpret_cast<int (*)(void*, void*)>(symbol("cublasSetStream_v2")),
                            reinterpret_cast<int (*)(void*, void**)>(symbol("cublasGetStream_v2")),
                            reinterpret_cast<const char* (*)(int)>(symbol("cublasGetStatusString"))};
      if (library.gemm && library.create && library.destroy && library.set_stream && library.get_stream &&
          library.status_string) {
        return library;
      }
    }
  }
  return {};
}
#else
Library open();  // emulated.cc
#endif

const Library& library() {
  static const Library opened = open();
  return opened;
}

Error error_of_cublas(int status, const char* doing) {
  return status == 0 ? Error() : std::string("cuBLAS failed ") + doing + ": " + library().status_string(status) + ".";
}

int real(int type) { return type == kFloat16 ? kReal16F : type == kBfloat16 ? kReal16BF : kReal32F; }

}  // namespace

bool has_cublas() { return library().gemm != nullptr; }

bool cublas_has_stream(void* handle, Stream stream) {
  void* own = nullptr;
  return has_cublas() && library().get_stream(handle, &own) == 0 && own == stream;
}

// Row-major [rows, columns] is what cuBLAS calls [columns, rows]: it computes yᵀ = w · xᵀ.
Error cublas_product(void* handle, const Product& p) {
  const float alpha = 1.0f, beta = static_cast<float>(p.beta);
  const int status = library().gemm(
      handle, kOpT, kOpN, static_cast<int>(p.N), static_cast<int>(p.M), static_cast<int>(p.K), &alpha, p.w,
      real(p.type), static_cast<int>(p.stride), p.x, real(p.type), static_cast<int>(p.K), &beta, p.y, real(p.y_type),
      static_cast<int>(p.y_stride), p.exact ? kCompute32FPedantic : kCompute32F, kDefault);
  return error_of_cublas(status, "multiplying");
}

Error cublas_create(void** handle, Stream stream) {
  if (!has_cublas()) {
    return "cuBLAS is not loaded in this process.";
  }
  Error error = error_of_cublas(library().create(handle), "making a handle");
  return error.empty() ? error_of_cublas(library().set_stream(*handle, stream), "taking a stream") : error;
}

void cublas_destroy(void* handle) {
  if (has_cublas()) {
    library().destroy(handle);
  }
}

}  // namespace onnxq
