#include "kernels.h"

namespace onnxq {

Error start_tensor_int8(const TensorArguments& a, const Grid& grid, const Start& start) {
  return start_tensor<Int8>(a, grid, start);
}

Error start_direct_int8(const TensorArguments& a, const Grid& grid, const Start& start) {
  return start_direct<Int8>(a, grid, start);
}

}  // namespace onnxq
