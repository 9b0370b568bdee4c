// What is done in which phase, by how many jobs, and where what is kept meanwhile lies. For a kernel phases are
//
//   project  of the steps of a chunk: rows of x become codes, times the weight, plus bias
//   step     states become codes, times the recurrence; gates; new states. Where each job has sequences of its own, all steps
//            of a chunk are one phase; else jobs have parts of the state, and wait for each other behind every step (GRU
//            without kLinearBeforeReset: twice)

#ifndef ONNXQ_RECURRENT_SCHEDULE_H_
#define ONNXQ_RECURRENT_SCHEDULE_H_

#include "kernel.h"

namespace onnxq {

// The steps [first, last) of the chunk that begins with step `chunk`; of GRU's steps the first half, the second, or both.
struct Phase {
  bool projects;
  int64_t first, last, chunk;
  int half;  // 0, 1; 2: both
};

// Rows [row, row_end) of a direction, and tiles [tile, tile_end). Rows are those of a step, and of all steps where the phase
// projects.
struct Job {
  int64_t direction, row, row_end, tile, tile_end, number;
};

// How work is cut: into groups of rows, and those into parts of the state.
struct Cut {
  int64_t groups, parts;
};

struct Schedule {
  int64_t tile_count, padded_H;
  int64_t chunk;             // steps that are projected at once
  int64_t x_bytes, h_bytes;  // of a row of codes
  Cut project, step;
  int halves;  // phases of a step, where jobs wait
  int states;  // arrays of states: h of before and behind a step; c; of GRU z and r · h
  int64_t projected_bytes, state_bytes, codes_of_job;  // a job's memory for rows of codes, the larger one
};

namespace {

// A row of codes: four high bytes, four low ones where there are 15 bits, and so on.
struct CodesRow {
  float scale;
  int32_t high, low;  // sums of its bytes
  int32_t unused;
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_SCHEDULE_H_
