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

// The instances of one decoder.
template <template <class> class Decoder, class X>
Error start_tensor(const TensorArguments& a, const Grid& grid, const Start& start) {
  using D = Decoder<typename X::Compute>;
  const auto with = [&](auto kernel) {
    return launch<kernel.value>(start.device, grid, start.stream, a, start.only_prepare);
  };
  switch (a.shape.columns) {
    case 8:
      return with(std::integral_constant<void (*)(TensorArguments), tensor_kernel<D, X, 1>>{});
    case 16:
      return with(std::integral_constant<void (*)(TensorArguments), tensor_kernel<D, X, 2>>{});
    case 32:
      return with(std::integral_constant<void (*)(TensorArguments), tensor_kernel<D, X, 4>>{});
    default:
      if constexpr (sizeof(typename X::Bits) == 2) {
        return with(std::integral_constant<void (*)(TensorArguments), tensor_kernel<D, X, 8>>{});
      }
      return "onnxq has no tensor-core kernel for " + std::to_string(a.shape.columns) + " columns of float32.";
  }
}
template <template <class> class Decoder>
Error start_tensor(const TensorArguments& a, const Grid& grid, const Start& start) {
  switch (a.p.type) {
    case kFloat16:
      return start_tensor<Decoder, Float16>(a, grid, start);
    case kBfloat16:
      return start_tensor<Decoder, Bfloat16>(a, grid, start);
    default:
      return start_tensor<Decoder, Float32>(a, grid, start);
  }
}

template <class D, class X, int warps>
Error start_direct_of(const TensorArguments& a, const Grid& grid, const Start& start) {
  const auto with = [&](auto kernel) {
    return launch<kernel.value>(start.device, grid, start.stream, a, start.only_prepare);
  };
  switch (a.shape.columns) {
    case 8:
      return with(std::integral_constant<void (*)(TensorArguments), direct_kernel<D, X, 1, warps>>{});
    case 16:
      return with(std::integral_constant<void (*)(TensorArguments), direct_kernel<D, X, 2, warps>>{});
    default:
      if constexpr (sizeof(typename X::Bits) == 2) {
        return with(std::integral_constant<void (*)(TensorArguments), direct_kernel<D, X, 4, warps>>{});
      }
      return "onnxq has no direct kernel for " + std::to_string(a.shape.columns) + " columns of float32.";
  }
}
template <template <class> class Decoder, class X>
Error start_direct(const TensorArguments& a, const Grid& grid, const Start& start) {
  using D = Decoder<typename X::Compute>;
  return a.shape.warps_k == 8 ? start_direct_of<D, X, 8>(a, grid, start) : start_direct_of<D, X, 16>(a, grid, start);
}
template <template <class> class Decoder>
Error start_direct(const TensorArguments& a, const Grid& grid, const Start& start) {
  switch (a.p.type) {
    case kFloat16:
      return start_direct<Decoder, Float16>(a, grid, start);
    case kBfloat16:
      return start_direct<Decoder, Bfloat16>(a, grid, start);
    default:
      return start_direct<Decoder, Float32>(a, grid, start);
  }
}

}  // namespace onnxq
