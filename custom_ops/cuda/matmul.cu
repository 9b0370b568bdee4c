#include "matmul.h"

#include "choose.h"
#include "kernels.h"

namespace onnxq {
namespace {

// Of a dequantized weight at a time: memory stays bounded, and much of it in L2.
constexpr int64_t kPanelBytes = 64 << 20;

bool aligned(const void* p, int64_t elements, int type, int vector_bytes) {
  const int64_t size = type == kFloat32 ? 4 : 2;
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(vector_bytes) == 0 &&
         elements * size % vector_bytes == 0;
}

Error check(int64_t N, int64_t K, int block, int format, int type, int scale_type, const void* weight,
            const void* scales, const void* zero_points) {
  if (format < 0 || format >= kFormats || scale_type < 0 || scale_type >= kScaleTypes) {
    return "onnxq's GPU kernels know no format " + std::to_string(format) + " with scales of type " +
           std::to_string(scale_type) + ".";
  }
  if (type != kFloat32 && type != kFloat16 && type != kBfloat16) {
    return "onnxq's GPU kernels take float32, float16 and bfloat16, not element type " + std::to_string(type) + ".";
  }
  if (N < 1 || K < 1 || K >= 1 << 24 || N >= 1 << 30) {
    return "onnxq's GPU kernels take weights of 1 to 2^30 rows and 1 to 2^24 columns, not [" + std::to_string(N) +
           ", " + std::to_string(K) + "].";
  }
  if (block < kMinBlock || block > kMaxBlock || block % kMinBlock != 0) {
    return "onnxq's blocks are multiples of 16 from 16 to 256, not " + std::to_string(block) + ".";
  }
  const auto at = [](const void* start) { return reinterpret_cast<uintptr_t>(start); };
  if (at(weight) % 16 != 0 || at(scales) % 16 != 0 || at(zero_points) % 4 != 0) {
    return "onnxq's GPU kernels read weights and scales 16 bytes at a time, and zero points 4, and one of them does not "
           "start at such an address.";
  }
  return {};
}

template <class Arguments>
void set_levels(Arguments* a, int format) {
  std::copy(kLevels[format], kLevels[format] + 16, a->levels);
}

TensorArguments tensor_arguments(const Matmul& p) {
  TensorArguments a{};
  a.p = p;
  a.halves = p.block % kStep == 0 ? 1 : 2;
  a.span = kStep / a.halves;
  a.extent = extent(p.N, p.K, p.block, p.format);
  a.block = make_divisor(p.block);
  a.x_aligned = aligned(p.x, p.K, p.type, 16);
  a.y_aligned = aligned(p.y, p.N, p.type, p.type == kFloat32 ? 16 : 8);
  set_levels(&a, p.format);
  return a;
}

using StartTensor = Error (*)(const TensorArguments&, const Grid&, const Start&);

// Starts a kernel of which `a.shape` tells everything, with memory for the sums of splits.
Error run_shape(TensorArguments a, const Start& start, StartTensor kernel) {
  const Scratch scratch = start.only_prepare ? Scratch{0, 0} : scratch_of(a.shape, a.p);
  void* memory = nullptr;
  Error error;
  if (scratch.partial) {
    error = allocate(&memory, scratch.partial + scratch.counters, start.stream);
    if (error.empty()) {
      a.partial = static_cast<float*>(memory);
      a.counter = reinterpret_cast<uint32_t*>(static_cast<char*>(memory) + scratch.partial);
      error = set_to_zero(a.counter, scratch.counters, start.stream);
    }
  }
  if (error.empty()) {
    const Grid grid{static_cast<int>(ceil_div(a.p.N, kWarpRows * a.shape.warps_n)), a.shape.splits,
                    static_cast<int>(ceil_div(a.p.M, a.shape.columns)), a.shape.warps_n * a.shape.warps_k * 32,
                    static_cast<size_t>(a.shape.shared_bytes)};
    error = kernel(a, grid, start);
  }
  if (memory) {
    const Error released = release(memory, start.stream);
    error = error.empty() ? released : error;
  }
  return error;
}

Error run_tensor(const Matmul& p, const Start& start, int columns = 0) {
  TensorArguments a = tensor_arguments(p);
  const bool table = !is_affine(p.format);
  a.shape = cut(p, a.halves, start.device);
  if (columns) {  // to load a kernel
    a.shape.columns = columns;
  }
  if (!start.only_prepare && a.shape.shared_bytes > start.device.shared_bytes) {
    return "onnxq's tensor-core kernel needs " + std::to_string(a.shape.shared_bytes) +
           " bytes of shared memory, and this GPU has " + std::to_string(start.device.shared_bytes) + ".";
  }
  const int steps = steps_of(is_wide(p.format), table, a.shape.columns / 8);
  a.group = p.block % (kStep * steps) == 0 ? steps : p.block % (kStep * 2) == 0 ? 2 : 1;
  return run_shape(a, start, table ? start_tensor_table : p.format == kInt8 ? start_tensor_int8 : start_tensor_int4);
}

Error run_direct(const Matmul& p, const Start& start, int columns = 0, int warps = 0) {
  TensorArguments a = tensor_arguments(p);
  a.shape = cut_direct(p, start.device);
  if (columns) {  // to load a kernel
    a.shape.columns = columns;
    a.shape.warps_k = warps;
  }
  const int ahead = direct_ahead(is_wide(p.format), a.shape.columns / 8);
  a.group = p.block % (kStep * ahead) == 0 ? ahead : 1;
  const bool table = !is_affine(p.format);
  return run_shape(a, start, table ? start_direct_table : p.format == kInt8 ? start_direct_int8 : start_direct_int4);
}

Error run_gemv(const Matmul& p, const Start& start) {
  GemvArguments a{};
  a.p = p;
  a.extent = extent(p.N, p.K, p.block, p.format);
  a.block = make_divisor(p.block);
  a.x_aligned = aligned(p.x, p.K, p.type, 16);
  set_levels(&a, p.format);
  const int rows = p.M <= 1 ? 1 : p.M <= 2 ? 2 : 4;
  const size_t shared =
      static_cast<size_t>(kGemvWarps * rows * kTileRows * 4 + (is_affine(p.format) ? 0 : 16 * 32 * 4));
  return start_gemv(a, rows,
                    {static_cast<int>(a.extent.tiles), 1, static_cast<int>(ceil_div(p.M, rows)), kGemvThreads, shared},
                    start);
}

// Some rows of the weight at a time: in the tensor cores' type of x, or as float32 where `exact` asks for it.
Error run_dequantize(const Matmul& p, const Start& start, void* library) {
  const int type = p.type == kFloat32 && !p.exact ? kBfloat16 : p.exact && !is_exact_in_halves(p) ? kFloat32 : p.type;
  const int64_t size = type == kFloat32 ? 4 : 2, stride = ceil_div(p.K, 8) * 8, tiles = ceil_div(p.N, kTileRows);
  int64_t panel = kPanelBytes / (stride * size * kTileRows);
  panel = panel < 1 ? 1 : panel < tiles ? panel : tiles;
  const int64_t weight_bytes = panel * kTileRows * stride * size, x_bytes = type == p.type ? 0 : p.M * p.K * size;
  // cuBLAS writes the type that it multiplies.
  const int64_t y_bytes = type == kFloat32 && p.type != kFloat32 ? p.M * p.N * 4 : 0;
  const auto align = [](int64_t bytes) { return ceil_div(bytes, 256) * 256; };
  char* memory = nullptr;
  Error error = allocate(reinterpret_cast<void**>(&memory),
                         static_cast<size_t>(align(weight_bytes) + align(x_bytes) + align(y_bytes)), start.stream);
  if (!error.empty()) {
    return error;
  }
  const void* x = p.x;
  char* y = y_bytes ? memory + align(weight_bytes) + align(x_bytes) : static_cast<char*>(p.y);
  const int y_type = y_bytes ? static_cast<int>(kFloat32) : p.type;
  if (x_bytes) {
    x = memory + align(weight_bytes);
    error = start_fill({p.x, memory + align(weight_bytes), p.M * p.K, p.M * p.K}, p.type, type, start);
  }
  if (error.empty() && p.bias) {
    error = start_fill({p.bias, y, p.M * p.N, p.N}, p.type, y_type, start);
  }
  DequantizeArguments a{};
  a.p = p;
  a.extent = extent(p.N, p.K, p.block, p.format);
  a.block = make_divisor(p.block);
  a.stride = stride;
  a.to = memory;
  set_levels(&a, p.format);
  for (int64_t first = 0; error.empty() && first < tiles; first += panel) {
    a.first_tile = static_cast<int>(first);
    a.tiles = static_cast<int>(tiles - first < panel ? tiles - first : panel);
    error = start_dequantize(a, type, start);
    if (error.empty()) {
      const int64_t n = first * kTileRows, rows = p.N - n < panel * kTileRows ? p.N - n : panel * kTileRows;
      error = cublas_product(library, {p.M, rows, p.K, stride, p.N, type, y_type, p.exact, p.bias != nullptr, x, memory,
                                       y + n * (y_type == kFloat32 ? 4 : 2)});
    }
  }
  if (error.empty() && y_bytes) {
    error = start_fill({y, p.y, p.M * p.N, p.M * p.N}, kFloat32, p.type, start);
  }
  const Error released = release(memory, start.stream);
  return error.empty() ? released : error;
}

Error run(const Matmul& p, const Start& start, void* library) {
  const bool has_library = library && has_cublas();
  switch (choose(p, has_library, aligned(p.x, p.K, p.type, 16))) {
    case kGemv:
      return run_gemv(p, start);
    case kDirect:
      return run_direct(p, start);
    case kTensor:
      return run_tensor(p, start);
    default:
      return has_library ? run_dequantize(p, start, library)
                         : "cuBLAS is not loaded in this process, and this path needs it.";
  }
}

}  // namespace

Error matmul(const Matmul& p, Stream stream, void* library) {
  Error error = check(p.N, p.K, p.block, p.format, p.type, p.scale_type, p.weight, p.scales, p.zero_points);
  if (error.empty() && p.M < 0) {
    error = "A product cannot have " + std::to_string(p.M) + " rows.";
  }
  if (!error.empty() || p.M == 0) {
    return error;
  }
  Device device{};
  error = current_device(&device);
  if (!error.empty()) {
    return error;
  }
  // A grid has 65535 places along its third axis, and fewer than 2^31 along its first.
  const int64_t most = (int64_t{1} << 38) / (p.N > p.K ? p.N : p.K), rows = most < 1 ? 1 : most < 65536 ? most : 65536;
  const int64_t size = p.type == kFloat32 ? 4 : 2;
  for (int64_t first = 0; error.empty() && first < p.M; first += rows) {
    Matmul part = p;
    part.M = p.M - first < rows ? p.M - first : rows;
    part.x = static_cast<const char*>(p.x) + first * p.K * size;
    part.y = static_cast<char*>(p.y) + first * p.N * size;
    error = run(part, {device, stream, false}, library);
  }
  return error;
}

Error gather(const Gather& p, Stream stream) {
  Error error = check(p.N, p.K, p.block, p.format, p.type, p.scale_type, p.weight, p.scales, p.zero_points);
  if (error.empty() && (p.count < 0 || p.count * ceil_div(p.K, 8) >= int64_t{kRowThreads} << 31)) {
    error = "onnxq's GPU kernels cannot gather " + std::to_string(p.count) + " rows at once.";
  }
  if (!error.empty() || p.count == 0) {
    return error;
  }
  Device device{};
  error = current_device(&device);
  if (!error.empty()) {
    return error;
  }
  GatherArguments a{};
  a.p = p;
  a.extent = extent(p.N, p.K, p.block, p.format);
  a.block = make_divisor(p.block);
  set_levels(&a, p.format);
  return start_gather(a, {device, stream, false});
}

Error prepare(const Matmul& p) {
  Device device{};
  Error error = current_device(&device);
  const Start start{device, nullptr, true};
  Matmul each = p;
  for (const int rows : {4, 2, 1}) {
    each.M = rows;
    error = error.empty() ? run_gemv(each, start) : error;
  }
  for (int columns = 8; error.empty() && columns <= 8 * widest(p.type); columns *= 2) {
    error = run_tensor(each, start, columns);
  }
  for (int columns = 8; error.empty() && columns <= direct_columns(p.type); columns *= 2) {
    for (const int warps : {8, 16}) {
      error = error.empty() ? run_direct(each, start, columns, warps) : error;
    }
  }
  for (const int type : {kFloat32, kFloat16, kBfloat16}) {
    DequantizeArguments dequantize{};
    FillArguments fill{nullptr, nullptr, 0, 1};
    error = error.empty() ? start_dequantize(dequantize, type, start) : error;
    error = error.empty() ? start_fill(fill, p.type, type, start) : error;
    error = error.empty() ? start_fill(fill, type, p.type, start) : error;
  }
  return error;
}

Error prepare_gather() {
  Device device{};
  Error error = current_device(&device);
  GatherArguments a{};
  for (const int type : {kFloat32, kFloat16, kBfloat16}) {
    a.p.type = type;
    error = error.empty() ? start_gather(a, {device, nullptr, true}) : error;
  }
  return error;
}

}  // namespace onnxq
