#include "layer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "../base/export.h"
#include "../base/threads.h"
#include "../cpu/isa.h"
#include "memory.h"

namespace onnxq {

#define ONNXQ_RECURRENT(name) extern const RecurrentKernel recurrent_##name;
#include "recurrents.inc"  // written by CMake, best first
#undef ONNXQ_RECURRENT

namespace {

constexpr const RecurrentKernel* kRecurrents[] = {
#define ONNXQ_RECURRENT(name) &recurrent_##name,
#include "recurrents.inc"
#undef ONNXQ_RECURRENT
};

constexpr int64_t kChunkRows = 48;         // that are projected at once, about: so that what they become stays in caches
constexpr int64_t kPartBytes = 256 << 10;  // of a weight: what is worth waiting for each other
constexpr int64_t kRows = 3;               // that a kernel computes together
constexpr int64_t kWidest = 16;            // numbers of a register

constexpr int64_t parted(int64_t all, int64_t unit) { return (all + unit - 1) / unit; }
constexpr int64_t begins(int64_t all, int64_t parts, int64_t i) { return all * i / parts; }
constexpr int64_t in_lines(int64_t bytes) { return parted(bytes, kLine) * kLine; }

Cut cut(int64_t rows, int64_t tile_count, int64_t bytes, int64_t threads) {
  Cut made{std::min(parted(rows, kRows), threads), 1};
  made.parts = std::max<int64_t>(1, std::min({threads / made.groups, bytes / kPartBytes, tile_count}));
  return made;
}

size_t bytes_of(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

// [B, H] of a direction with rows as long as tiles are, zeros behind H; or zeros alone.
void load_state(const Recurrent& p, const Schedule& s, const float* from, int64_t direction, float* to) {
  std::memset(to, 0, bytes_of(p.B * s.padded_H));
  for (int64_t b = 0; from && b < p.B; ++b) {
    std::memcpy(to + b * s.padded_H, from + (direction * p.B + b) * p.H, bytes_of(p.H));
  }
}

// Of a sequence without a step zeros, as onnxruntime gives.
void store_state(const Recurrent& p, const Schedule& s, const float* from, int64_t direction, float* to) {
  for (int64_t b = 0; to && b < p.B; ++b) {
    float* const mine = to + (direction * p.B + b) * p.H;
    std::memcpy(mine, from + b * s.padded_H, bytes_of(p.H));
    if (length_of(p, b) == 0) {
      std::memset(mine, 0, bytes_of(p.H));
    }
  }
}

}  // namespace

Schedule schedule(const Recurrent& p, int threads) {
  Schedule s{};
  const int64_t each = std::max<int64_t>(1, threads / p.directions);
  s.tile_count = tiles(p.H);
  s.padded_H = s.tile_count * kTile;
  s.chunk = std::min(p.T, std::max<int64_t>(1, kChunkRows / p.B));
  s.x_bytes = in_lines(static_cast<int64_t>(sizeof(CodesRow)) + parted(p.I, kWidest) * kWidest * 2);
  s.h_bytes = in_lines(static_cast<int64_t>(sizeof(CodesRow)) + parted(p.H, kWidest) * kWidest * 2);
  s.project = cut(s.chunk * p.B, s.tile_count, weight_bytes(p.cell, p.H, p.I), each);
  s.step = cut(p.B, s.tile_count, weight_bytes(p.cell, p.H, p.H), each);
  s.halves = p.cell == kGru ? 2 : 1;
  s.states = p.cell == kLstm ? 3 : p.cell == kGru ? 4 : 2;
  s.projected_bytes = p.directions * s.chunk * p.B * gates_of(p.cell) * s.padded_H * 4;
  s.state_bytes = p.directions * p.B * s.padded_H * 4;
  s.codes_of_job = std::max(parted(s.chunk * p.B, s.project.groups) * s.x_bytes, parted(p.B, s.step.groups) * s.h_bytes);
  return s;
}

int64_t workspace_bytes(const Recurrent& p, const Schedule& s) {
  const int64_t jobs = p.directions * std::max(s.project.groups * s.project.parts, s.step.groups * s.step.parts);
  return s.projected_bytes + s.states * s.state_bytes + jobs * s.codes_of_job;
}

Job job_of(const Recurrent& p, const Schedule& s, const Phase& phase, int64_t number) {
  const Cut& cut = phase.projects ? s.project : s.step;
  const int64_t rows = phase.projects ? (phase.last - phase.first) * p.B : p.B;
  const int64_t group = number / cut.parts % cut.groups, part = number % cut.parts;
  return {number / cut.parts / cut.groups,           begins(rows, cut.groups, group),
          begins(rows, cut.groups, group + 1),       begins(s.tile_count, cut.parts, part),
          begins(s.tile_count, cut.parts, part + 1), number};
}

void begin_layer(const Recurrent& p, const Schedule& s, void* workspace) {
  for (int64_t d = 0; d < p.directions; ++d) {
    const Memory memory(p, s, workspace, d);
    load_state(p, s, p.h, d, memory.h[0]);
    if (p.cell == kLstm) {
      load_state(p, s, p.c, d, memory.other[0]);
    }
  }
  for (int64_t t = 0; p.y && p.lengths && t < p.T; ++t) {
    for (int64_t i = 0; i < p.directions * p.B; ++i) {
      if (t >= p.lengths[i % p.B]) {
        std::memset(p.y + (t * p.directions * p.B + i) * p.H, 0, bytes_of(p.H));
      }
    }
  }
}

void finish_layer(const Recurrent& p, const Schedule& s, void* workspace) {
  for (int64_t d = 0; d < p.directions; ++d) {
    const Memory memory(p, s, workspace, d);
    store_state(p, s, memory.h[p.T % 2], d, p.last_h);
    store_state(p, s, memory.other[0], d, p.cell == kLstm ? p.last_c : nullptr);
  }
}

const RecurrentKernel* recurrent_kernel_for(const char* isa) {
  if (isa && *isa && !why_not(isa).empty()) {
    return nullptr;
  }
  bool allowed = !isa || !*isa;
  for (const Kernel* const* each = kKernels; *each; ++each) {
    allowed = allowed || std::strcmp((*each)->isa, isa) == 0;
    for (const RecurrentKernel* kernel : kRecurrents) {
      const bool runs = (kernel->needs & ~cpu_features()) == 0 && std::strcmp(kernel->isa, (*each)->isa) == 0;
      if (allowed && runs) {
        return kernel;
      }
    }
  }
  return nullptr;  // never: the last kernel takes everything
}

}  // namespace onnxq

ONNXQ_EXPORT int64_t onnxq_recurrent_size() { return sizeof(onnxq::Recurrent); }

// The name of the kernel that `onnxq_recurrent` would run, or null.
ONNXQ_EXPORT const char* onnxq_recurrent_kernel_for(const char* isa) {
  const onnxq::RecurrentKernel* const kernel = onnxq::recurrent_kernel_for(isa);
  return kernel ? kernel->isa : nullptr;
}

// For tests and measurements. 0, or 1 where there is no such kernel here.
ONNXQ_EXPORT int32_t onnxq_recurrent(const char* isa, const onnxq::Recurrent* p, int32_t threads) {
  const onnxq::RecurrentKernel* const kernel = onnxq::recurrent_kernel_for(isa);
  if (!kernel) {
    return 1;
  }
  const onnxq::Schedule s = onnxq::schedule(*p, threads);
  const auto bytes = static_cast<size_t>(onnxq::workspace_bytes(*p, s));
  const auto workspace = static_cast<char*>(::operator new(bytes, std::align_val_t(64)));
  onnxq::run_layer(*kernel, *p, s, workspace, [&](int64_t jobs, const auto& body) {
    std::atomic<int64_t> next{0};
    onnxq::in_threads(std::min<int64_t>(threads, jobs), threads, [&](int64_t, int64_t) {
      for (int64_t job = next++; job < jobs; job = next++) {
        body(job);
      }
    });
  });
  ::operator delete(workspace, std::align_val_t(64));
  return 0;
}
