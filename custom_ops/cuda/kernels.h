// The kernels' host side, one function for each file of instances. Each starts its kernel on a stream, or with
// `only_prepare` only makes sure that it is loaded.
#pragma once

#include "direct.h"
#include "gemv.h"
#include "platform.h"
#include "rows.h"
#include "tensor.h"

namespace onnxq {

struct Start {
  const Device& device;
  Stream stream;
  bool only_prepare;
};

Error start_tensor_int4(const TensorArguments& a, const Grid& grid, const Start& start);
Error start_tensor_int8(const TensorArguments& a, const Grid& grid, const Start& start);
Error start_tensor_table(const TensorArguments& a, const Grid& grid, const Start& start);
Error start_direct_int4(const TensorArguments& a, const Grid& grid, const Start& start);
Error start_direct_int8(const TensorArguments& a, const Grid& grid, const Start& start);
Error start_direct_table(const TensorArguments& a, const Grid& grid, const Start& start);
Error start_gemv(const GemvArguments& a, int rows, const Grid& grid, const Start& start);
// `type`: of what is written.
Error start_dequantize(const DequantizeArguments& a, int type, const Start& start);
Error start_gather(const GatherArguments& a, const Start& start);
Error start_fill(const FillArguments& a, int from_type, int to_type, const Start& start);

// Starts `kernel`, or loads it.
template <auto kernel, class Arguments>
Error begin(const Arguments& a, const Grid& grid, const Start& start) {
  return launch<kernel>(start.device, grid, start.stream, a, start.only_prepare);
}

// Calls with an object of the class that an element type is computed by.
template <class Call>
Error with_type(int type, Call call) {
  switch (type) {
    case kFloat16:
      return call(Float16());
    case kBfloat16:
      return call(Bfloat16());
    default:
      return call(Float32());
  }
}

// The instances of one decoder.
template <template <class> class Decoder, class X>
Error start_tensor_of(const TensorArguments& a, const Grid& grid, const Start& start) {
  using D = Decoder<typename X::Compute>;
  switch (a.shape.columns) {
    case 8:
      return begin<tensor_kernel<D, X, 1>>(a, grid, start);
    case 16:
      return begin<tensor_kernel<D, X, 2>>(a, grid, start);
    case 32:
      return begin<tensor_kernel<D, X, 4>>(a, grid, start);
    default:
      if constexpr (sizeof(typename X::Bits) == 2) {
        return begin<tensor_kernel<D, X, 8>>(a, grid, start);
      }
      return "onnxq has no tensor-core kernel for " + std::to_string(a.shape.columns) + " columns of float32.";
  }
}
template <template <class> class Decoder>
Error start_tensor(const TensorArguments& a, const Grid& grid, const Start& start) {
  return with_type(a.p.type, [&](auto x) { return start_tensor_of<Decoder, decltype(x)>(a, grid, start); });
}

template <template <class> class Decoder, class X, int warps>
Error start_direct_of(const TensorArguments& a, const Grid& grid, const Start& start) {
  using D = Decoder<typename X::Compute>;
  switch (a.shape.columns) {
    case 8:
      return begin<direct_kernel<D, X, 1, warps>>(a, grid, start);
    case 16:
      return begin<direct_kernel<D, X, 2, warps>>(a, grid, start);
    default:
      if constexpr (sizeof(typename X::Bits) == 2) {
        return begin<direct_kernel<D, X, 4, warps>>(a, grid, start);
      }
      return "onnxq has no direct kernel for " + std::to_string(a.shape.columns) + " columns of float32.";
  }
}
template <template <class> class Decoder>
Error start_direct(const TensorArguments& a, const Grid& grid, const Start& start) {
  return with_type(a.p.type, [&](auto x) {
    using X = decltype(x);
    return a.shape.warps_k == 8 ? start_direct_of<Decoder, X, 8>(a, grid, start)
                                : start_direct_of<Decoder, X, 16>(a, grid, start);
  });
}

}  // namespace onnxq
