#include "kernels.h"

namespace onnxq {

Error start_tensor_table(const TensorArguments& a, const Grid& grid, const Start& start) {
  return start_tensor<Table>(a, grid, start);
}

Error start_direct_table(const TensorArguments& a, const Grid& grid, const Start& start) {
  return start_direct<Table>(a, grid, start);
}

}  // namespace onnxq
