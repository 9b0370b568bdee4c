// The slots of onnxruntime's C ABI that are used here. No Python package ships its headers, and its authors promise that
// the order never changes ("NEVER remove or rearrange the members": onnxruntime_c_api.cc), so they are declared by hand;
// tests/native/test_ort_abi.py compares them with official headers where those are installed.
//
// Version 17 of the interface is all that is asked for, so that any onnxruntime from 1.17 on loads the library. Of what later
// ones have, one function is called where the runtime's own version says that it is there.

#ifndef ONNXQ_ORT_ABI_H_
#define ONNXQ_ORT_ABI_H_

#include <stddef.h>
#include <stdint.h>

namespace onnxq {
namespace ort {

constexpr uint32_t kApiVersion = 17;

struct OrtStatus;
struct OrtValue;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtTensorTypeAndShapeInfo;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtCustomOp;
struct OrtOpAttr;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9 };
enum ElementType : int {
  kUndefined = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kFloat16 = 10,
  kDouble = 11,
  kBFloat16 = 16,
};
enum AllocatorType : int { kArena = 1 };
enum MemType : int { kCpuInput = -2, kDefaultMemory = 0 };
enum Characteristic : int { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum AttributeType : int { kAttributeInt = 1 };

struct OrtApiBase {
  const struct OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// Each function but the Release… returns null, or a status that the caller releases.
struct OrtApi {
  OrtStatus* (*CreateStatus)(ErrorCode code, const char* message);
  ErrorCode (*GetErrorCode)(const OrtStatus* status);
  const char* (*GetErrorMessage)(const OrtStatus* status);
  void* from_3[23];
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  void* from_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);
  void* from_52[5];
  OrtStatus* (*CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo** out);
  OrtStatus* (*SetTensorElementType)(OrtTensorTypeAndShapeInfo* info, ElementType type);
  OrtStatus* (*SetDimensions)(OrtTensorTypeAndShapeInfo* info, const int64_t* dims, size_t rank);
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info, ElementType* out);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t rank);
  OrtStatus* (*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo* info, const char** dims, size_t rank);
  void* from_64[1];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);
  void* from_66[3];
  OrtStatus* (*CreateCpuMemoryInfo)(AllocatorType type, MemType memory, OrtMemoryInfo** out);
  void* from_70[5];
  OrtStatus* (*AllocatorAlloc)(OrtAllocator* allocator, size_t bytes, void** out);
  OrtStatus* (*AllocatorFree)(OrtAllocator* allocator, void* memory);
  void* from_77[8];
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name, float* out);
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* out);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo* info, const char* name, char* out, size_t* size);
  OrtStatus* (*KernelContext_GetInputCount)(const OrtKernelContext* context, size_t* out);
  void* from_89[1];
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, size_t index, const OrtValue** out);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank,
                                        OrtValue** out);
  void* from_92[1];
  void (*ReleaseStatus)(OrtStatus* status);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo* info);
  void* from_95[4];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);
  void* from_100[32];
  void (*ReleaseAllocator)(OrtAllocator* allocator);
  void* from_133[60];
  OrtStatus* (*KernelContext_GetGPUComputeStream)(const OrtKernelContext* context, void** out);
  void* from_194[36];
  OrtStatus* (*KernelInfo_GetInputCount)(const OrtKernelInfo* info, size_t* out);
  OrtStatus* (*KernelInfo_GetOutputCount)(const OrtKernelInfo* info, size_t* out);
  OrtStatus* (*KernelInfo_GetInputName)(const OrtKernelInfo* info, size_t index, char* out, size_t* size);
  void* from_233[11];
  OrtStatus* (*KernelInfo_GetNodeName)(const OrtKernelInfo* info, char* out, size_t* size);
  void* from_245[4];
  OrtStatus* (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo* info, size_t index, int* constant,
                                                  const OrtValue** out);
  void* from_250[3];
  OrtStatus* (*KernelContext_GetAllocator)(const OrtKernelContext* context, const OrtMemoryInfo* info,
                                           OrtAllocator** out);
  void* from_254[11];
  OrtStatus* (*KernelContext_GetResource)(const OrtKernelContext* context, int version, int id, void** out);
  void* from_266[1];
  OrtStatus* (*ShapeInferContext_GetInputCount)(const OrtShapeInferContext* context, size_t* out);
  OrtStatus* (*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext* context, size_t index,
                                                    OrtTensorTypeAndShapeInfo** out);  // stays the context's
  OrtStatus* (*ShapeInferContext_GetAttribute)(const OrtShapeInferContext* context, const char* name,
                                               const OrtOpAttr** out);
  OrtStatus* (*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext* context, size_t index,
                                                     const OrtTensorTypeAndShapeInfo* info);
  OrtStatus* (*SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo* info, const char** dims, size_t rank);
  OrtStatus* (*ReadOpAttr)(const OrtOpAttr* attribute, AttributeType type, void* data, size_t size, size_t* out);
  void* from_273[1];
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context, void (*run)(void* data, size_t task),
                                          size_t tasks, size_t batches, void* data);
  void* from_275[139];
  // From version 24 of the interface on, which whoever calls it has to know: the table of earlier ones ends before.
  OrtStatus* (*GetTensorElementTypeAndShapeDataReference)(const OrtValue* value, ElementType* type, const int64_t** dims,
                                                          size_t* rank);
};

