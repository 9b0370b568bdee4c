// Compiles only where custom_ops/abi/ort_abi.h says what onnxruntime's own header says.

#include <onnxruntime_c_api.h>

#include <cstddef>
#include <type_traits>

#include "abi/ort_abi.h"

using namespace onnxq;

// As many parameters, and each as large and as much a pointer: all that matters to a call.
template <typename A, typename B>
constexpr bool same_value() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
  }
}

template <typename R, typename... A, typename S, typename... B>
constexpr bool same_call(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B)) {
    return same_value<R, S>() && (same_value<A, B>() && ...);
  } else {
    return false;
  }
}

#define CHECK_SLOT(name, number)                                                                             \
  static_assert(offsetof(ort::OrtApi, name) == offsetof(::OrtApi, name), "OrtApi::" #name " lies elsewhere"); \
  static_assert(same_call(decltype(ort::OrtApi::name){}, decltype(::OrtApi::name){}), "OrtApi::" #name " is called otherwise");
ONNXQ_ORT_SLOTS(CHECK_SLOT)

#define CHECK_MEMBER(name)                                                                                         \
  static_assert(offsetof(ort::OrtCustomOp, name) == offsetof(::OrtCustomOp, name), "OrtCustomOp::" #name);         \
  static_assert(same_call(decltype(ort::OrtCustomOp::name){}, decltype(::OrtCustomOp::name){}), "OrtCustomOp::" #name);
CHECK_MEMBER(CreateKernel)
CHECK_MEMBER(GetName)
CHECK_MEMBER(GetExecutionProviderType)
CHECK_MEMBER(GetInputType)
CHECK_MEMBER(GetInputTypeCount)
CHECK_MEMBER(GetOutputType)
CHECK_MEMBER(GetOutputTypeCount)
CHECK_MEMBER(KernelCompute)
CHECK_MEMBER(KernelDestroy)
CHECK_MEMBER(GetInputCharacteristic)
CHECK_MEMBER(GetOutputCharacteristic)
CHECK_MEMBER(GetInputMemoryType)
CHECK_MEMBER(GetVariadicInputMinArity)
CHECK_MEMBER(GetVariadicInputHomogeneity)
CHECK_MEMBER(GetVariadicOutputMinArity)
CHECK_MEMBER(GetVariadicOutputHomogeneity)
CHECK_MEMBER(CreateKernelV2)
CHECK_MEMBER(KernelComputeV2)
CHECK_MEMBER(InferOutputShapeFn)
CHECK_MEMBER(GetStartVersion)
CHECK_MEMBER(GetEndVersion)
static_assert(offsetof(ort::OrtApiBase, GetVersionString) == offsetof(::OrtApiBase, GetVersionString));

#define CHECK_NUMBER(ours, theirs) static_assert(static_cast<int>(ort::ours) == static_cast<int>(theirs), #theirs);
CHECK_NUMBER(kFail, ORT_FAIL)
CHECK_NUMBER(kInvalidArgument, ORT_INVALID_ARGUMENT)
CHECK_NUMBER(kNotImplemented, ORT_NOT_IMPLEMENTED)
CHECK_NUMBER(kUndefined, ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED)
CHECK_NUMBER(kFloat, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
CHECK_NUMBER(kUint8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8)
CHECK_NUMBER(kInt32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
CHECK_NUMBER(kInt64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64)
CHECK_NUMBER(kFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
CHECK_NUMBER(kBFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16)
CHECK_NUMBER(kArena, OrtArenaAllocator)
CHECK_NUMBER(kCpuInput, OrtMemTypeCPUInput)
CHECK_NUMBER(kDefaultMemory, OrtMemTypeDefault)
CHECK_NUMBER(kRequired, INPUT_OUTPUT_REQUIRED)
CHECK_NUMBER(kOptional, INPUT_OUTPUT_OPTIONAL)
CHECK_NUMBER(kAttributeInt, ORT_OP_ATTR_INT)
