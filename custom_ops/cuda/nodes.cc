// The two operators on onnxruntime's CUDA provider: what a node says, checked, handed to matmul.h on the provider's
// stream.
//
// All inputs are taken where the provider puts them, in the memory of the GPU, weights too: the kernels read the tiles
// as they lie (layout.h), so an initializer is uploaded once by onnxruntime and no second copy of it is made. A weight
// that other nodes compute, as the scales of nf4_dq where the optimizer is off, is read in the same way.

#include "../abi/nodes.h"
#include "../abi/ops.h"
#include "matmul.h"

namespace onnxq {
namespace {

constexpr const char* kProvider = "CUDAExecutionProvider";
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
  static constexpr const char* provider = kProvider;

  CudaMatMul(const ort::OrtApi* api, const ort::OrtKernelInfo* info) : api_(api), node_(api, info) {}

  void compute(ort::OrtKernelContext* context) {
    const Tensor x = input(api_, context, kProductX), bias = input(api_, context, kProductBias);
    const std::vector<int64_t> shape = product_shape(node_, x);
    check_bias(node_, bias);
    const WeightTensors w{node_, input(api_, context, kProductWeight), input(api_, context, kProductScales),
                          input(api_, context, kProductZeroPoints)};
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
  static constexpr const char* provider = kProvider;

  CudaGather(const ort::OrtApi* api, const ort::OrtKernelInfo* info)
      : api_(api), node_(api, info), dtype_(gathered_type(api, info, node_)) {
    check_launched(node_, prepare_gather());
  }

  void compute(ort::OrtKernelContext* context) {
    const Tensor indices = input(api_, context, kGatherIndices);
    const std::vector<int64_t> shape = gathered_shape(node_, indices);
    const WeightTensors w{node_, input(api_, context, kGatherWeight), input(api_, context, kGatherScales),
                          input(api_, context, kGatherZeroPoints)};
    const Tensor y = output(api_, context, 0, shape);
    check_gathered(node_, dtype_, y);
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
  ort::ElementType dtype_;
};

template <ort::ElementType x>
constexpr ort::OrtCustomOp kMatMul = make_op<MatMulNBits<TypedCudaMatMul<x>, x>>();
template <ort::ElementType y>
constexpr ort::OrtCustomOp kGather = make_op<GatherNBits<CudaGather, y>>();

constexpr ort::OrtCustomOp kMatMuls[] = {kMatMul<ort::kFloat>, kMatMul<ort::kFloat16>, kMatMul<ort::kBFloat16>};
constexpr ort::OrtCustomOp kGathers[] = {kGather<ort::kFloat>, kGather<ort::kFloat16>, kGather<ort::kBFloat16>};

}  // namespace

constexpr Ops kCudaMatMulNBits = {kMatMuls, 3};
constexpr Ops kCudaGatherNBits = {kGathers, 3};

}  // namespace onnxq