// An operator as onnxruntime sees it. `version` says how much of the struct it may read; what came later is left out.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info);
  const char* (*GetName)(const OrtCustomOp* op);
  const char* (*GetExecutionProviderType)(const OrtCustomOp* op);
  ElementType (*GetInputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp* op);
  ElementType (*GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp* op);
  void (*KernelCompute)(void* kernel, OrtKernelContext* context);
  void (*KernelDestroy)(void* kernel);
  Characteristic (*GetInputCharacteristic)(const OrtCustomOp* op, size_t index);
  Characteristic (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  MemType (*GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context);
  int (*GetStartVersion)(const OrtCustomOp* op);
  int (*GetEndVersion)(const OrtCustomOp* op);
};

// Slot numbers as published; the test repeats the comparison with the headers.
#define ONNXQ_ORT_SLOTS(SLOT)                     \
  SLOT(CreateStatus, 0)                           \
  SLOT(GetErrorCode, 1)                           \
  SLOT(GetErrorMessage, 2)                        \
  SLOT(CreateCustomOpDomain, 26)                  \
  SLOT(CustomOpDomain_Add, 27)                    \
  SLOT(AddCustomOpDomain, 28)                     \
  SLOT(GetTensorMutableData, 51)                  \
  SLOT(CreateTensorTypeAndShapeInfo, 57)          \
  SLOT(SetTensorElementType, 58)                  \
  SLOT(SetDimensions, 59)                         \
  SLOT(GetTensorElementType, 60)                  \
  SLOT(GetDimensionsCount, 61)                    \
  SLOT(GetDimensions, 62)                         \
  SLOT(GetSymbolicDimensions, 63)                 \
  SLOT(GetTensorTypeAndShape, 65)                 \
  SLOT(CreateCpuMemoryInfo, 69)                   \
  SLOT(AllocatorAlloc, 75)                        \
  SLOT(AllocatorFree, 76)                         \
  SLOT(KernelInfoGetAttribute_float, 85)          \
  SLOT(KernelInfoGetAttribute_int64, 86)          \
  SLOT(KernelInfoGetAttribute_string, 87)         \
  SLOT(KernelContext_GetInputCount, 88)           \
  SLOT(KernelContext_GetInput, 90)                \
  SLOT(KernelContext_GetOutput, 91)               \
  SLOT(ReleaseStatus, 93)                         \
  SLOT(ReleaseMemoryInfo, 94)                     \
  SLOT(ReleaseTensorTypeAndShapeInfo, 99)         \
  SLOT(ReleaseAllocator, 132)                     \
  SLOT(KernelContext_GetGPUComputeStream, 193)    \
  SLOT(KernelInfo_GetInputCount, 230)             \
  SLOT(KernelInfo_GetOutputCount, 231)            \
  SLOT(KernelInfo_GetInputName, 232)              \
  SLOT(KernelInfo_GetNodeName, 244)               \
  SLOT(KernelInfoGetConstantInput_tensor, 249)    \
  SLOT(KernelContext_GetAllocator, 253)           \
  SLOT(KernelContext_GetResource, 265)            \
  SLOT(ShapeInferContext_GetInputCount, 267)      \
  SLOT(ShapeInferContext_GetInputTypeShape, 268)  \
  SLOT(ShapeInferContext_GetAttribute, 269)       \
  SLOT(ShapeInferContext_SetOutputTypeShape, 270) \
  SLOT(SetSymbolicDimensions, 271)                \
  SLOT(ReadOpAttr, 272)                           \
  SLOT(KernelContext_ParallelFor, 274)             \
  SLOT(GetTensorElementTypeAndShapeDataReference, 414)

#define ONNXQ_CHECK_SLOT(name, number) \
  static_assert(offsetof(OrtApi, name) == (number) * sizeof(void*), #name " is in the wrong slot");
ONNXQ_ORT_SLOTS(ONNXQ_CHECK_SLOT)
#undef ONNXQ_CHECK_SLOT
static_assert(offsetof(OrtCustomOp, GetEndVersion) == 21 * sizeof(void*), "a member of OrtCustomOp is missing");

}  // namespace ort
}  // namespace onnxq

#endif  // ONNXQ_ORT_ABI_H_
