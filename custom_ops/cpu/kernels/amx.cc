// AMX-BF16 for `fast` with more than a few rows; else as avx512_vnni.
//
// A panel of weights is decoded to bfloat16, scales included, and stays in the second-level cache while all rows of x pass:
//
//     x    bfloat16 [M/16][K/32][16 rows][32 k]              one A tile after the other, along K
//     w    bfloat16 [k/32][2 halves][16 pairs of k][16 columns][2]  B tiles; a pair is the 32-bit lane of a column
//     sum  float32  [rows/16][2 halves][16 rows][16 columns]  C tiles; in y itself, rows may lie 2^n bytes apart, which
//                                                             is one set of the cache for all of them
//
// Not measured: written without a processor at hand; tested with emulated tiles (tiles.h).

#include "both.h"
#include "tiles.h"
#include "zmm.h"

namespace onnxq {
namespace {

constexpr int64_t kVnniRows = 8;      // so few rows are bound by reading the weight
constexpr int64_t kStep = 32;         // k of a tile
constexpr int64_t kPanelSteps = 64;   // 2048 k: 128 KB
constexpr int64_t kMostRows = 512;    // 64 KB of sums

constexpr int64_t steps(const Problem& p) { return row_tiles(padded(p.K, p.block), kStep); }

__m512i bf16(__m512 second, __m512 first) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }

// Rows [16 · tile, …) of x as A tiles; zeros behind K and M.
void pack_tile(const Problem& p, int64_t tile, uint8_t* packed) {
  for (int64_t step = 0; step < steps(p); ++step) {
    for (int64_t row = 0; row < kTileRows; ++row, packed += 64) {
      const int64_t m = tile * kTileRows + row, k = step * kStep, left = m < p.M ? p.K - k : 0;
      const float* x = p.x + (m < p.M ? m : 0) * p.K + (left > 0 ? k : 0);
      const auto part = [&](int64_t skip) {
        const int64_t lanes = left - skip;
        return lanes >= 16 ? Zmm::load(x + skip) : lanes > 0 ? Zmm::load(x + skip, lanes) : Zmm::zero();
      };
      _mm512_storeu_si512(packed, bf16(part(16), part(0)));
    }
  }
}

// Two vectors of one k each, k and k + 1, as pairs: lane n = {k, k + 1} of column n.
void store_pair(uint8_t* to, __m512 first, __m512 second) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                              5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(interleave, bf16(second, first)));
}

// Where the pair {k, k + 1}, k even, of a half lies in the panel.
constexpr int64_t pair_byte(int64_t k, int64_t half) { return (k / kStep * kVectors + half) * kTileBytes + k % kStep / 2 * 64; }

template <class Codes, int i>
inline __attribute__((always_inline)) void decode_pairs(const Codes& codes, __m512i line, __m512 zero, __m512 scale,
                                                        int64_t k, int64_t half, uint8_t* panel) {
  if constexpr (i < Codes::kCount) {
    const auto value = [&](__m512 code) { return Zmm::multiply(Zmm::subtract(code, zero), scale); };
    store_pair(panel + pair_byte(k + i, half), value(codes.template get<i>(line)), value(codes.template get<i + 1>(line)));
    decode_pairs<Codes, i + 2>(codes, line, zero, scale, k, half, panel);
  }
}

// Steps [from, to) of a group as B tiles. Steps and blocks need not begin together; both are multiples of 16, which the
// lines of codes divide. Behind the last block: zeros.
template <class Codes, int kScale>
void decode_tiles(const Problem& p, const Group& g, int64_t from, int64_t to, uint8_t* panel) {
  const Codes codes(p.format);
  const int64_t Kp = padded(p.K, p.block), end = to * kStep < Kp ? to * kStep : Kp;
  for (int c = 0; c < kVectors; ++c) {
    for (int64_t k = from * kStep; k < end;) {
      const int64_t b = k / p.block, block_end = (b + 1) * p.block < end ? (b + 1) * p.block : end;
      const __m512 scale = load_scales<Zmm, kScale>(g.scales[c] + b * kTile * scale_bytes(kScale));
      const __m512 zero = zero_of<Zmm>(p, g.zero_points[c] ? g.zero_points[c] + b * kTile : nullptr);
      for (; k < block_end; k += Codes::kCount) {
        decode_pairs<Codes, 0>(codes, Zmm::load(g.weight[c] + k / Codes::kCount * kLine), zero, scale, k - from * kStep, c,
                               panel);
      }
    }
    for (int64_t k = end; k < to * kStep; k += 2) {
      _mm512_storeu_si512(panel + pair_byte(k - from * kStep, c), _mm512_setzero_si512());
    }
  }
}

using DecodeTiles = void (*)(const Problem&, const Group&, int64_t, int64_t, uint8_t*);

template <class Codes>
DecodeTiles decoder(int32_t scale_type) {
  return scale_type == kScaleFloat32   ? decode_tiles<Codes, kScaleFloat32>
         : scale_type == kScaleFloat16 ? decode_tiles<Codes, kScaleFloat16>
                                       : decode_tiles<Codes, kScaleE8M0>;
}

