// For every processor: what the others are measured against. One number of the state after the other.

#include <math.h>
#include <string.h>

#include "../memory.h"

namespace onnxq {
namespace {

constexpr float kSmallest = 1.17549435e-38f, kLargest = 3.40282347e38f;

// x[K] as whole numbers, and what one of them is.
float to_codes(const float* x, int64_t K, int32_t bits, int16_t* codes) {
  uint32_t largest = 0;  // as bits, where NaN is larger than every number
  for (int64_t k = 0; k < K; ++k) {
    const uint32_t magnitude = float_to_bits(x[k]) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float amax = bits_to_float(largest), step = (amax <= kLargest ? amax : kLargest) / (bits == 8 ? 127.0f : 16256.0f);
  const float scale = step < kSmallest ? kSmallest : step, inverse = 1.0f / scale;
  for (int64_t k = 0; k < K; ++k) {
    const float low = x[k] > -kLargest ? x[k] : -kLargest, finite = low < kLargest ? low : kLargest;
    codes[k] = static_cast<int16_t>((finite * inverse + 12582912.0f) - 12582912.0f);  // half to even: base/rounding.h
  }
  return amax <= kLargest ? scale : amax;  // an infinite or NaN scale carries what codes cannot
}

// One layer of the weight and of the recurrence.
struct Matrix {
  const uint8_t* codes;
  const float* scales;
  int64_t K, G, tile_count, direction;

  float times(const int16_t* x, float scale, int64_t n, int64_t gate) const {
    const int64_t tile = direction * tile_count + n / kTile;
    const uint8_t* const line = codes + (tile * fours(K) * G + gate) * kLine + n % kTile * 4;
    int64_t sum = 0;
    for (int64_t k = 0; k < K; ++k) {
      sum += x[k] * (static_cast<int32_t>(line[k / 4 * G * kLine + k % 4]) - 128);
    }
    return static_cast<float>(sum) * (scales[(tile * G + gate) * kTile + n % kTile] * scale);
  }
};

float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

float clipped(float x, float clip) { return x > clip ? clip : x < -clip ? -clip : x; }

void project(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, void* workspace) {
  const Memory memory(p, s, workspace, job.direction);
  const int64_t G = gates_of(p.cell);
  const Matrix matrix = {p.weight, p.weight_scales, p.I, G, s.tile_count, job.direction};
  int16_t* const codes = reinterpret_cast<int16_t*>(codes_of(s, workspace, job));
  for (int64_t row = job.row; row < job.row_end; ++row) {
    const int64_t b = row % p.B, t = time_of(p, job.direction, phase.first + row / p.B, b);
    const float scale = to_codes(p.x + ((t < 0 ? 0 : t) * p.B + b) * p.I, p.I, p.bits, codes);
    for (int64_t n = job.tile * kTile; n < job.tile_end * kTile; ++n) {
      const int64_t tile = n / kTile, of_all = job.direction * s.tile_count + tile;
      for (int64_t gate = 0; gate < G; ++gate) {
        memory.projected[((row * s.tile_count + tile) * G + gate) * kTile + n % kTile] =
            matrix.times(codes, scale, n, gate) + p.bias[(of_all * sums_of(p.cell) + gate) * kTile + n % kTile];
      }
    }
  }
}

// One sequence at one step.
struct Row {
  const Recurrent& p;
  const Matrix& recurrence;
  const float *projected, *bias;  // of a tile and gate 16
  const int16_t* codes;           // of h, or of r · h
  float scale;
  const float* before;
  float *after, *y;
  float *other, *rh;  // c; or z, and r · h

  float sum(int64_t n, int64_t gate) const { return recurrence.times(codes, scale, n, gate); }

  // What goes into the activation function of a gate.
  float gate(int64_t n, int64_t g, float summand) const {
    return clipped(projected[(n / kTile * gates_of(p.cell) + g) * kTile + n % kTile] + summand, p.clip);
  }

  void compute(int64_t n, int half) const {
    float h = 0;
    if (p.cell == kLstm) {
      const float i = sigmoid(gate(n, 0, sum(n, 0))), o = sigmoid(gate(n, 1, sum(n, 1))), f = sigmoid(gate(n, 2, sum(n, 2)));
      other[n] = f * other[n] + i * tanhf(gate(n, 3, sum(n, 3)));
      h = o * tanhf(other[n]);
    } else if (p.cell == kRnn) {
      h = tanhf(gate(n, 0, sum(n, 0)));
    } else if (half == 0) {
      other[n] = sigmoid(gate(n, 0, sum(n, 0)));
      rh[n] = sigmoid(gate(n, 1, sum(n, 1))) * before[n];
      return;
    } else if (p.cell == kGru) {
      h = (1.0f - other[n]) * tanhf(gate(n, 2, sum(n, 2))) + other[n] * before[n];
    } else {
      const float z = sigmoid(gate(n, 0, sum(n, 0))), r = sigmoid(gate(n, 1, sum(n, 1)));
      const float late = bias[(n / kTile * sums_of(p.cell) + 3) * kTile + n % kTile];
      h = (1.0f - z) * tanhf(gate(n, 2, r * (sum(n, 2) + late))) + z * before[n];
    }
    after[n] = h;
    if (y && n < p.H) {
      y[n] = h;
    }
  }
};

void half_step(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, int64_t step, int half, void* workspace) {
  const Memory memory(p, s, workspace, job.direction);
  const Matrix recurrence = {p.recurrence, p.recurrence_scales, p.H, gates_of(p.cell), s.tile_count, job.direction};
  int16_t* const codes = reinterpret_cast<int16_t*>(codes_of(s, workspace, job));
  for (int64_t b = job.row; b < job.row_end; ++b) {
    const int64_t at = b * s.padded_H, first = job.tile * kTile, end = job.tile_end * kTile;
    const float* const before = memory.h[step % 2] + at;
    float *const after = memory.h[1 - step % 2] + at, *const rh = p.cell == kGru ? memory.other[1] + at : nullptr;
    if (step >= length_of(p, b)) {
      memcpy(after + first, before + first, static_cast<size_t>(end - first) * sizeof(float));
      continue;
    }
    const int64_t t = time_of(p, job.direction, step, b);
    float* const y = p.y ? p.y + ((t * p.directions + job.direction) * p.B + b) * p.H : nullptr;
    const float scale = to_codes(p.cell == kGru && half == 1 ? rh : before, p.H, p.bits, codes);
    const Row row = {p,
                     recurrence,
                     memory.projected + ((step - phase.chunk) * p.B + b) * s.tile_count * gates_of(p.cell) * kTile,
                     p.bias + job.direction * s.tile_count * sums_of(p.cell) * kTile,
                     codes,
                     scale,
                     before,
                     after,
                     y,
                     memory.other[0] ? memory.other[0] + at : nullptr,
                     rh};
    for (int64_t n = first; n < end; ++n) {
      row.compute(n, half);
    }
  }
}

void run(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, void* workspace) {
  if (phase.projects) {
    return project(p, s, phase, job, workspace);
  }
  for (int64_t step = phase.first; step < phase.last; ++step) {
    if (p.cell != kGru) {
      half_step(p, s, phase, job, step, 2, workspace);
      continue;
    }
    for (int half = phase.half == 1 ? 1 : 0; half < (phase.half == 0 ? 1 : 2); ++half) {
      half_step(p, s, phase, job, step, half, workspace);
    }
  }
}

}  // namespace

extern const RecurrentKernel recurrent_scalar;
constexpr RecurrentKernel recurrent_scalar = {"scalar", 0, 15, run};

}  // namespace onnxq
