#include "kernels.h"

namespace onnxq {
namespace {

int blocks_for(int64_t threads) { return static_cast<int>(ceil_div(threads, kRowThreads)); }

}  // namespace

Error start_dequantize(const DequantizeArguments& a, int type, const Start& start) {
  const size_t levels = 16 * sizeof(float);
  const Grid grid{blocks_for(a.tiles * ceil_div(a.stride, kGemvStep) * 32), 1, 1, kRowThreads, levels};
  return with_type(type, [&](auto y) { return begin<dequantize_kernel<decltype(y)>>(a, grid, start); });
}

Error start_gather(const GatherArguments& a, const Start& start) {
  const Grid grid{blocks_for(a.p.count * ceil_div(a.p.K, 8)), 1, 1, kRowThreads, 0};
  return with_type(a.p.type, [&](auto y) { return begin<gather_kernel<decltype(y)>>(a, grid, start); });
}

Error start_fill(const FillArguments& a, int from_type, int to_type, const Start& start) {
  const Grid grid{blocks_for(a.count), 1, 1, kRowThreads, 0};
  return with_type(from_type, [&](auto x) {
    return with_type(to_type, [&](auto y) { return begin<fill_kernel<decltype(x), decltype(y)>>(a, grid, start); });
  });
}

}  // namespace onnxq