// 32 rows × 32 columns: tiles 0…3 are sums, 4 and 5 rows of x, 6 and 7 the halves of the panel.
void multiply_two(const uint8_t* x0, const uint8_t* x1, const uint8_t* panel, int64_t count, float* sums, bool first) {
  constexpr int64_t kFloats = kTileBytes / 4;
  if (first) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  } else {
    tile_load<0>(sums), tile_load<1>(sums + kFloats), tile_load<2>(sums + 2 * kFloats), tile_load<3>(sums + 3 * kFloats);
  }
  for (int64_t i = 0; i < count; ++i) {
    tile_load<4>(x0 + i * kTileBytes);
    tile_load<6>(panel + i * kVectors * kTileBytes);
    tile_multiply<0, 4, 6>();
    tile_load<7>(panel + (i * kVectors + 1) * kTileBytes);
    tile_multiply<1, 4, 7>();
    tile_load<5>(x1 + i * kTileBytes);
    tile_multiply<2, 5, 6>();
    tile_multiply<3, 5, 7>();
  }
  tile_store<0>(sums), tile_store<1>(sums + kFloats), tile_store<2>(sums + 2 * kFloats), tile_store<3>(sums + 3 * kFloats);
}

// 16 rows × 32 columns.
void multiply_one(const uint8_t* x, const uint8_t* panel, int64_t count, float* sums, bool first) {
  constexpr int64_t kFloats = kTileBytes / 4;
  if (first) {
    tile_zero<0>(), tile_zero<1>();
  } else {
    tile_load<0>(sums), tile_load<1>(sums + kFloats);
  }
  for (int64_t i = 0; i < count; ++i) {
    tile_load<4>(x + i * kTileBytes);
    tile_load<6>(panel + i * kVectors * kTileBytes);
    tile_multiply<0, 4, 6>();
    tile_load<7>(panel + (i * kVectors + 1) * kTileBytes);
    tile_multiply<1, 4, 7>();
  }
  tile_store<0>(sums), tile_store<1>(sums + kFloats);
}

// Tiles [from, to) of rows, at most kMostRows / 16, times one group.
void multiply_group(const Problem& p, const Group& g, DecodeTiles decode, const uint8_t* packed, int64_t from, int64_t to) {
  alignas(64) uint8_t panel[kPanelSteps * kVectors * kTileBytes];
  alignas(64) float sums[kMostRows * kVectors * 16];
  const int64_t all = steps(p), tile_floats = kVectors * kTileBytes / 4;
  for (int64_t step = 0; step < all; step += kPanelSteps) {
    const int64_t count = all - step < kPanelSteps ? all - step : kPanelSteps;
    decode(p, g, step, step + count, panel);
    for (int64_t tile = from; tile < to; tile += 2) {
      const uint8_t* x = packed + (tile * all + step) * kTileBytes;
      float* sum = sums + (tile - from) * tile_floats;
      tile + 1 < to ? multiply_two(x, x + all * kTileBytes, panel, count, sum, step == 0)
                    : multiply_one(x, panel, count, sum, step == 0);
    }
  }
  for (int64_t m = from * kTileRows; m < to * kTileRows && m < p.M; ++m) {
    const float* sum = sums + (m / kTileRows - from) * tile_floats + m % kTileRows * 16;
    for (int c = 0; c < kVectors; ++c) {
      store_sum<Zmm>(p, g, c, m, Zmm::load(sum + c * kTileBytes / 4), true);
    }
  }
}

int64_t tiles_of_rows(const Problem& p) { return row_tiles(p.M, kTileRows); }

bool by_tiles(const Problem& p) { return !p.exact && p.M > kVnniRows; }

int64_t amx_workspace(const Problem& p) {
  return by_tiles(p) ? tiles_of_rows(p) * steps(p) * kTileBytes : workspace<ZmmVnni>(p);
}

int64_t amx_tasks(const Problem& p, int phase, int threads) {
  if (!by_tiles(p)) {
    return tasks<ZmmVnni>(p, phase, threads);
  }
  const int64_t wanted = wanted_tasks(p, threads), tiles = tiles_of_rows(p);
  if (phase == 0) {
    return wanted < tiles ? wanted : tiles;
  }
  const Cuts cuts = product_cuts(groups<Zmm>(p), tiles, wanted);
  return phase == 1 ? cuts.columns * cuts.rows : 0;
}

void amx_run(const Problem& p, int phase, int64_t task, int64_t tasks, void* workspace) {
  if (!by_tiles(p)) {
    return run<ZmmVnni>(p, phase, task, tasks, workspace);
  }
  uint8_t* packed = static_cast<uint8_t*>(workspace);
  const int64_t tiles = tiles_of_rows(p), all = groups<Zmm>(p);
  if (phase == 0) {
    for (int64_t i = cut(tiles, tasks, task); i < cut(tiles, tasks, task + 1); ++i) {
      pack_tile(p, i, packed + i * steps(p) * kTileBytes);
    }
    return;
  }
  const DecodeTiles decode = p.format == kInt8 ? decoder<ByteFloats<Zmm>>(p.scale_type) : decoder<NibbleFloats<Zmm>>(p.scale_type);
  const Cuts cuts = product_cuts(all, tiles, tasks);
  const int64_t column = task / cuts.rows, row = task % cuts.rows, end = cut(tiles, cuts.rows, row + 1);
  tiles_begin();
  for (int64_t j = cut(all, cuts.columns, column); j < cut(all, cuts.columns, column + 1); ++j) {
    const Group g = group<Zmm>(p, j);
    for (int64_t from = cut(tiles, cuts.rows, row); from < end; from += kMostRows / kTileRows) {
      const int64_t to = from + kMostRows / kTileRows;
      multiply_group(p, g, decode, packed, from, to < end ? to : end);
    }
  }
  tiles_end();
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
