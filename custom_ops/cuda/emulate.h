// The device of device.h, on a processor: one thread of a block is one fiber, and what a warp or a block does together
// is a point at which fibers wait for each other. It finds what would go wrong on a GPU and is hard to see there:
//
//   * asynchronous copies arrive as late as the program allows (or, in eager mode, at once), so that reading a stage
//   too
//     early, or filling it again too early, changes the answer; ordinary code between barriers runs one thread after
//     the other, forwards or backwards, so that a missing barrier does too;
//   * shared memory starts as NaN; lanes that do not meet at the same instruction, or at all, end the run;
//   * copies and vector loads that are not aligned, and tensor-core operands that are not the PTX manual's, likewise.
//
// Blocks run one after another on one thread, so nothing here shows how fast anything is.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "layout.h"

#define ONNXQ_KERNEL(threads, blocks) void
#define ONNXQ_DEVICE inline
#define ONNXQ_ARGUMENT const

namespace onnxq {

struct alignas(16) Vector {
  uint32_t word[4];
};

namespace emulation {

enum Mode : int32_t { kEager = 1, kBackwards = 2 };  // bits

struct Copy {
  char* to;
  const char* from;
  int size, bytes;
};

constexpr int kOperands = 6;
struct Lane {
  ucontext_t context;  // to begin with; later switches are jumps, which ask nothing of the system
  jmp_buf place;
  bool begun;
  bool done;
  int waiting;  // 0: no, else the kind of point
  std::vector<std::vector<Copy>> groups;
  uint32_t operand[2][kOperands];  // of this and the next point, so that one meeting a point is enough
  int parity;
};

struct Operands {  // of an mma, put together by the lane that comes first
  float a[16][16], b[16][8];
  int used;
};

struct Block {
  int x, y, z, blocks_x, blocks_y, mode;
  char* shared;
  size_t shared_bytes;
  std::vector<Lane> lanes;
  std::vector<Operands> warps;
  int running;
  jmp_buf scheduler;
};

inline Block* block = nullptr;
inline std::function<void()>* body = nullptr;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s (block %d %d %d, thread %d)\n", what, block->x, block->y, block->z,
               block->running);
  std::abort();
}
inline void check_alignment(const void* p, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) {
    fail("an address is not aligned");
  }
}
inline void check_shared(const void* p, size_t bytes) {
  const char* at = static_cast<const char*>(p);
  if (at < block->shared || at + bytes > block->shared + block->shared_bytes) {
    fail("an address is outside shared memory");
  }
}

inline Lane& lane() { return block->lanes[block->running]; }
inline void switch_out() {
  if (_setjmp(lane().place) == 0) {
    _longjmp(block->scheduler, 1);
  }
}
inline void switch_in() {
  if (_setjmp(block->scheduler) == 0) {
    if (lane().begun) {
      _longjmp(lane().place, 1);
    }
    lane().begun = true;
    setcontext(&lane().context);
  }
}
// All lanes of the warp (or threads of the block, for kind 1) go on together.
inline void meet(int kind) {
  lane().waiting = kind;
  switch_out();
}
// What lane `other` of the warp left at the point at which they have just met.
inline const uint32_t* operands_of(int other) {
  return block->lanes[block->running / 32 * 32 + other].operand[lane().parity ^ 1];
}
template <size_t count>
void meet_with(const uint32_t (&operands)[count]) {
  std::copy(operands, operands + count, lane().operand[lane().parity]);
  lane().parity ^= 1;
  meet(2);
}

inline void run_copy(const Copy& copy) {
  std::memset(copy.to, 0, static_cast<size_t>(copy.size));
  std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
}

// Releases those who all wait for the same thing; true if some were.
inline bool release(size_t first, size_t count, int least) {
  const int kind = block->lanes[first].waiting;
  for (size_t i = first; i < first + count; ++i) {
    if (block->lanes[i].done || block->lanes[i].waiting != kind || kind < least) {
      return false;
    }
  }
  for (size_t i = first; i < first + count; ++i) {
    block->lanes[i].waiting = 0;
  }
  return true;
}

inline void enter() {
  (*body)();
  lane().done = true;
  switch_out();
}

inline void run_block(int threads) {
  std::memset(block->shared, 0xff, block->shared_bytes);
  block->lanes = std::vector<Lane>(static_cast<size_t>(threads));
  block->warps = std::vector<Operands>(static_cast<size_t>(threads / 32));
  constexpr size_t kStack = 64 << 10;
  static std::vector<char> stacks;
  stacks.resize(std::max(stacks.size(), kStack * static_cast<size_t>(threads)));
  for (size_t i = 0; i < block->lanes.size(); ++i) {
    Lane& each = block->lanes[i];
    getcontext(&each.context);
    each.context.uc_stack.ss_sp = &stacks[kStack * i];
    each.context.uc_stack.ss_size = kStack;
    each.context.uc_link = nullptr;
    makecontext(&each.context, enter, 0);
    each.groups.emplace_back();
  }
  for (;;) {
    bool ran = false, all_done = true;
    for (int i = 0; i < threads; ++i) {
      block->running = block->mode & kBackwards ? threads - 1 - i : i;
      if (!lane().done && lane().waiting == 0) {
        switch_in();
        ran = true;
      }
      all_done = all_done && lane().done;
    }
    if (all_done) {
      return;
    }
    bool released = release(0, block->lanes.size(), 1);
    for (size_t warp = 0; warp < block->lanes.size(); warp += 32) {
      released = release(warp, 32, 2) || released;
    }
    if (!ran && !released) {
      fail("threads wait for others that never come");
    }
  }
}

inline int32_t mode = 0;
inline int multiprocessors = 0, device_bytes = 0;

template <class Kernel, class Arguments>
void launch(Kernel* kernel, int x, int y, int z, int threads, size_t shared_bytes, const Arguments& arguments) {
  // Mapped from its end, so that tools see what lies behind it; 128 bytes aligned as on the device.
  std::vector<char> memory(shared_bytes + 128);
  char* shared = memory.data() + (128 - reinterpret_cast<uintptr_t>(memory.data()) % 128) % 128;
  std::function<void()> call = [&] { kernel(arguments); };
  body = &call;
  for (int k = 0; k < z; ++k) {
    for (int j = 0; j < y; ++j) {
      for (int i = 0; i < x; ++i) {
        Block made{i, j, k, x, y, mode, shared, shared_bytes, {}, {}, 0, {}};
        block = &made;
        run_block(threads);
      }
    }
  }
  block = nullptr;
  body = nullptr;
}

}  // namespace emulation

inline int thread_index() { return emulation::block->running; }
inline int block_x() { return emulation::block->x; }
inline int block_y() { return emulation::block->y; }
inline int block_z() { return emulation::block->z; }
inline int blocks_x() { return emulation::block->blocks_x; }
inline int blocks_y() { return emulation::block->blocks_y; }
inline void synchronize_block() { emulation::meet(1); }
inline char* shared_memory() { return emulation::block->shared; }

}  // namespace onnxq

#include "emulate_instructions.h"
