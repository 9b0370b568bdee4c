#include "kernels.h"

namespace onnxq {
namespace {

int blocks_for(int64_t threads) { return static_cast<int>(ceil_div(threads, kRowThreads)); }

template <class X>
Error fill_from(const FillArguments& a, int to_type, const Grid& grid, const Start& start) {
  switch (to_type) {
    case kFloat16:
      return launch<fill_kernel<X, Float16>>(start.device, grid, start.stream, a, start.only_prepare);
    case kBfloat16:
      return launch<fill_kernel<X, Bfloat16>>(start.device, grid, start.stream, a, start.only_prepare);
    default:
      return launch<fill_kernel<X, Float32>>(start.device, grid, start.stream, a, start.only_prepare);
  }
}

}  // namespace

Error start_dequantize(const DequantizeArguments& a, int type, const Start& start) {
  const Grid grid{blocks_for(a.tiles * ceil_div(a.stride, kGemvStep) * 32), 1, 1, kRowThreads, 16 * sizeof(float)};
  switch (type) {
    case kFloat16:
      return launch<dequantize_kernel<Float16>>(start.device, grid, start.stream, a, start.only_prepare);
    case kBfloat16:
      return launch<dequantize_kernel<Bfloat16>>(start.device, grid, start.stream, a, start.only_prepare);
    default:
      return launch<dequantize_kernel<Float32>>(start.device, grid, start.stream, a, start.only_prepare);
  }
}

Error start_gather(const GatherArguments& a, const Start& start) {
  const Grid grid{blocks_for(a.p.count * ceil_div(a.p.K, 8)), 1, 1, kRowThreads, 0};
  switch (a.p.type) {
    case kFloat16:
      return launch<gather_kernel<Float16>>(start.device, grid, start.stream, a, start.only_prepare);
    case kBfloat16:
      return launch<gather_kernel<Bfloat16>>(start.device, grid, start.stream, a, start.only_prepare);
    default:
      return launch<gather_kernel<Float32>>(start.device, grid, start.stream, a, start.only_prepare);
  }
}

Error start_fill(const FillArguments& a, int from_type, int to_type, const Start& start) {
  const Grid grid{blocks_for(a.count), 1, 1, kRowThreads, 0};
  switch (from_type) {
    case kFloat16:
      return fill_from<Float16>(a, to_type, grid, start);
    case kBfloat16:
      return fill_from<Bfloat16>(a, to_type, grid, start);
    default:
      return fill_from<Float32>(a, to_type, grid, start);
  }
}

}  // namespace onnxq
