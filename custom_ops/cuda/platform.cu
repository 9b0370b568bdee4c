#include "platform.h"

#include <mutex>

namespace onnxq {
namespace {

constexpr int kDevices = 64;

// Memory that is asked for in the order of a stream, and kept by the pool between calls. Legal while a graph is
// captured, where it becomes a node of the graph; the pool itself is made when the first kernel is created.
Error pool_of_current_device(cudaMemPool_t* pool) {
  static std::mutex mutex;
  static cudaMemPool_t pools[kDevices] = {};
  int number = 0;
  if (Error error = error_of(cudaGetDevice(&number), "naming the current GPU"); !error.empty()) {
    return error;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  cudaMemPool_t& mine = pools[number % kDevices];
  if (!mine) {
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = number;
    cudaMemPool_t made = nullptr;
    cudaError_t code = cudaMemPoolCreate(&made, &props);
    uint64_t keep = UINT64_MAX;
    if (code == cudaSuccess) {
      code = cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &keep);
    }
    if (code != cudaSuccess) {
      return error_of(code, "making a pool of memory");
    }
    mine = made;
  }
  *pool = mine;
  return {};
}

}  // namespace

Error current_device(Device* device) {
  static std::mutex mutex;
  static Device devices[kDevices] = {};
  int number = 0;
  if (Error error = error_of(cudaGetDevice(&number), "naming the current GPU"); !error.empty()) {
    return error;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  Device& mine = devices[number % kDevices];
  if (mine.multiprocessors == 0) {
    int major = 0, minor = 0, count = 0, shared = 0;
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
    code = code ? code : cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, number);
    code = code ? code : cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
    code = code ? code : cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, number);
    if (code != cudaSuccess) {
      return error_of(code, "describing the GPU");
    }
    if (major < 8) {
      return "onnxq's GPU kernels need compute capability 8.0 or later, and this GPU has " + std::to_string(major) +
             "." + std::to_string(minor) + "; run on the CPU.";
    }
    mine = {count, shared};
  }
  *device = mine;
  cudaMemPool_t pool;
  return pool_of_current_device(&pool);
}

Error allocate(void** memory, size_t bytes, Stream stream) {
  cudaMemPool_t pool = nullptr;
  if (Error error = pool_of_current_device(&pool); !error.empty()) {
    return error;
  }
  const cudaError_t code = cudaMallocFromPoolAsync(memory, bytes, pool, static_cast<cudaStream_t>(stream));
  return code == cudaSuccess ? Error() : error_of(code, ("asking for " + std::to_string(bytes) + " bytes").c_str());
}

Error release(void* memory, Stream stream) {
  return error_of(cudaFreeAsync(memory, static_cast<cudaStream_t>(stream)), "giving memory back");
}

Error set_to_zero(void* memory, size_t bytes, Stream stream) {
  return error_of(cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)), "clearing memory");
}

}  // namespace onnxq
