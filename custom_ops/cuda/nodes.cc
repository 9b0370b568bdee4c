// The two operators on onnxruntime's CUDA provider: what a node says, checked, handed to matmul.h on the provider's
// stream.
//
// All inputs are taken where the provider puts them, in the memory of the GPU, weights too: the kernels read the tiles
// as they lie (layout.h), so an initializer is uploaded once by onnxruntime and no second copy of it is made. A weight
// that other nodes compute, as the scales of nf4_dq where the optimizer is off, is read in the same way.

#include "../infer.h"
#include "../ops.h"
#include "../weight.h"
#include "matmul.h"

namespace onnxq {
namespace {

constexpr int kResourceVersion = 1, kCublasHandle = 10002;  // CudaResource::cublas_handle_t in cuda_resource.h

void check_launched(const WeightAttributes& node, const Error& error) {
  if (!error.empty()) {
    throw std::runtime_error("node '" + node.node + "': " + error);
  }
}

Stream stream_of(const ort::OrtApi* api, const ort::OrtKernelContext* context) {
  Stream stream = nullptr;
  check(api, api->KernelContext_GetGPUComputeStream(context, &stream));
  return stream;
}

// The provider's own handle, whose stream is the provider's; null where it has none to give.
void* cublas_of(const ort::OrtApi* api, const ort::OrtKernelContext* context, Stream stream) {
  void* handle = nullptr;
  if (ort::OrtStatus* const status =
          api->KernelContext_GetResource(context, kResourceVersion, kCublasHandle, &handle)) {
    api->ReleaseStatus(status);
    return nullptr;
  }
  return handle && cublas_has_stream(handle, stream) ? handle : nullptr;
}

class CudaMatMul {
 public:
  CudaMatMul(const ort::OrtApi* api, const ort::OrtKernelInfo* info) : api_(api), node_(api, info) {}

  void compute(ort::OrtKernelContext* context) {
    const Tensor x = input(api_, context, 0), bias = input(api_, context, 4);
    if (x.shape.empty() || x.shape.back() != node_.K) {
      node_.refuse("x has shape " + text(x.shape) + ", whose last dimension must be K = " + std::to_string(node_.K));
    }
    if (bias.type != ort::kUndefined && bias.shape != std::vector<int64_t>{node_.N}) {
      node_.refuse("bias has shape " + text(bias.shape) + ", but must be [" + std::to_string(node_.N) + "]");
    }
    const WeightTensors w{node_, input(api_, context, 1), input(api_, context, 2), input(api_, context, 3)};
    std::vector<int64_t> shape = x.shape;
    shape.back() = node_.N;
    const Tensor y = output(api_, context, 0, shape);
    const Stream stream = stream_of(api_, context);
    const Matmul p{x.size() / node_.K,
                   node_.N,
                   node_.K,
                   static_cast<int32_t>(node_.block),
                   node_.format,
                   x.type,
                   w.scale_type,
                   node_.exact,
                   kAuto,
                   x.data,
                   w.weight,
                   w.scales,
                   w.zero_points,
                   bias.data,
                   y.data};
    check_launched(node_, matmul(p, stream, cublas_of(api_, context, stream)));
  }

 protected:
  const ort::OrtApi* api_;
  WeightAttributes node_;
};

// With the kernels of one type loaded when the session is made.
template <ort::ElementType x>
class TypedCudaMatMul : public CudaMatMul {
 public:
  TypedCudaMatMul(const ort::OrtApi* api, const ort::OrtKernelInfo* info) : CudaMatMul(api, info) {
    Matmul p{};
    p.N = node_.N;
    p.K = node_.K;
    p.block = static_cast<int32_t>(node_.block);
    p.format = node_.format;
    p.type = x;
    check_launched(node_, prepare(p));
  }
};

class CudaGather {
 public:
  CudaGather(const ort::OrtApi* api, const ort::OrtKernelInfo* info) : api_(api), node_(api, info) {
    check_launched(node_, prepare_gather());
  }

  void compute(ort::OrtKernelContext* context) {
    const Tensor indices = input(api_, context, 3);
    if (indices.type != ort::kInt32 && indices.type != ort::kInt64) {
      node_.refuse("indices must be int32 or int64");
    }
    const WeightTensors w{node_, input(api_, context, 0), input(api_, context, 1), input(api_, context, 2)};
    std::vector<int64_t> shape = indices.shape;
    shape.push_back(node_.K);
    const Tensor y = output(api_, context, 0, shape);
    const Gather p{indices.size(),
                   node_.N,
                   node_.K,
                   static_cast<int32_t>(node_.block),
                   node_.format,
                   y.type,
                   w.scale_type,
                   indices.type == ort::kInt64 ? 8 : 4,
                   0,
                   indices.data,
                   w.weight,
                   w.scales,
                   w.zero_points,
                   y.data};
    check_launched(node_, gather(p, stream_of(api_, context)));
  }

 private:
  const ort::OrtApi* api_;
  WeightAttributes node_;
};

void infer_matmul(const ort::OrtApi* api, const ort::OrtShapeInferContext* context) {
  Shape shape = inferred_input(api, context, 0);
  const int64_t N = inferred_attribute(api, context, "N", 0);
  if (!shape.dims.empty() && N > 0) {
    shape.dims.back() = N;
    shape.names.back().clear();
    infer_output(api, context, 0, shape);
  }
}

void infer_gather(const ort::OrtApi* api, const ort::OrtShapeInferContext* context) {
  Shape shape = inferred_input(api, context, 3);
  const int64_t K = inferred_attribute(api, context, "K", 0);
  if (!shape.dims.empty() && K > 0) {
    shape.type = static_cast<ort::ElementType>(inferred_attribute(api, context, "dtype", ort::kFloat));
    shape.push_back(K);
    infer_output(api, context, 0, shape);
  }
}

constexpr const char* kProvider = "CUDAExecutionProvider";

template <ort::ElementType x>
struct MatMulNBits {
  using Kernel = TypedCudaMatMul<x>;
  static constexpr const char* name = "MatMulNBits";
  static constexpr const char* provider = kProvider;
  static constexpr std::array<Parameter, 5> inputs = {
      {{x}, {ort::kUint8}, {ort::kUndefined}, {ort::kUint8, ort::kOptional}, {x, ort::kOptional}}};
  static constexpr std::array<Parameter, 1> outputs = {{{x}}};
  static constexpr auto infer = infer_matmul;
};

template <ort::ElementType y>
struct GatherNBits {
  using Kernel = CudaGather;
  static constexpr const char* name = "GatherNBits";
  static constexpr const char* provider = kProvider;
  static constexpr std::array<Parameter, 4> inputs = {
      {{ort::kUint8}, {ort::kUndefined}, {ort::kUint8, ort::kOptional}, {ort::kUndefined}}};
  static constexpr std::array<Parameter, 1> outputs = {{{y}}};
  static constexpr auto infer = infer_gather;
};

constexpr ort::OrtCustomOp kMatMuls[] = {make_op<MatMulNBits<ort::kFloat>>(), make_op<MatMulNBits<ort::kFloat16>>(),
                                         make_op<MatMulNBits<ort::kBFloat16>>()};
constexpr ort::OrtCustomOp kGathers[] = {make_op<GatherNBits<ort::kFloat>>(), make_op<GatherNBits<ort::kFloat16>>(),
                                         make_op<GatherNBits<ort::kBFloat16>>()};

}  // namespace

constexpr Ops kCudaMatMulNBits = {kMatMuls, 3};
constexpr Ops kCudaGatherNBits = {kGathers, 3};

}  // namespace onnxq
