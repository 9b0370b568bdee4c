// AMX-BF16 for `fast` with more than a few rows; else as avx512_vnni.
//
// Of weights with codes, 32 columns by 256 k at a time are decoded, scales included, into a panel that stays in the first-level
// cache while rows of x pass, from the second-level cache. Tiles are multiplied in a unit of their own: between two products, the
// next panel is decoded, a line at a time, because longer pauses are more than the processor looks ahead.
//
// Where x does not fit into that cache, a chunk of 256 k of it meets several groups of columns, while the next one is fetched.
//
// panels.h: the layouts of x and of sums; decoder.h: of a panel; dense_tiles.h: weights in bfloat16; few_rows.h: at most 16 rows.

#include "both.h"
#include "decoder.h"
#include "dense_tiles.h"
#include "few_rows.h"

namespace onnxq {
namespace {

constexpr int32_t kTileRowsFrom = 13;  // of x; below, dot products are as fast, on one processor (tuning.h measures others)

// --- products of decoded weights ------------------------------------------------------------------------------------

// A panel, times rows that pass.
struct Panel {
  const uint8_t* tiles;
  int64_t steps;
  Sums before, after;
  int64_t fetched;  // bytes of the next chunk of x, at every step
};

// 16 or 32 rows × 32 columns: tiles 0…3 are sums, 4 and 5 rows of x, 6 and 7 the halves of the panel.
// `next` is decoded meanwhile; sums and x that come next are fetched, little by little, as few misses can be under way.
template <int kTiles, class Next>
void multiply_rows(const Panel& panel, const uint8_t* x, const uint8_t* next_x, uint8_t* sums, Next& next) {
  constexpr bool two = kTiles == 2;
  constexpr int64_t kSums = kTiles * kPairBytes, kFetched = kSums / kShortSteps;
  load_sums<kTiles>(panel.before, sums);
  for (int64_t i = 0; i < panel.steps; ++i) {
    tile_load_passing<4>(x + i * kTileBytes);
    tile_load<6>(panel.tiles + i * kPairBytes);
    tile_multiply<0, 4, 6>();
    next.pause();
    tile_load<7>(panel.tiles + i * kPairBytes + kTileBytes);
    tile_multiply<1, 4, 7>();
    next.pause();
    if (two) {
      tile_load_passing<5>(x + (panel.steps + i) * kTileBytes);
      tile_multiply<2, 5, 6>();
      next.pause();
      tile_multiply<3, 5, 7>();
      next.pause();
    }
    for (int64_t line = 0; line < kFetched && panel.after == kInMemory; line += kLine) {
      fetch_near(sums + kSums + i * kFetched + line);
    }
    for (int64_t line = 0; line < panel.fetched; line += kLine) {
      fetch_far(next_x + i * panel.fetched + line);
    }
  }
  store_sums<kTiles>(panel.after, sums);
}

// All rows of a part pass a panel.
template <class Next>
void multiply_panel(const Problem& p, const Place& at, const uint8_t* tiles, const uint8_t* packed, uint8_t* sums, Next& next) {
  const Part& part = at.part;
  const Chunk now = chunk(p, at.chunk), then = chunk(p, (at.chunk + 1) % chunks(p));
  const bool last = at.chunk + 1 == chunks(p), stay = part.tiles <= 2 && part.groups == 1;
  const int64_t fetched = part.groups == 1 ? 0 : row_tiles(2 * kTileBytes / kLine, part.groups) * kLine;
  const Panel panel = {tiles, now.count, at.chunk == 0 ? kNone : stay ? kInTiles : kInMemory,
                       stay && !last ? kInTiles : kInMemory, fetched};
  for (int64_t i = 0; i < part.tiles; i += 2) {
    const int64_t tile = part.tile + i, count = i + 1 < part.tiles ? 2 : 1;
    const uint8_t* const x = packed + packed_byte(p, now, tile);
    const uint8_t* const next_x = packed + packed_byte(p, then, tile) + at.group * fetched * now.count;
    uint8_t* const sum = sums + (at.group * part.tiles + i) * kPairBytes;
    count == 2 ? multiply_rows<2>(panel, x, next_x, sum, next) : multiply_rows<1>(panel, x, next_x, sum, next);
  }
}

template <class Next>
void multiply(const Problem& p, const Part& all, const uint8_t* packed) {
  alignas(64) uint8_t panels[2][kShortSteps * kPairBytes];
  SumMemory memory(order(p, all, kSumBytes));
  const Order o = order(p, all, memory.bytes());
  uint8_t* const sums = memory.get();
  // The panel after the next: behind it, or, where several groups meet a chunk, beside it.
  const int64_t behind = 2 * tile_bytes(p.format, kShortSteps * kStep);
  const int64_t beside = kVectors * tile_bytes(p.format, padded(p.K, p.block));
  Next next(p);
  const auto begin = [&](const Place& at, uint8_t* panel, int64_t pauses) {
    next.begin(group<Zmm>(p, at.part.group + at.group), chunk(p, at.chunk), at.part.groups == 1 ? behind : beside, panel,
                      pauses);
  };
  Place at(o);
  begin(at, panels[0], 1);
  next.finish();
  tiles_begin();
  for (int64_t i = 0; i < o.panels(); ++i) {
    const Place now = at;
    at.advance(o);
    if (i + 1 < o.panels()) {
      begin(at, panels[(i + 1) % 2], now.part.tiles * kVectors * chunk(p, now.chunk).count);
    }
    multiply_panel(p, now, panels[i % 2], packed, sums, next);
    next.finish();
    if (now.chunk + 1 == chunks(p) && now.group + 1 == now.part.groups) {
      store_part(p, now.part, sums);
    }
  }
  tiles_end();
}

// --- tasks ----------------------------------------------------------------------------------------------------------

using Multiply = void (*)(const Problem&, const Part&, const uint8_t*);

template <class Codes>
Multiply multiply_kernel(int32_t scale_type) {
  return scale_type == kScaleFloat32   ? multiply<Decoder<Codes, kScaleFloat32>>
         : scale_type == kScaleFloat16 ? multiply<Decoder<Codes, kScaleFloat16>>
                                       : multiply<Decoder<Codes, kScaleE8M0>>;
}

Multiply multiply_kernel(const Problem& p) {
  return p.format == kDenseBfloat16 ? multiply_dense
         : p.format == kInt8   ? multiply_kernel<ByteFloats<Zmm>>(p.scale_type)
                               : multiply_kernel<NibbleFloats<Zmm>>(p.scale_type);
}

// Numbers of float16 are none of bfloat16.
bool in_tiles(const Problem& p) { return !p.exact && p.format != kDenseFloat16 && p.M >= (p.tile_rows ? p.tile_rows : kTileRowsFrom); }

bool by_few_rows(const Problem& p) { return in_tiles(p) && FewRows::offered(p); }
bool by_tiles(const Problem& p) { return in_tiles(p) && !FewRows::offered(p); }

// One phase, each task with rows of its own, which are packed, multiplied and stored where they were made and will be read:
// between processors they would travel for longer than a small product takes. The weight is read by all of them, so that a
// task has rows enough to make up for it.
constexpr int64_t kOwnTiles = 3;
int64_t tasks_of_rows(const Problem& p) {
  const int64_t wanted = wanted_tasks(p);
  return wanted < p.threads ? wanted : p.threads;
}
bool by_own_rows(const Problem& p) {
  return by_tiles(p) && is_dense(p.format) && p.threads > 1 && tiles_of_rows(p) >= kOwnTiles * p.threads &&
         tiles(p.N) * tile_bytes(p.format, padded(p.K, p.block)) <= kKept;
}

// In tiles.
RowRange part_of_rows(const Problem& p, int64_t task, int64_t tasks) {
  const int64_t all = tiles_of_rows(p), first = cut(all, tasks, task);
  return {first, cut(all, tasks, task + 1) - first};
}

void run_rows(const Problem& p, int64_t task, int64_t tasks, uint8_t* packed) {
  const RowRange part = part_of_rows(p, task, tasks);
  for (int64_t i = 0; i < chunks(p); ++i) {
    const Chunk c = chunk(p, i);
    for (int64_t tile = part.first; tile < part.first + part.count; ++tile) {
      pack_tile(p, c, tile, packed + packed_byte(p, c, tile));
    }
  }
  multiply_dense(p, {part.first, part.count, 0, groups<Zmm>(p)}, packed);
}

RowRange amx_rows(const Problem& p, int64_t task, int64_t tasks) {
  if (!by_own_rows(p)) {
    return {0, 0};
  }
  const RowRange part = part_of_rows(p, task, tasks);
  const int64_t first = part.first * kTileRows, count = part.count * kTileRows;
  return {first, first + count < p.M ? count : p.M - first};
}

int64_t amx_workspace(const Problem& p) {
  return by_few_rows(p) ? FewRows::workspace(p)
         : by_tiles(p) ? tiles_of_rows(p) * steps(p) * kTileBytes
         : by_pairs(p) ? Dense::workspace(p)
                       : workspace<ZmmVnni>(p);
}

int64_t amx_tasks(const Problem& p, int phase) {
  if (by_few_rows(p)) {
    return FewRows::tasks(p, phase);
  }
  if (!by_tiles(p)) {
    return by_pairs(p) ? Dense::tasks(p, phase) : tasks<ZmmVnni>(p, phase);
  }
  if (by_own_rows(p)) {
    return phase == 0 ? tasks_of_rows(p) : 0;
  }
  const int64_t tiles = tiles_of_rows(p);
  if (phase == 0) {
    return packing_tasks(p, tiles * chunks(p));
  }
  const Cuts cuts = product_cuts(groups<Zmm>(p), tiles, wanted_tasks(p));
  return phase == 1 ? cuts.columns * cuts.rows : 0;
}

void amx_run(const Problem& p, int phase, int64_t task, int64_t tasks, void* workspace) {
  if (by_few_rows(p)) {
    return FewRows::run(p, phase, task, tasks, workspace);
  }
  if (!by_tiles(p)) {
    return by_pairs(p) ? Dense::run(p, phase, task, tasks, workspace) : run<ZmmVnni>(p, phase, task, tasks, workspace);
  }
  uint8_t* const packed = static_cast<uint8_t*>(workspace);
  if (by_own_rows(p)) {
    return run_rows(p, task, tasks, packed);
  }
  if (phase == 0) {
    return pack(p, task, tasks, packed);
  }
  const int64_t tiles = tiles_of_rows(p), all = groups<Zmm>(p);
  const Cuts cuts = product_cuts(all, tiles, tasks);
  const int64_t column = task / cuts.rows, row = task % cuts.rows;
  const int64_t tile = cut(tiles, cuts.rows, row), group = cut(all, cuts.columns, column);
  const Part part = {tile, cut(tiles, cuts.rows, row + 1) - tile, group, cut(all, cuts.columns, column + 1) - group};
  multiply_kernel(p)(p, part, packed);
}

#if defined(ONNXQ_EMULATE)
constexpr uint64_t kNeeds = kAvx512 | kAvx512Vnni | kAvx512Bf16;
#else
constexpr uint64_t kNeeds = kAvx512 | kAvx512Vnni | kAvx512Bf16 | kAmxBf16;
#endif

}  // namespace

extern const Kernel kernel_amx;
constexpr Kernel kernel_amx = {"amx", kNeeds, amx_workspace, amx_tasks, amx_run, amx_rows};

}  // namespace onnxq
