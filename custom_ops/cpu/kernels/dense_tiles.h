// Products by weights in bfloat16 on AMX: they are tiles as they lie.
//
// 32 columns by 512 or 256 k of the weight stay in the first-level cache while rows of x pass, from the second-level cache,
// by loads that leave it there; meanwhile the next such panel comes into the second-level cache, and the next sums into the
// first. A chunk of x meets several groups of columns, so that a row of y is written in pieces of more than two lines. Where
// there are at most 32 rows, sums stay in tiles, and the weight is read once, as a stream.

#ifndef ONNXQ_CPU_KERNELS_DENSE_TILES_H_
#define ONNXQ_CPU_KERNELS_DENSE_TILES_H_

#include "panels.h"

namespace onnxq {
namespace {

// A panel, times rows that pass.
struct DensePanel {
  const uint8_t* half[kVectors];
  int64_t steps;
  Sums before, after;
  // Fetched at every step: lines of each half of the next panel, or of this one further on, of the next chunk of x, and of the
  // sums of a tile of rows that come next.
  const uint8_t* next[kVectors];
  int64_t lines, x_lines, sum_lines;
  bool near;
};

template <int kTiles>
void multiply_rows(const DensePanel& panel, const uint8_t* x, const uint8_t* next_x, int64_t pass, uint8_t* sums) {
  constexpr bool two = kTiles == 2;
  constexpr int64_t kSums = kTiles * kPairBytes;
  const int64_t fetched = panel.lines * kLine, x_fetched = panel.x_lines * kLine;
  const int64_t sums_fetched = kTiles * panel.sum_lines * kLine;
  const uint8_t* next[kVectors] = {panel.next[0] + pass * panel.steps * fetched, panel.next[1] + pass * panel.steps * fetched};
  load_sums<kTiles>(panel.before, sums);
  for (int64_t i = 0; i < panel.steps; ++i) {
    tile_load_passing<4>(x + i * kTileBytes);
    tile_load<6>(panel.half[0] + i * kTileBytes);
    tile_multiply<0, 4, 6>();
    tile_load<7>(panel.half[1] + i * kTileBytes);
    tile_multiply<1, 4, 7>();
    if (two) {
      tile_load_passing<5>(x + (panel.steps + i) * kTileBytes);
      tile_multiply<2, 5, 6>();
      tile_multiply<3, 5, 7>();
    }
    for (int64_t line = 0; line < fetched; line += kLine) {
      for (int c = 0; c < kVectors; ++c) {
        panel.near ? fetch_near(next[c] + i * fetched + line) : fetch_far(next[c] + i * fetched + line);
      }
    }
    for (int64_t line = 0; line < sums_fetched; line += kLine) {
      fetch_near(sums + kSums + i * sums_fetched + line);
    }
    for (int64_t line = 0; line < x_fetched; line += kLine) {
      fetch_far(next_x + i * x_fetched + line);
    }
  }
  store_sums<kTiles>(panel.after, sums);
}

constexpr bool fits(const Problem& p, int64_t tiles) { return tiles * steps(p) * kTileBytes <= kKept; }

Order dense_order(const Problem& p, const Part& all, int64_t sums) {
  const int64_t row_parts = row_tiles(all.tiles, kMostTiles), tiles = row_tiles(all.tiles, row_parts);
  // x that stays where it is need not meet many groups.
  const int64_t most = fits(p, tiles) && sums > kSumBytes / 2 ? kSumBytes / 2 : sums;
  return {p, all, row_parts, tiles <= 2 ? all.groups : row_tiles(all.groups, most / (tiles * kPairBytes))};
}

// All rows of a part pass the panel at `now`.
void multiply_panel(const Problem& p, const Place& now, const Place& then, const uint8_t* packed, uint8_t* sums) {
  const Part& part = now.part;
  const Chunk c = chunk(p, now.chunk), next_c = chunk(p, (now.chunk + 1) % chunks(p));
  const bool first = now.chunk == 0, last = now.chunk + 1 == chunks(p), stay = part.tiles <= 2;
  const int64_t passes = row_tiles(part.tiles, 2), lines_of_tile = kTileBytes / kLine;
  DensePanel panel = {{}, c.count, first ? kNone : stay ? kInTiles : kInMemory, stay && !last ? kInTiles : kInMemory, {},
                      row_tiles(lines_of_tile, passes), 0, 0, stay};
  const Group here = group<Zmm>(p, part.group + now.group), there = group<Zmm>(p, then.part.group + then.group);
  for (int i = 0; i < kVectors; ++i) {
    panel.half[i] = here.weight[i] + c.first * kTileBytes;
    panel.next[i] = stay ? panel.half[i] + kTilesAhead : there.weight[i] + chunk(p, then.chunk).first * kTileBytes;
  }
  panel.x_lines = fits(p, part.tiles) ? 0 : row_tiles(2 * lines_of_tile, part.groups);
  panel.sum_lines = panel.after == kInMemory ? kPairBytes / kLine / chunk_steps(p) : 0;
  for (int64_t i = 0; i < part.tiles; i += 2) {
    const int64_t tile = part.tile + i;
    const uint8_t* const x = packed + packed_byte(p, c, tile);
    const uint8_t* const next_x = packed + packed_byte(p, next_c, tile) + now.group * panel.x_lines * kLine * c.count;
    uint8_t* const sum = sums + (now.group * part.tiles + i) * kPairBytes;
    const bool two = i + 1 < part.tiles;
    (two ? multiply_rows<2> : multiply_rows<1>)(panel, x, next_x, i / 2, sum);
  }
}

void multiply_dense(const Problem& p, const Part& all, const uint8_t* packed) {
  SumMemory memory(dense_order(p, all, kSumBytes));
  const Order o = dense_order(p, all, memory.bytes());
  uint8_t* const sums = memory.get();
  tiles_begin();
  Place next(o);
  for (int64_t i = 0; i < o.panels(); ++i) {
    const Place now = next;
    next.advance(o);
    multiply_panel(p, now, next, packed, sums);
    if (now.chunk + 1 == chunks(p) && now.group + 1 == now.part.groups) {
      store_part(p, now.part, sums);
    }
  }
  tiles_end();
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_DENSE_TILES_H_
