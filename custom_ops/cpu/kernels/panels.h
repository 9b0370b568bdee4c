// Products on AMX, whatever the weight: x in tiles, in which order parts of x meet parts of the weight, and where sums go.
//
//     x    bfloat16 [chunks][M/16][steps][16 rows][32 k]           A tiles. A chunk lies in one piece: rows 2^n bytes apart
//                                                                  would share a few sets of the cache
//     sum  float32  [groups][M/16][2 halves][16 rows][16 columns]  C tiles; apart from y for the same reason

#ifndef ONNXQ_CPU_KERNELS_PANELS_H_
#define ONNXQ_CPU_KERNELS_PANELS_H_

#include <cstdlib>

#include "dense.h"
#include "tiles.h"

namespace onnxq {
namespace {

constexpr int64_t kStep = 32;           // k of a tile
constexpr int64_t kMostTiles = 32;      // of rows at once
constexpr int64_t kKept = 1 << 20;      // bytes of x: they stay in the second-level cache, whatever else passes
constexpr int64_t kSumBytes = 1 << 19;
constexpr int64_t kPairBytes = kVectors * kTileBytes;  // the halves of a panel, or of sums, side by side

constexpr int64_t steps(const Problem& p) { return row_tiles(padded(p.K, p.block), kStep); }
constexpr int64_t tiles_of_rows(const Problem& p) { return row_tiles(p.M, kTileRows); }

// Of a chunk, at most. Two decoded panels are 32 KB of the first-level cache, and so is one that is read as it lies, while
// all of x that is met at once stays in the second. Else half as long ones take 0.81 to 0.87 of the time (4096 × 4096 by 512
// rows), as two chunks of x and the sums have room beside each other whatever pages they lie in.
constexpr int64_t kShortSteps = 8, kLongSteps = 16;
constexpr int64_t chunk_steps(const Problem& p) {
  const int64_t all = tiles_of_rows(p), tiles = all < kMostTiles ? all : kMostTiles;
  const bool is_long = p.format == kDenseBfloat16 && tiles * steps(p) * kTileBytes <= kKept;
  return is_long ? kLongSteps : kShortSteps;
}
constexpr int64_t chunks(const Problem& p) { return row_tiles(steps(p), chunk_steps(p)); }

inline void fetch_near(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }
inline void fetch_far(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T1); }

struct Chunk {
  int64_t first, count;  // of steps
};

Chunk chunk(const Problem& p, int64_t index) {
  const int64_t first = index * chunk_steps(p), left = steps(p) - first;
  return {first, left < chunk_steps(p) ? left : chunk_steps(p)};
}

// Where a tile of rows of a chunk begins.
constexpr int64_t packed_byte(const Problem& p, const Chunk& c, int64_t tile) {
  return (c.first * tiles_of_rows(p) + tile * c.count) * kTileBytes;
}

// A tile of rows of a chunk, row after row, as x is read fastest; zeros behind K and M.
void pack_tile(const Problem& p, const Chunk& c, int64_t tile, uint8_t* packed) {
  const int64_t whole = p.K / kStep < c.first + c.count ? p.K / kStep : c.first + c.count;
  for (int64_t row = 0; row < kTileRows; ++row) {
    const int64_t m = tile * kTileRows + row;
    const float* const x = p.x + m * p.K;
    uint8_t* to = packed + row * kLine;
    int64_t step = c.first;
    for (; m < p.M && step < whole; ++step, to += kTileBytes) {
      fetch_near(to + c.count * kTileBytes);  // lines of the next tile: writing waits for them longer than reading for x
      _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(Zmm::load(x + step * kStep + 16), Zmm::load(x + step * kStep)));
    }
    for (; step < c.first + c.count; ++step, to += kTileBytes) {
      const int64_t k = step * kStep;
      _mm512_storeu_si512(to, m < p.M && k < p.K ? load_bfloat16(x + k, p.K - k) : _mm512_setzero_si512());
    }
  }
}

void pack(const Problem& p, int64_t task, int64_t tasks, uint8_t* packed) {
  const int64_t tiles = tiles_of_rows(p), all = tiles * chunks(p);
  for (int64_t i = cut(all, tasks, task); i < cut(all, tasks, task + 1); ++i) {
    const Chunk c = chunk(p, i / tiles);
    pack_tile(p, c, i % tiles, packed + packed_byte(p, c, i % tiles));
  }
}

// Tiles of rows and groups of columns, from one each on.
struct Part {
  int64_t tile, tiles, group, groups;
};

// A task, cut into parts whose sums are held at once. A part takes chunk after chunk, each times group after group.
struct Order {
  const Problem& p;
  Part all;
  int64_t row_parts, column_parts;

  int64_t panels() const { return row_parts * all.groups * chunks(p); }

