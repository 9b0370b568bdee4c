#include "kernels.h"

namespace onnxq {

Error start_tensor_int4(const TensorArguments& a, const Grid& grid, const Start& start) {
  return start_tensor<Int4>(a, grid, start);
}

Error start_direct_int4(const TensorArguments& a, const Grid& grid, const Start& start) {
  return start_direct<Int4>(a, grid, start);
}

}  // namespace onnxq
