// The little of the CUDA runtime that tests and benchmarks need, for ctypes: no other library has to be found. Returns
// are as in c_abi.cu. In the emulation, memory is the processor's and nothing is ever pending.
#include "../base/export.h"
#include "c_abi.h"
#include "platform.h"

using onnxq::Error;
using onnxq::kept;

#if defined(__CUDACC__)

namespace {

const char* result(cudaError_t code, const char* doing) { return kept(onnxq::error_of(code, doing)); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

// How many GPUs there are; none without a driver.
ONNXQ_EXPORT int32_t onnxq_cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
ONNXQ_EXPORT const char* onnxq_cuda_describe(char* name, int32_t room, int64_t* numbers) {
  cudaDeviceProp p{};
  const cudaError_t code = cudaGetDeviceProperties(&p, 0);
  std::snprintf(name, static_cast<size_t>(room), "%s", p.name);
  numbers[0] = p.multiProcessorCount;
  numbers[1] = p.l2CacheSize;
  numbers[2] = p.major * 10 + p.minor;
  return result(code, "describing the GPU");
}
ONNXQ_EXPORT const char* onnxq_cuda_malloc(void** memory, int64_t bytes) {
  return result(cudaMalloc(memory, static_cast<size_t>(bytes)), "asking for memory");
}
ONNXQ_EXPORT const char* onnxq_cuda_free(void* memory) { return result(cudaFree(memory), "giving memory back"); }
ONNXQ_EXPORT const char* onnxq_cuda_copy(void* to, const void* from, int64_t bytes, void* stream) {
  return result(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)), "copying");
}
ONNXQ_EXPORT const char* onnxq_cuda_fill(void* to, int32_t byte, int64_t bytes, void* stream) {
  return result(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_of(stream)), "filling memory");
}
ONNXQ_EXPORT const char* onnxq_cuda_stream(void** stream) {
  return result(cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking),
                "making a stream");
}
ONNXQ_EXPORT const char* onnxq_cuda_synchronize(void* stream) {
  return result(cudaStreamSynchronize(stream_of(stream)), "computing");
}
ONNXQ_EXPORT const char* onnxq_cuda_event(void** event) {
  return result(cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event)), "making an event");
}
ONNXQ_EXPORT const char* onnxq_cuda_record(void* event, void* stream) {
  return result(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)), "recording an event");
}
ONNXQ_EXPORT const char* onnxq_cuda_elapsed(float* milliseconds, void* first, void* last) {
  const cudaError_t code = cudaEventSynchronize(static_cast<cudaEvent_t>(last));
  return result(
      code ? code : cudaEventElapsedTime(milliseconds, static_cast<cudaEvent_t>(first), static_cast<cudaEvent_t>(last)),
      "computing");
}
// What is started on `stream` between these two becomes a graph.
ONNXQ_EXPORT const char* onnxq_cuda_capture(void* stream) {
  return result(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "beginning a graph");
}
ONNXQ_EXPORT const char* onnxq_cuda_captured(void* stream, void** graph) {
  cudaGraph_t made = nullptr;
  cudaError_t code = cudaStreamEndCapture(stream_of(stream), &made);
  if (code == cudaSuccess) {
    code = cudaGraphInstantiateWithFlags(reinterpret_cast<cudaGraphExec_t*>(graph), made, 0);
    cudaGraphDestroy(made);
  }
  return result(code, "ending a graph");
}
ONNXQ_EXPORT const char* onnxq_cuda_replay(void* graph, void* stream) {
  return result(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "replaying a graph");
}
ONNXQ_EXPORT const char* onnxq_cuda_free_graph(void* graph) {
  return result(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)), "giving a graph back");
}

#else

ONNXQ_EXPORT int32_t onnxq_cuda_devices() { return 1; }
ONNXQ_EXPORT const char* onnxq_cuda_malloc(void** memory, int64_t bytes) {
  return kept(onnxq::allocate(memory, static_cast<size_t>(bytes), nullptr));
}
ONNXQ_EXPORT const char* onnxq_cuda_free(void* memory) { return kept(onnxq::release(memory, nullptr)); }
ONNXQ_EXPORT const char* onnxq_cuda_copy(void* to, const void* from, int64_t bytes, void*) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return nullptr;
}
ONNXQ_EXPORT const char* onnxq_cuda_fill(void* to, int32_t byte, int64_t bytes, void*) {
  std::memset(to, byte, static_cast<size_t>(bytes));
  return nullptr;
}
ONNXQ_EXPORT const char* onnxq_cuda_synchronize(void*) { return nullptr; }

// A graph is run while it is captured, and has nothing left to do afterwards: times mean nothing here.
ONNXQ_EXPORT const char* onnxq_cuda_describe(char* name, int32_t room, int64_t* numbers) {
  std::snprintf(name, static_cast<size_t>(room), "emulation");
  std::fill(numbers, numbers + 3, 4);
  return nullptr;
}
ONNXQ_EXPORT const char* onnxq_cuda_stream(void** stream) {
  *stream = nullptr;
  return nullptr;
}
ONNXQ_EXPORT const char* onnxq_cuda_event(void** event) {
  *event = event;
  return nullptr;
}
ONNXQ_EXPORT const char* onnxq_cuda_record(void*, void*) { return nullptr; }
ONNXQ_EXPORT const char* onnxq_cuda_elapsed(float* milliseconds, void*, void*) {
  *milliseconds = 1.0f;
  return nullptr;
}
ONNXQ_EXPORT const char* onnxq_cuda_capture(void*) { return nullptr; }
ONNXQ_EXPORT const char* onnxq_cuda_captured(void*, void** graph) {
  *graph = graph;
  return nullptr;
}
ONNXQ_EXPORT const char* onnxq_cuda_replay(void*, void*) { return nullptr; }
ONNXQ_EXPORT const char* onnxq_cuda_free_graph(void*) { return nullptr; }

#endif
