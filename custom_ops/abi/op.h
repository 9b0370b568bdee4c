// Between onnxruntime's C interface and operators written as classes: errors are exceptions inside, statuses outside.

#ifndef ONNXQ_OP_H_
#define ONNXQ_OP_H_

#include <array>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace onnxq {

// A node or a tensor that cannot be computed; `what()` is one sentence for the user.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Turns a status into an exception, and releases it.
inline void check(const ort::OrtApi* api, ort::OrtStatus* status) {
  if (status) {
    const std::string message = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw Refusal(message);
  }
}

// Runs `body`; no exception leaves, because onnxruntime may have been built by another compiler.
template <typename Body>
ort::OrtStatus* guarded(const ort::OrtApi* api, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Refusal& refusal) {
    return api->CreateStatus(ort::kInvalidArgument, refusal.what());
  } catch (const std::exception& error) {
    return api->CreateStatus(ort::kFail, error.what());
  } catch (...) {
    return api->CreateStatus(ort::kFail, "onnxq failed for an unknown reason");
  }
}

struct Tensor {
  ort::ElementType type = ort::kUndefined;
  std::vector<int64_t> shape;
  void* data = nullptr;

  int64_t size() const {
    int64_t product = 1;
    for (const int64_t dim : shape) {
      product *= dim;
    }
    return product;
  }
};

// Bytes of an element of the types that operators here read; 1 for all others.
constexpr size_t element_bytes(ort::ElementType type) {
  return type == ort::kInt64                                        ? 8
         : type == ort::kFloat || type == ort::kInt32               ? 4
         : type == ort::kFloat16 || type == ort::kBFloat16          ? 2
                                                                    : 1;
}

// Whether elements lie at multiples of their size. onnxruntime sees to it, but for what others own: a tensor that begins
// at an odd byte of an external data file, or that a program made of memory of its own.
inline bool is_aligned(const Tensor& tensor) {
  return (reinterpret_cast<uintptr_t>(tensor.data) & (element_bytes(tensor.type) - 1)) == 0;
}

// Whether the runtime shows shapes where they lie: from 1.24 on. Set before anything else is called, for the process.
inline bool shows_shapes = false;

// Null `value`: an optional input that is not there, a tensor of type kUndefined.
inline Tensor read(const ort::OrtApi* api, const ort::OrtValue* value) {
  Tensor tensor;
  if (!value) {
    return tensor;
  }
  size_t rank = 0;
  if (shows_shapes) {  // the other way makes an object and takes a third of a microsecond
    const int64_t* dims = nullptr;
    check(api, api->GetTensorElementTypeAndShapeDataReference(value, &tensor.type, &dims, &rank));
    tensor.shape.assign(dims, dims + rank);
  } else {
    ort::OrtTensorTypeAndShapeInfo* made = nullptr;
    check(api, api->GetTensorTypeAndShape(value, &made));
    const std::unique_ptr<ort::OrtTensorTypeAndShapeInfo, decltype(api->ReleaseTensorTypeAndShapeInfo)> info(
        made, api->ReleaseTensorTypeAndShapeInfo);
    check(api, api->GetTensorElementType(made, &tensor.type));
    check(api, api->GetDimensionsCount(made, &rank));
    tensor.shape.resize(rank);
    check(api, api->GetDimensions(made, tensor.shape.data(), rank));
  }
  // There is no function that promises not to write; inputs are only read.
  check(api, api->GetTensorMutableData(const_cast<ort::OrtValue*>(value), &tensor.data));
  return tensor;
}

// Input `index` of a node that has it.
inline Tensor given_input(const ort::OrtApi* api, const ort::OrtKernelContext* context, size_t index) {
  const ort::OrtValue* value = nullptr;
  check(api, api->KernelContext_GetInput(context, index, &value));
  return read(api, value);
}

inline Tensor input(const ort::OrtApi* api, const ort::OrtKernelContext* context, size_t index) {
  size_t count = 0;
  check(api, api->KernelContext_GetInputCount(context, &count));
  return index < count ? given_input(api, context, index) : Tensor{};
}

inline Tensor output(const ort::OrtApi* api, ort::OrtKernelContext* context, size_t index,
                     const std::vector<int64_t>& shape) {
  ort::OrtValue* value = nullptr;
  check(api, api->KernelContext_GetOutput(context, index, shape.data(), shape.size(), &value));
  return read(api, value);
}

// The same where its type is that of an input: only where its elements begin.
inline void* output_data(const ort::OrtApi* api, ort::OrtKernelContext* context, size_t index,
                         const std::vector<int64_t>& shape) {
  ort::OrtValue* value = nullptr;
  void* data = nullptr;
  check(api, api->KernelContext_GetOutput(context, index, shape.data(), shape.size(), &value));
  check(api, api->GetTensorMutableData(value, &data));
  return data;
}

// An input or output of an operator. kUndefined: of any type; the operator checks it.
struct Parameter {
  ort::ElementType type = ort::kUndefined;
  ort::Characteristic characteristic = ort::kRequired;
  ort::MemType memory = ort::kDefaultMemory;
};

// An operator with the interface of the runtime it is registered at, which its shape inference is not given.
struct Op : ort::OrtCustomOp {
  const ort::OrtApi* api;
};

// What onnxruntime is told about an operator. T gives `name`, `provider`, arrays of Parameter `inputs` and `outputs`, a
// class `Kernel` with a constructor (api, info) and `void compute(OrtKernelContext*)`, and `void infer(api, context)` for
// the shapes of outputs (OrtShapeInferContext*). All are free to throw.
template <typename T>
constexpr ort::OrtCustomOp make_op() {
  using namespace ort;
  // onnxruntime says nothing about itself when it computes, so a kernel is kept together with its interface.
  struct Instance {
    const OrtApi* api;
    typename T::Kernel kernel;
  };
  OrtCustomOp op{};
  op.version = kApiVersion;
  op.GetName = [](const OrtCustomOp*) { return T::name; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return T::provider; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return T::inputs.size(); };
  op.GetInputType = [](const OrtCustomOp*, size_t i) { return T::inputs[i].type; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t i) { return T::inputs[i].characteristic; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t i) { return T::inputs[i].memory; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return T::outputs.size(); };
  op.GetOutputType = [](const OrtCustomOp*, size_t i) { return T::outputs[i].type; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) { return T::outputs[i].characteristic; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.GetStartVersion = op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** made) {
    return guarded(api, [&] { *made = new Instance{api, typename T::Kernel(api, info)}; });
  };
  op.KernelComputeV2 = [](void* instance, OrtKernelContext* context) {
    const auto self = static_cast<Instance*>(instance);
    return guarded(self->api, [&] { self->kernel.compute(context); });
  };
  op.InferOutputShapeFn = [](const OrtCustomOp* self, OrtShapeInferContext* context) {
    const OrtApi* const api = static_cast<const Op*>(self)->api;
    // Nobody reads the status: a node that is wrong is refused when its kernel is made.
    if (OrtStatus* const status = guarded(api, [&] { T::infer(api, context); })) {
      api->ReleaseStatus(status);
    }
    return static_cast<OrtStatus*>(nullptr);
  };
  op.KernelDestroy = [](void* instance) { delete static_cast<Instance*>(instance); };
  return op;
}

// The operators of one name, which differ in types or provider.
struct Ops {
  const ort::OrtCustomOp* first;
  size_t count;
  bool (*here)() = nullptr;  // whether this processor shall have them; null: every one
};

}  // namespace onnxq

#endif  // ONNXQ_OP_H_
