#include "kernels.h"

namespace onnxq {
namespace {

template <int format>
Error with_rows(const GemvArguments& a, int rows, const Grid& grid, const Start& start) {
  return with_type(a.p.type, [&](auto x) {
    using X = decltype(x);
    switch (rows) {
      case 1:
        return begin<gemv_kernel<format, X, 1>>(a, grid, start);
      case 2:
        return begin<gemv_kernel<format, X, 2>>(a, grid, start);
      default:
        return begin<gemv_kernel<format, X, 4>>(a, grid, start);
    }
  });
}

}  // namespace

Error start_gemv(const GemvArguments& a, int rows, const Grid& grid, const Start& start) {
  switch (a.p.format) {
    case kInt4:
      return with_rows<kInt4>(a, rows, grid, start);
    case kInt8:
      return with_rows<kInt8>(a, rows, grid, start);
    default:
      return with_rows<kNf4>(a, rows, grid, start);
  }
}

}  // namespace onnxq