  // Of the largest part.
  int64_t sum_bytes() const { return row_tiles(all.tiles, row_parts) * row_tiles(all.groups, column_parts) * kPairBytes; }

  Part part(int64_t row, int64_t column) const {
    const int64_t tile = cut(all.tiles, row_parts, row), group = cut(all.groups, column_parts, column);
    return {all.tile + tile, cut(all.tiles, row_parts, row + 1) - tile, all.group + group,
            cut(all.groups, column_parts, column + 1) - group};
  }
};

// With `sums` bytes for them.
Order order(const Problem& p, const Part& all, int64_t sums) {
  const int64_t row_parts = row_tiles(all.tiles, kMostTiles), tiles = row_tiles(all.tiles, row_parts);
  const bool fits = tiles * steps(p) * kTileBytes <= kKept;
  return {p, all, row_parts, fits ? all.groups : row_tiles(all.groups, sums / (tiles * kPairBytes))};
}

// Where a task adds up. Threads belong to others, whose stacks may be small: more than one group of kMostTiles needs comes from
// the heap, and where that has none, groups take turns.
class SumMemory {
 public:
  explicit SumMemory(const Order& wanted)
      : heap_(wanted.sum_bytes() > kOnStack ? static_cast<uint8_t*>(std::aligned_alloc(kLine, kSumBytes)) : nullptr) {}
  ~SumMemory() { std::free(heap_); }
  SumMemory(const SumMemory&) = delete;
  SumMemory& operator=(const SumMemory&) = delete;

  int64_t bytes() const { return heap_ ? kSumBytes : kOnStack; }
  uint8_t* get() { return heap_ ? heap_ : stack_; }

 private:
  static constexpr int64_t kOnStack = kMostTiles * kPairBytes;

  uint8_t* heap_;
  alignas(64) uint8_t stack_[kOnStack];
};

// Which panel.
struct Place {
  Part part;
  int64_t row_part, column_part, chunk, group;

  explicit Place(const Order& o) : part(o.part(0, 0)), row_part(0), column_part(0), chunk(0), group(0) {}

  void advance(const Order& o) {
    group = (group + 1) % part.groups;
    if (group == 0) {
      chunk = (chunk + 1) % chunks(o.p);
      if (chunk == 0) {
        column_part = (column_part + 1) % o.column_parts;
        row_part += column_part == 0 ? 1 : 0;
        part = o.part(row_part, column_part);
      }
    }
  }
};

// Where the sums of a group belong; of a Group, what store_sum() reads.
Group columns(const Problem& p, int64_t index) {
  Group g = {};
  for (int c = 0; c < kVectors; ++c) {
    const int64_t column = (index * kVectors + c) * kTile, left = p.N - column;
    g.column[c] = column;
    g.lanes[c] = left < 0 ? 0 : left < kTile ? left : kTile;
  }
  return g;
}

// y, as much of a row as there is at once: every row begins on another page. What comes some rows later is fetched.
void store_part(const Problem& p, const Part& part, const uint8_t* sums) {
  constexpr int64_t kAhead = 2;
  for (int64_t i = 0, m = part.tile * kTileRows; i < part.tiles * kTileRows && m < p.M; ++i, ++m) {
    const uint8_t* sum = sums + i / kTileRows * kPairBytes + i % kTileRows * 64;
    for (int64_t j = 0; j < part.groups; ++j, sum += part.tiles * kPairBytes) {
      const Group g = columns(p, part.group + j);
      for (int c = 0; c < kVectors; ++c) {
        fetch_near(p.y + (m + kAhead) * p.N + g.column[c]);
        fetch_near(sum + c * kTileBytes + kAhead * kLine);
        store_sum<Zmm>(p, g, c, m, Zmm::load(reinterpret_cast<const float*>(sum + c * kTileBytes)), true);
      }
    }
  }
}

// What of a sum is there before, and where it goes after a panel.
enum Sums { kNone, kInTiles, kInMemory };

// Tiles 0…3 are the sums of 16 or 32 rows × 32 columns.
template <int kTiles>
void load_sums(Sums before, const uint8_t* sums) {
  if (before == kNone) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  } else if (before == kInMemory) {
    tile_load<0>(sums), tile_load<1>(sums + kTileBytes);
    if (kTiles == 2) {
      tile_load<2>(sums + kPairBytes), tile_load<3>(sums + kPairBytes + kTileBytes);
    }
  }
}

template <int kTiles>
void store_sums(Sums after, uint8_t* sums) {
  if (after == kInMemory) {
    tile_store<0>(sums), tile_store<1>(sums + kTileBytes);
    if (kTiles == 2) {
      tile_store<2>(sums + kPairBytes), tile_store<3>(sums + kPairBytes + kTileBytes);
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_PANELS_H_
