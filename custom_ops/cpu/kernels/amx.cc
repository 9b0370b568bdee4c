// AMX-BF16 for `fast` with more than a few rows; else as avx512_vnni.
//
// 32 columns by 256 k of the weight at a time are decoded, scales included, into a panel that stays in the first-level cache
// while rows of x pass, from the second-level cache. Tiles are multiplied in a unit of their own: between two products, the
// next panel is decoded, a line at a time, because longer pauses are more than the processor looks ahead.
//
// Where x does not fit into that cache, a chunk of 256 k of it meets several groups of columns, while the next one is fetched.
//
//     x    bfloat16 [K/256][M/16][8][16 rows][32 k]                A tiles. A chunk lies in one piece: rows 2^n bytes apart
//                                                                  would share a few sets of the cache
//     w    bfloat16 [8][2 halves][16 pairs of k][16 columns][2]    B tiles; a pair is the 32-bit lane of a column
//     sum  float32  [groups][M/16][2 halves][16 rows][16 columns]  C tiles; apart from y for the same reason

#include "both.h"
#include "dense.h"
#include "few_rows.h"
#include "tiles.h"
#include "zmm.h"

namespace onnxq {
namespace {

constexpr int32_t kTileRowsFrom = 13;  // of x; below, dot products are as fast, on one processor (tuning.h measures others)
constexpr int64_t kStep = 32;         // k of a tile
constexpr int64_t kChunkSteps = 8;    // two panels are 32 KB
constexpr int64_t kMostTiles = 16;    // of rows at once
constexpr int64_t kKept = 1 << 20;    // bytes of x: they stay in the second-level cache, whatever else passes
constexpr int64_t kSumBytes = 1 << 18;  // on the stack
constexpr int64_t kPairBytes = kVectors * kTileBytes;  // the halves of a panel, or of sums, side by side

constexpr int64_t steps(const Problem& p) { return row_tiles(padded(p.K, p.block), kStep); }
constexpr int64_t chunks(const Problem& p) { return row_tiles(steps(p), kChunkSteps); }
constexpr int64_t tiles_of_rows(const Problem& p) { return row_tiles(p.M, kTileRows); }

struct Chunk {
  int64_t first, count;  // of steps
};

Chunk chunk(const Problem& p, int64_t index) {
  const int64_t first = index * kChunkSteps, left = steps(p) - first;
  return {first, left < kChunkSteps ? left : kChunkSteps};
}

// Where a tile of rows of a chunk begins.
constexpr int64_t packed_byte(const Problem& p, const Chunk& c, int64_t tile) {
  return (c.first * tiles_of_rows(p) + tile * c.count) * kTileBytes;
}

// --- x --------------------------------------------------------------------------------------------------------------

// A tile of rows of a chunk; zeros behind K and M.
void pack_tile(const Problem& p, const Chunk& c, int64_t tile, uint8_t* packed) {
  for (int64_t step = c.first; step < c.first + c.count; ++step) {
    for (int64_t row = 0; row < kTileRows; ++row, packed += 64) {
      const int64_t m = tile * kTileRows + row, k = step * kStep, left = m < p.M ? p.K - k : 0;
      const float* x = p.x + (m < p.M ? m : 0) * p.K + (left > 0 ? k : 0);
      _mm512_storeu_si512(packed, load_bfloat16(x, left));
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

// --- the weight -----------------------------------------------------------------------------------------------------

// Decoded numbers are cut to bfloat16: rounding takes two more of the instructions that are the bottleneck. What cutting takes
// away on average, 2^-8 · mean of 1 / mantissa = 2^-8 / (2 ln 2), scales are given before. So the error is 1.05 times that of
// rounding, and numbers that bfloat16 holds stay as they are.
constexpr float kCutAway = 1.0f + 0.7213475f / 256;

// value = code · scale + offset.
struct Scaling {
  __m512 scale, offset;
};

template <int kScale>
Scaling scaling(const Problem& p, const char* scales, const uint8_t* zero_points) {
  const __m512 scale = load_scales<Zmm, kScale>(scales), zero = zero_of<Zmm>(p, zero_points);
  // 16 bits of it: the product with a zero point is exact, and that code becomes 0.
  const __m512i grown = (__m512i)Zmm::multiply(scale, _mm512_set1_ps(kCutAway));
  const __m512 used = (__m512)_mm512_and_si512(grown, _mm512_set1_epi32(~0xFF));
  return {used, Zmm::subtract(Zmm::zero(), Zmm::multiply(zero, used))};
}

// The upper halves of two vectors of one k each, k and k + 1, as pairs: lane n = {k, k + 1} of column n.
void store_pair(uint8_t* to, __m512 first, __m512 second) {
  const __m512i words = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0, 0, 14, 15, 0, 0));
  _mm512_storeu_si512(to, _mm512_mask_shuffle_epi8((__m512i)second, 0x3333333333333333, (__m512i)first, words));
}

template <class Codes, int i>
inline __attribute__((always_inline)) void decode_pairs(const Codes& codes, __m512i line, const Scaling& by, uint8_t* to) {
  if constexpr (i < Codes::kCount) {
    const auto value = [&](__m512 code) { return Zmm::fma(code, by.scale, by.offset); };
    store_pair(to + i / 2 * 64, value(codes.template get<i>(line)), value(codes.template get<i + 1>(line)));
    decode_pairs<Codes, i + 2>(codes, line, by, to);
  }
}

// Where the halves of a panel lie, and how far apart their tiles are.
struct PanelTiles {
  const uint8_t* half[kVectors];
  int64_t step;
};

// Decodes a panel in the pauses between products, line after line: first one half, then the other.
template <class Codes, int kScale>
class Decoder {
 public:
  explicit Decoder(const Problem& p) : p_(p), codes_(p.format) {}

  // Bytes `ahead` are fetched: a later panel's.
  PanelTiles begin(const Group& g, const Chunk& c, int64_t ahead, uint8_t* panel, int64_t pauses) {
    const int64_t k = c.first * kStep, whole = c.count * kStep, real = padded(p_.K, p_.block) - k;
    group_ = g, k_ = k, ahead_ = ahead, panel_ = panel;
    lines_ = (real < whole ? real : whole) / Codes::kCount;
    due_ = 0, pauses_ = pauses;
    if (real < whole) {  // half a tile, as blocks are multiples of 16
      memset(panel + (c.count - 1) * kPairBytes + kTileBytes / 2, 0, kTileBytes / 2);
      memset(panel + c.count * kPairBytes - kTileBytes / 2, 0, kTileBytes / 2);
    }
    begin_half(0);
    return {{panel, panel + kTileBytes}, kPairBytes};
  }

  // Called as often as `pauses` says, decodes all.
  inline __attribute__((always_inline)) void pause() {
    for (due_ += kVectors * lines_; due_ >= pauses_; due_ -= pauses_) {
      decode_line();
    }
  }

  void finish() {
    while (half_ < kVectors) {
      decode_line();
    }
    lines_ = 0;
  }

 private:
  void begin_half(int half) {
    half_ = half, done_ = 0;
    if (half < kVectors) {
      const int64_t block = k_ / p_.block;
      line_ = group_.weight[half] + k_ / Codes::kCount * kLine;
      scale_ = group_.scales[half] + block * kTile * scale_bytes(kScale);
      zero_point_ = group_.zero_points[half] ? group_.zero_points[half] + block * kTile : nullptr;
      to_ = panel_ + half * kTileBytes;
      begin_block((block + 1) * p_.block - k_);
    }
  }

  void begin_block(int64_t k) {
    scaling_ = scaling<kScale>(p_, scale_, zero_point_);
    scale_ += kTile * scale_bytes(kScale);
    zero_point_ += zero_point_ ? kTile : 0;
    of_block_ = k / Codes::kCount;
  }

  inline __attribute__((always_inline)) void decode_line() {
    constexpr int64_t kLinesOfTile = kStep / Codes::kCount;
    if (of_block_ == 0) {
      begin_block(p_.block);
    }
    _mm_prefetch(reinterpret_cast<const char*>(line_) + ahead_, _MM_HINT_T1);
    const Codes codes = codes_;  // copies: else they are read again after everything that is stored
    const Scaling by = scaling_;
    decode_pairs<Codes, 0>(codes, Zmm::load(line_), by, to_);
    --of_block_;
    line_ += kLine;
    to_ += kTileBytes / kLinesOfTile;
    if (++done_ % kLinesOfTile == 0) {
      to_ += kPairBytes - kTileBytes;
    }
    if (done_ == lines_) {
      begin_half(half_ + 1);
    }
  }

  const Problem& p_;
  const Codes codes_;
  Group group_ = {};
  int64_t k_ = 0, ahead_ = 0, due_ = 0, pauses_ = 1;
  uint8_t* panel_ = nullptr;
  int64_t lines_ = 0, done_ = 0, of_block_ = 0;  // lines of a half, of these done, to the end of the block
  int half_ = 0;
  // The next line:
  const uint8_t* line_ = nullptr;
  const char* scale_ = nullptr;
  const uint8_t* zero_point_ = nullptr;
  uint8_t* to_ = nullptr;
  Scaling scaling_ = {};
};

// Weights in bfloat16 are tiles as they lie: in the pauses, their lines are fetched into the first-level cache.
class Fetcher {
 public:
  explicit Fetcher(const Problem&) {}

  PanelTiles begin(const Group& g, const Chunk& c, int64_t ahead, uint8_t*, int64_t pauses) {
    const int64_t offset = c.first * kTileBytes;
    lines_ = c.count * kTileBytes / kLine;
    pauses_ = pauses, ahead_ = ahead, due_ = 0, done_ = 0, half_ = 0;
    const PanelTiles at = {{g.weight[0] + offset, g.weight[1] + offset}, kTileBytes};
    line_[0] = at.half[0], line_[1] = at.half[1];
    return at;
  }

  inline __attribute__((always_inline)) void pause() {
    for (due_ += kVectors * lines_; due_ >= pauses_; due_ -= pauses_) {
      fetch_line();
    }
  }

  void finish() {
    while (done_ < lines_) {
      fetch_line();
    }
  }

 private:
  inline __attribute__((always_inline)) void fetch_line() {
    const char* const at = reinterpret_cast<const char*>(line_[half_] + done_ * kLine);
    _mm_prefetch(at, _MM_HINT_T0);
    _mm_prefetch(at + ahead_, _MM_HINT_T1);
    done_ += half_;
    half_ ^= 1;
  }

  const uint8_t* line_[kVectors] = {};
  int64_t lines_ = 0, done_ = 0, due_ = 0, pauses_ = 1, ahead_ = 0;
  int half_ = 0;
};

// --- products -------------------------------------------------------------------------------------------------------

enum Sums { kNone, kInTiles, kInMemory };

// A panel, times rows that pass.
struct Panel {
  PanelTiles tiles;
  int64_t steps;
  Sums before, after;
  int64_t fetched;  // bytes of the next chunk of x, at every step
};

inline void fetch_near(const uint8_t* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
inline void fetch_far(const uint8_t* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1); }

// 16 or 32 rows × 32 columns: tiles 0…3 are sums, 4 and 5 rows of x, 6 and 7 the halves of the panel.
// `next` is decoded meanwhile; sums and x that come next are fetched, little by little, as few misses can be under way.
template <int kTiles, class Next>
void multiply_rows(const Panel& panel, const uint8_t* x, const uint8_t* next_x, uint8_t* sums, Next& next) {
  constexpr bool two = kTiles == 2;
  constexpr int64_t kSums = kTiles * kPairBytes, kFetched = kSums / kChunkSteps;
  if (panel.before == kNone) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  } else if (panel.before == kInMemory) {
    tile_load<0>(sums), tile_load<1>(sums + kTileBytes);
    if (two) {
      tile_load<2>(sums + kPairBytes), tile_load<3>(sums + kPairBytes + kTileBytes);
    }
  }
  for (int64_t i = 0; i < panel.steps; ++i) {
    tile_load_passing<4>(x + i * kTileBytes);
    tile_load<6>(panel.tiles.half[0] + i * panel.tiles.step);
    tile_multiply<0, 4, 6>();
    next.pause();
    tile_load<7>(panel.tiles.half[1] + i * panel.tiles.step);
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
  if (panel.after == kInMemory) {
    tile_store<0>(sums), tile_store<1>(sums + kTileBytes);
    if (two) {
      tile_store<2>(sums + kPairBytes), tile_store<3>(sums + kPairBytes + kTileBytes);
    }
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

  Part part(int64_t row, int64_t column) const {
    const int64_t tile = cut(all.tiles, row_parts, row), group = cut(all.groups, column_parts, column);
    return {all.tile + tile, cut(all.tiles, row_parts, row + 1) - tile, all.group + group,
            cut(all.groups, column_parts, column + 1) - group};
  }
};

Order order(const Problem& p, const Part& all) {
  const int64_t row_parts = row_tiles(all.tiles, kMostTiles), tiles = row_tiles(all.tiles, row_parts);
  const bool fits = tiles * steps(p) * kTileBytes <= kKept;
  return {p, all, row_parts, fits ? all.groups : row_tiles(all.groups, kSumBytes / (tiles * kPairBytes))};
}

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

// All rows of a part pass a panel.
template <class Next>
void multiply_panel(const Problem& p, const Place& at, const PanelTiles& tiles, const uint8_t* packed, uint8_t* sums, Next& next) {
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

// y, as much of a row as there is at once: every row begins on another page.
void store_part(const Problem& p, const Part& part, const uint8_t* sums) {
  for (int64_t i = 0, m = part.tile * kTileRows; i < part.tiles * kTileRows && m < p.M; ++i, ++m) {
    const uint8_t* sum = sums + i / kTileRows * kPairBytes + i % kTileRows * 64;
    for (int64_t j = 0; j < part.groups; ++j, sum += part.tiles * kPairBytes) {
      const Group g = columns(p, part.group + j);
      for (int c = 0; c < kVectors; ++c) {
        store_sum<Zmm>(p, g, c, m, Zmm::load(reinterpret_cast<const float*>(sum + c * kTileBytes)), true);
      }
    }
  }
}

template <class Next>
void multiply(const Problem& p, const Part& all, const uint8_t* packed) {
  alignas(64) uint8_t panels[2][kChunkSteps * kPairBytes], sums[kSumBytes];
  const Order o = order(p, all);
  // The panel after the next: behind it, or, where several groups meet a chunk, beside it.
  const int64_t behind = 2 * tile_bytes(p.format, kChunkSteps * kStep);
  const int64_t beside = kVectors * tile_bytes(p.format, padded(p.K, p.block));
  Next next(p);
  const auto begin = [&](const Place& at, uint8_t* panel, int64_t pauses) {
    return next.begin(group<Zmm>(p, at.part.group + at.group), chunk(p, at.chunk), at.part.groups == 1 ? behind : beside, panel,
                      pauses);
  };
  Place at(o);
  PanelTiles tiles[2] = {begin(at, panels[0], 1), {}};
  next.finish();
  tiles_begin();
  for (int64_t i = 0; i < o.panels(); ++i) {
    const Place now = at;
    at.advance(o);
    if (i + 1 < o.panels()) {
      tiles[(i + 1) % 2] = begin(at, panels[(i + 1) % 2], now.part.tiles * kVectors * chunk(p, now.chunk).count);
    }
    multiply_panel(p, now, tiles[i % 2], packed, sums, next);
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
  return p.format == kDenseBfloat16 ? multiply<Fetcher>
         : p.format == kInt8   ? multiply_kernel<ByteFloats<Zmm>>(p.scale_type)
                               : multiply_kernel<NibbleFloats<Zmm>>(p.scale_type);
}

bool in_tiles(const Problem& p) { return !p.exact && p.M >= (p.tile_rows ? p.tile_rows : kTileRowsFrom); }

bool by_few_rows(const Problem& p) { return in_tiles(p) && FewRows::offered(p); }
bool by_tiles(const Problem& p) { return in_tiles(p) && !FewRows::offered(p); }

int64_t amx_workspace(const Problem& p) {
  return by_few_rows(p) ? FewRows::workspace(p)
         : by_tiles(p) ? tiles_of_rows(p) * steps(p) * kTileBytes
         : is_dense(p) ? Dense::workspace(p)
                       : workspace<ZmmVnni>(p);
}

int64_t amx_tasks(const Problem& p, int phase, int threads) {
  if (by_few_rows(p)) {
    return FewRows::tasks(p, phase, threads);
  }
  if (!by_tiles(p)) {
    return is_dense(p) ? Dense::tasks(p, phase, threads) : tasks<ZmmVnni>(p, phase, threads);
  }
  const int64_t wanted = wanted_tasks(p, threads), tiles = tiles_of_rows(p);
  if (phase == 0) {  // waking threads takes longer than packing a few rows
    const int64_t useful = p.M * p.K / 65536 + 1, parts = useful < wanted ? useful : wanted, most = tiles * chunks(p);
    return parts < most ? parts : most;
  }
  const Cuts cuts = product_cuts(groups<Zmm>(p), tiles, wanted);
  return phase == 1 ? cuts.columns * cuts.rows : 0;
}

void amx_run(const Problem& p, int phase, int64_t task, int64_t tasks, void* workspace) {
  if (by_few_rows(p)) {
    return FewRows::run(p, phase, task, tasks, workspace);
  }
  if (!by_tiles(p)) {
    return is_dense(p) ? Dense::run(p, phase, task, tasks, workspace) : run<ZmmVnni>(p, phase, task, tasks, workspace);
  }
  uint8_t* const packed = static_cast<uint8_t*>(workspace);
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
constexpr Kernel kernel_amx = {"amx", kNeeds, amx_workspace, amx_tasks, amx_run};

}  // namespace onnxq
