#include "kernels.h"

namespace onnxq {
namespace {

template <int format, class X>
Error with_rows(const GemvArguments& a, int rows, const Grid& grid, const Start& start) {
  switch (rows) {
    case 1:
      return launch<gemv_kernel<format, X, 1>>(start.device, grid, start.stream, a, start.only_prepare);
    case 2:
      return launch<gemv_kernel<format, X, 2>>(start.device, grid, start.stream, a, start.only_prepare);
    default:
      return launch<gemv_kernel<format, X, 4>>(start.device, grid, start.stream, a, start.only_prepare);
  }
}

template <int format>
Error with_type(const GemvArguments& a, int rows, const Grid& grid, const Start& start) {
  switch (a.p.type) {
    case kFloat16:
      return with_rows<format, Float16>(a, rows, grid, start);
    case kBfloat16:
      return with_rows<format, Bfloat16>(a, rows, grid, start);
    default:
      return with_rows<format, Float32>(a, rows, grid, start);
  }
}

}  // namespace

Error start_gemv(const GemvArguments& a, int rows, const Grid& grid, const Start& start) {
  switch (a.p.format) {
    case kInt4:
      return with_type<kInt4>(a, rows, grid, start);
    case kInt8:
      return with_type<kInt8>(a, rows, grid, start);
    default:
      return with_type<kNf4>(a, rows, grid, start);
  }
}

}  // namespace onnxq
