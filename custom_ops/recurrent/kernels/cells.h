// Recurrent layers: projections of rows of x, and steps, whose gates stay in registers until the new state is known.

#ifndef ONNXQ_RECURRENT_KERNELS_CELLS_H_
#define ONNXQ_RECURRENT_KERNELS_CELLS_H_

#include "../memory.h"
#include "sums.h"

namespace onnxq {
namespace {

// One step of one direction.
struct Step {
  const Recurrent& p;
  const Schedule& s;
  const Memory& memory;
  const Job& job;
  int64_t number, chunk;  // and the first of its chunk
  const float* before;    // h
  float* after;

  int64_t state(int64_t b, int64_t tile) const { return b * s.padded_H + tile * kTile; }
  bool is_there(int64_t b) const { return number < length_of(p, b); }
  const float* projected(int64_t b, int64_t tile) const {
    return memory.projected + (((number - chunk) * p.B + b) * s.tile_count + tile) * gates_of(p.cell) * kTile;
  }
  int64_t tile_of_all(int64_t tile) const { return job.direction * s.tile_count + tile; }
};

template <class V, int cell, int kTerms>
struct Cells {
  using F = typename V::F;
  static constexpr int G = static_cast<int>(gates_of(cell)), kBiases = static_cast<int>(sums_of(cell));
  static constexpr int64_t kTogether = 4;

  // --- project: of a row and a tile [G][16] -----------------------------------------------------------------------------

  template <int R>
  static void project_rows(const Recurrent& p, const Schedule& s, const Memory& memory, int64_t row, int64_t tile,
                           int64_t of_all, const char* codes) {
    const uint8_t* const w = p.weight + of_all * fours(p.I) * G * kLine;
    const float* const scales = p.weight_scales + of_all * G * kTile;
    const float* const bias = p.bias + of_all * kBiases * kTile;
    for (int64_t lane = 0; lane < kTile; lane += V::kLanes) {
      F made[R][G];
      product<V, R, 0, G, G, kTerms>(w + 4 * lane, scales + lane, codes, s.x_bytes, p.I, made);
      unrolled<R>([&](auto r) ONNXQ_INLINE {
        float* const to = memory.projected + ((row + r) * s.tile_count + tile) * G * kTile + lane;
        unrolled<G>([&](auto g) ONNXQ_INLINE {
          V::store(to + g * kTile, V::add(made[r][g], V::load(bias + g * kTile + lane)));
        });
      });
    }
  }

  static void project(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, void* workspace) {
    const Memory memory(p, s, workspace, job.direction);
    char* const codes = codes_of(s, workspace, job);
    for (int64_t row = job.row; row < job.row_end; ++row) {
      const int64_t b = row % p.B, t = time_of(p, job.direction, phase.first + row / p.B, b);
      // Behind the end of a sequence nobody looks at what is made.
      to_codes<V, kTerms>(p.x + ((t < 0 ? 0 : t) * p.B + b) * p.I, p.I, codes + (row - job.row) * s.x_bytes);
    }
    constexpr int kRows = rows_at_once<V, G, kTerms>();
    for (int64_t tile = job.tile; tile < job.tile_end; ++tile) {
      for (int64_t row = job.row; row < job.row_end; row += kRows) {
        with_rows<kRows>(job.row_end - row, [&](auto R) ONNXQ_INLINE {
          const char* const mine = codes + (row - job.row) * s.x_bytes;
          project_rows<R>(p, s, memory, row, tile, job.direction * s.tile_count + tile, mine);
        });
      }
    }
  }

  // --- step -------------------------------------------------------------------------------------------------------------

  static void store_h(const Step& of, int64_t b, int64_t tile, int64_t lane, F h) {
    const Recurrent& p = of.p;
    V::store(of.after + of.state(b, tile) + lane, h);
    const int64_t first = tile * kTile + lane, left = p.H - first;
    if (!p.y || left <= 0) {
      return;
    }
    const int64_t t = time_of(p, of.job.direction, of.number, b);
    float* const y = p.y + ((t * p.directions + of.job.direction) * p.B + b) * p.H + first;
    left >= V::kLanes ? V::store(y, h) : V::store(y, h, left);
  }

