// What the host side asks of the device: launches, memory in the order of a stream, its sizes. Errors are sentences; an
// empty one is none. With nvcc it is the CUDA runtime, else the emulation of emulate.h.
#pragma once

#include <atomic>

#include "device.h"

#if defined(__CUDACC__)
#include <cuda_runtime_api.h>
#endif

namespace onnxq {

struct Device {
  int multiprocessors, shared_bytes;  // of shared memory a block can ask for
};

struct Grid {
  int x, y, z, threads;
  size_t shared_bytes;
};

#if defined(__CUDACC__)

inline Error error_of(cudaError_t code, const char* doing) {
  if (code == cudaSuccess) {
    return {};
  }
  cudaGetLastError();  // not to be taken for the error of whoever asks next
  return std::string("CUDA failed ") + doing + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ").";
}

Error current_device(Device* device);
Error allocate(void** memory, size_t bytes, Stream stream);
Error release(void* memory, Stream stream);
Error set_to_zero(void* memory, size_t bytes, Stream stream);

// Lets a kernel have all shared memory there is; it also loads the kernel, which must not first happen while a graph is
// being captured. Once for each device and kernel.
template <class Arguments>
Error prepare(void (*kernel)(Arguments), std::atomic<uint64_t>* done, const Device& device) {
  int number = 0;
  cudaError_t code = cudaGetDevice(&number);
  const uint64_t bit = uint64_t{1} << (number & 63);
  if (code == cudaSuccess && !(done->load(std::memory_order_acquire) & bit)) {
    code = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                device.shared_bytes);
    if (code == cudaSuccess) {
      done->fetch_or(bit, std::memory_order_release);
    }
  }
  return error_of(code, "loading a kernel of onnxq");
}

template <class Arguments>
Error start(void (*kernel)(Arguments), const Grid& grid, Stream stream, const Arguments& arguments) {
  void* pointers[] = {const_cast<Arguments*>(&arguments)};
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  return error_of(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, dim3(static_cast<unsigned>(grid.threads)),
                       pointers, grid.shared_bytes, static_cast<cudaStream_t>(stream)),
      "starting a kernel of onnxq");
}

#else

inline Error current_device(Device* device) {
  *device = emulation::device_bytes ? Device{emulation::multiprocessors, emulation::device_bytes} : Device{4, 99 << 10};
  return {};
}
inline Error allocate(void** memory, size_t bytes, Stream) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xff, bytes);
  return {};
}
inline Error release(void* memory, Stream) {
  std::free(memory);
  return {};
}
inline Error set_to_zero(void* memory, size_t bytes, Stream) {
  std::memset(memory, 0, bytes);
  return {};
}
template <class Arguments>
Error prepare(void (*)(Arguments), std::atomic<uint64_t>*, const Device&) {
  return {};
}
template <class Arguments>
Error start(void (*kernel)(Arguments), const Grid& grid, Stream, const Arguments& arguments) {
  emulation::launch(kernel, grid.x, grid.y, grid.z, grid.threads, grid.shared_bytes, arguments);
  return {};
}

#endif

// Starts `kernel`, after having made it ready for this device.
template <auto kernel, class Arguments>
Error launch(const Device& device, const Grid& grid, Stream stream, const Arguments& arguments,
             bool only_prepare = false) {
  static std::atomic<uint64_t> done{0};
  if (Error error = prepare<Arguments>(kernel, &done, device); !error.empty() || only_prepare) {
    return error;
  }
  return start<Arguments>(kernel, grid, stream, arguments);
}

}  // namespace onnxq
