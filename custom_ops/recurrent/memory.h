// Where in the workspace things lie.

#ifndef ONNXQ_RECURRENT_MEMORY_H_
#define ONNXQ_RECURRENT_MEMORY_H_

#include "schedule.h"

namespace onnxq {
namespace {

// For one direction: gates of projected rows [row, tile, gate, 16]; h of before and behind a step in turns; c; of GRU z and
// r · h. States are [B, padded_H].
struct Memory {
  float *projected, *h[2], *other[2];

  Memory(const Recurrent& p, const Schedule& s, void* workspace, int64_t direction) {
    char* const at = static_cast<char*>(workspace);
    projected = reinterpret_cast<float*>(at + direction * (s.projected_bytes / p.directions));
    const auto state = [&](int i) {
      char* const first = at + s.projected_bytes + i * s.state_bytes + direction * (s.state_bytes / p.directions);
      return i < s.states ? reinterpret_cast<float*>(first) : nullptr;
    };
    h[0] = state(0), h[1] = state(1), other[0] = state(2), other[1] = state(3);
  }
};

// A job's rows of codes.
inline char* codes_of(const Schedule& s, void* workspace, const Job& job) {
  return static_cast<char*>(workspace) + s.projected_bytes + s.states * s.state_bytes + job.number * s.codes_of_job;
}

inline int64_t length_of(const Recurrent& p, int64_t b) { return p.lengths ? p.lengths[b] : p.T; }

// Where step number `step` of a sequence is; behind its end anywhere.
inline int64_t time_of(const Recurrent& p, int64_t direction, int64_t step, int64_t b) {
  return p.backward >> direction & 1 ? length_of(p, b) - 1 - step : step;
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_MEMORY_H_