  // Part of a tile of one sequence, given the recurrence's sums.
  template <int count>
  static void finish(const Step& of, int64_t b, int64_t tile, int64_t lane, const F (&sum)[count]) {
    const Recurrent& p = of.p;
    const int64_t at = of.state(b, tile) + lane;
    if (!of.is_there(b)) {
      V::store(of.after + at, V::load(of.before + at));
      return;
    }
    const float* const projected = of.projected(b, tile) + lane;
    F gate[G];
    if constexpr (cell == kLstm) {
      unrolled<G>([&](auto g) ONNXQ_INLINE { gate[g] = V::add(V::load(projected + g * kTile), sum[g]); });
      float* const c = of.memory.other[0] + at;
      const Lstm<V> made(gate, V::load(c), p.clip);
      V::store(c, made.c);
      store_h(of, b, tile, lane, made.h);
    } else if constexpr (cell == kRnn) {
      store_h(of, b, tile, lane, tanh_of<V>(clipped<V>(V::add(V::load(projected), sum[0]), p.clip)).value());
    } else if constexpr (cell == kLinearBeforeReset) {
      const F z = sigmoid<V>(clipped<V>(V::add(V::load(projected), sum[0]), p.clip)).value();
      const F r = sigmoid<V>(clipped<V>(V::add(V::load(projected + kTile), sum[1]), p.clip)).value();
      const float* const bias = p.bias + of.tile_of_all(tile) * kBiases * kTile + 3 * kTile + lane;
      const F fresh = V::fma(r, V::add(sum[2], V::load(bias)), V::load(projected + 2 * kTile));
      store_h(of, b, tile, lane, gru<V>(z, fresh, V::load(of.before + at), p.clip));
    } else if constexpr (count == 2) {
      const F z = sigmoid<V>(clipped<V>(V::add(V::load(projected), sum[0]), p.clip)).value();
      const F r = sigmoid<V>(clipped<V>(V::add(V::load(projected + kTile), sum[1]), p.clip)).value();
      V::store(of.memory.other[0] + at, z);
      V::store(of.memory.other[1] + at, V::multiply(r, V::load(of.before + at)));
    } else {
      const F fresh = V::add(V::load(projected + 2 * kTile), sum[0]);
      store_h(of, b, tile, lane, gru<V>(V::load(of.memory.other[0] + at), fresh, V::load(of.before + at), p.clip));
    }
  }

  // `count` gates from `first` on, of all tiles and sequences of the job; `from`: what becomes codes.
  template <int first, int count>
  static void gates(const Step& of, const float* from, char* codes) {
    const Recurrent& p = of.p;
    const Job& job = of.job;
    for (int64_t b = job.row; b < job.row_end; ++b) {
      to_codes<V, kTerms>(from + of.state(b, 0), p.H, codes + (b - job.row) * of.s.h_bytes);
    }
    constexpr int kRows = rows_at_once<V, count, kTerms>();
    for (int64_t tile = job.tile; tile < job.tile_end; tile += kTogether) {
      const int64_t end = tile + kTogether < job.tile_end ? tile + kTogether : job.tile_end;
      for (int64_t lane = 0; lane < kTile; lane += V::kLanes) {
        for (int64_t b = job.row; b < job.row_end; b += kRows) {
          with_rows<kRows>(job.row_end - b, [&](auto R) ONNXQ_INLINE {
            some_tiles<R, first, count>(of, b, tile, end, lane, codes + (b - job.row) * of.s.h_bytes);
          });
        }
      }
    }
  }

  // Sums of some tiles, then their gates: so these are computed while others still are.
  template <int R, int first, int count>
  static void some_tiles(const Step& of, int64_t b, int64_t begin, int64_t end, int64_t lane, const char* codes) {
    const Recurrent& p = of.p;
    F sum[kTogether][R][count];
    for (int64_t tile = begin; tile < end; ++tile) {
      const uint8_t* const w = p.recurrence + of.tile_of_all(tile) * fours(p.H) * G * kLine;
      const float* const scales = p.recurrence_scales + of.tile_of_all(tile) * G * kTile;
      product<V, R, first, count, G, kTerms>(w + 4 * lane, scales + lane, codes, of.s.h_bytes, p.H, sum[tile - begin]);
    }
    for (int64_t tile = begin; tile < end; ++tile) {
      unrolled<R>([&](auto r) ONNXQ_INLINE { finish<count>(of, b + r, tile, lane, sum[tile - begin][r]); });
    }
  }

  static void step(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, void* workspace) {
    const Memory memory(p, s, workspace, job.direction);
    char* const codes = codes_of(s, workspace, job);
    for (int64_t number = phase.first; number < phase.last; ++number) {
      const Step of{p, s, memory, job, number, phase.chunk, memory.h[number % 2], memory.h[1 - number % 2]};
      if constexpr (cell == kGru) {
        if (phase.half != 1) {
          gates<0, 2>(of, of.before, codes);
        }
        if (phase.half != 0) {
          gates<2, 1>(of, memory.other[1], codes);
        }
      } else {
        gates<0, G>(of, of.before, codes);
      }
    }
  }
};

template <class V, int cell, int kTerms>
void run_cell(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, void* workspace) {
  (phase.projects ? Cells<V, cell, kTerms>::project : Cells<V, cell, kTerms>::step)(p, s, phase, job, workspace);
}

template <class V, int cell>
void run_terms(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, void* workspace) {
  (p.bits == 8 ? run_cell<V, cell, 1> : run_cell<V, cell, 2>)(p, s, phase, job, workspace);
}

template <class V>
void run_job(const Recurrent& p, const Schedule& s, const Phase& phase, const Job& job, void* workspace) {
  const auto work = p.cell == kLstm                ? run_terms<V, kLstm>
                    : p.cell == kGru               ? run_terms<V, kGru>
                    : p.cell == kLinearBeforeReset ? run_terms<V, kLinearBeforeReset>
                                                   : run_terms<V, kRnn>;
  work(p, s, phase, job, workspace);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_KERNELS_CELLS_H_
