// The instructions that C++ has no word for, each wrapped once. Without nvcc the same names come from emulate.h, so
// that the kernels' own source runs, and is tested, on a processor.
#pragma once

#include "layout.h"

#if !defined(__CUDACC__)
#include "emulate.h"
#else

#define ONNXQ_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define ONNXQ_DEVICE __device__ __forceinline__
#define ONNXQ_ARGUMENT const __grid_constant__  // stays in constant memory, also where its address is taken

namespace onnxq {
namespace {

struct alignas(16) Vector {
  uint32_t word[4];
};

ONNXQ_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
ONNXQ_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
ONNXQ_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
ONNXQ_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
ONNXQ_DEVICE int blocks_x() { return static_cast<int>(gridDim.x); }
ONNXQ_DEVICE int blocks_y() { return static_cast<int>(gridDim.y); }
ONNXQ_DEVICE void synchronize_block() { __syncthreads(); }
ONNXQ_DEVICE char* shared_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

// (a & mask) | magic in one instruction: the compiler makes two of it when both are constants, as only one of them fits
// into the instruction and it does not keep the other in a register.
template <uint32_t mask>
ONNXQ_DEVICE uint32_t and_or(uint32_t a, uint32_t magic) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "n"(mask), "r"(magic));
  return d;
}
// A value that is kept in its register instead of being computed again wherever it is used.
template <class T>
ONNXQ_DEVICE T keep(T value) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

// Four bytes of {b, a}, chosen by the nibbles of `selector`.
ONNXQ_DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
ONNXQ_DEVICE float as_float(uint32_t bits) { return __uint_as_float(bits); }
ONNXQ_DEVICE uint32_t as_bits(float value) { return __float_as_uint(value); }

// Arithmetic on two halves of a register at once; exact here, as all operands are small integers.
ONNXQ_DEVICE uint32_t add_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
ONNXQ_DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// sm_80 has no addition of bfloat16, but this.
ONNXQ_DEVICE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
ONNXQ_DEVICE uint32_t pack_f16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
ONNXQ_DEVICE uint32_t pack_bf16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
ONNXQ_DEVICE float from_f16(uint32_t bits) {
  float d;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(d) : "r"(bits));
  return d;
}

// A weight is read once: it goes past L1 and leaves it to the activations.
ONNXQ_DEVICE Vector load_stream(const void* address) {
  Vector v;
  asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
      : "l"(address));
  return v;
}

ONNXQ_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Copies of which no register waits: `bytes` of `size` from global to shared memory, the rest filled with zeros.
template <int size>
ONNXQ_DEVICE void copy_async(void* to, const void* from, int bytes) {
  if constexpr (size == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(size),
                 "r"(bytes)
                 : "memory");
  }
}
ONNXQ_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups>  // all but the newest `groups` have arrived, for the thread that asks
ONNXQ_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// d += a · b with float32 accumulators: 16 rows of weights, 8 of activations, 16 k.
ONNXQ_DEVICE void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
ONNXQ_DEVICE void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

ONNXQ_DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

// For the block that comes last to add up what the others left in global memory.
ONNXQ_DEVICE void fence() { __threadfence(); }
ONNXQ_DEVICE uint32_t increment(uint32_t* counter) { return atomicAdd(counter, 1u); }
ONNXQ_DEVICE float load_fresh(const float* p) { return __ldcg(p); }

}  // namespace
}  // namespace onnxq
#endif
