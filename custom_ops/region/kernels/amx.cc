// Convolutions by tiles of bytes: two tiles of pixels times two halves of a block. What they add up to is made codes a few
// pixels at a time between the products of the next pair.

#include "binary_zmm.h"
#include "byte_tiles.h"
#include "depthwise_dot.h"
#if !defined(ONNXQ_EMULATE)
#include "lookup_vbmi.h"
#endif

namespace onnxq {
namespace {

constexpr int64_t kTilePixels = 16, kTileSums = 256;

// Sums of two tiles that are to be stored. Scratch is [2 tiles][2 halves][16 pixels][16 outputs].
struct Pending {
  struct Row {
    int32_t sums;  // index into the scratch
    int64_t at;
  };
  Finish to;
  Row rows[2 * kTilePixels];
  int64_t n = 0, size = 0, done = 0;
  const int32_t* scratch = nullptr;

  explicit Pending(const Conv& c) : to(c) {}

  void some(int64_t count) {
    const int64_t until = done + count < size ? done + count : size;
    for (; done < until; ++done) {
      const Row row = rows[done];
      to.store(n, row.at, _mm512_load_si512(scratch + row.sums), _mm512_load_si512(scratch + row.sums + kTileSums));
    }
  }
};

// The pixels of a pair of tiles that y has.
struct Pair {
  const uint8_t* windows[2];
  Pending::Row rows[2 * kTilePixels];
  int64_t size = 0;

  Pair(const Conv& c, int64_t n, int64_t unit, const Finish& to) {
    for (int64_t t = 0; t < 2; ++t) {
      // Where the last one is missing, the one before is computed twice.
      const int64_t tile = 2 * unit + t;
      Pixels at(c, n, tile < c.tiles ? tile : tile - 1);
      windows[t] = at.window;
      for (int64_t i = 0; i < c.tile && tile < c.tiles; ++i, at.next(c)) {
        if (at.is_there(c)) {
          rows[size++] = {static_cast<int32_t>(t * 2 * kTileSums + i * 16), to.place(at.y, at.x)};
        }
      }
    }
  }
};

template <bool half>
inline void multiply(const Conv& c, const Pair& pair, int64_t b, int64_t each, Pending& pending) {
  const int8_t* w = c.weight + b * c.chunks * kBlockBytes;
  const int32_t* const bias = c.bias + b * kBlock;
  const int64_t group = b / c.blocks * c.group_in;
  load_tile<0>(bias, 0);
  load_tile<2>(bias, 0);
  if (!half) {
    load_tile<1>(bias + 16, 0);
    load_tile<3>(bias + 16, 0);
  }
  for (int64_t k = 0; k < c.chunks; ++k, w += kBlockBytes) {
    const int64_t at = group + c.offsets[k];
    load_tile<6>(w, 64);
    load_tile<4>(pair.windows[0] + at, c.step_x);
    multiply_tiles<0, 4, 6>();
    load_tile<5>(pair.windows[1] + at, c.step_x);
    multiply_tiles<2, 5, 6>();
    if (!half) {
      load_tile<7>(w + kBlockBytes / 2, 64);
      multiply_tiles<1, 4, 7>();
      multiply_tiles<3, 5, 7>();
    }
    pending.some(each);
  }
}

bool plan_amx(Conv& c) {
  // Few bytes of a window leave most of a tile empty.
  int64_t quads = 0;
  for (int64_t k = 0; k < c.chunks; ++k) {
    quads += c.quads[k];
  }
  if (quads * 4 < 24 || quads * 3 < c.chunks * 16) {
    return false;
  }
  plan_tiles(c, kTilePixels, 2);
  return true;
}

void conv_amx(const Conv& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  alignas(64) int32_t scratch[2][4 * kTileSums];
  Pending pending(c);
  int current = 0;
  const int64_t each = cover(2 * c.tile, c.chunks);
  begin_tiles(ByteTiles(c.tile));
  for (int64_t unit = first; unit < last; ++unit) {
    const Pair pair(c, n, unit, pending.to);
    for (int64_t b = block; b < end; ++b) {
      const bool half = outputs_of(c, b) <= 16;
      (half ? multiply<true> : multiply<false>)(c, pair, b, each, pending);
      pending.some(2 * kTilePixels);
      int32_t* const to = scratch[current];
      current ^= 1;
      store_tile<0>(to);
      store_tile<2>(to + 2 * kTileSums);
      if (!half) {
        store_tile<1>(to + kTileSums);
        store_tile<3>(to + 3 * kTileSums);
      }
      pending.scratch = to;
      pending.n = n;
      pending.to.begin(b);
      pending.size = pair.size;
      pending.done = 0;
      memcpy(pending.rows, pair.rows, static_cast<size_t>(pair.size) * sizeof *pair.rows);
    }
  }
  pending.some(2 * kTilePixels);
  end_tiles();
}

#if defined(ONNXQ_EMULATE)
constexpr uint64_t kNeeds = kAvx512 | kAvx512Vnni;
constexpr auto lookup_here = lookup_simple;
#else
constexpr uint64_t kNeeds = kAvx512 | kAvx512Vnni | kAvx512Vbmi | kAmxInt8;
constexpr auto lookup_here = lookup_vbmi;
#endif

}  // namespace

extern const RegionKernel region_amx;
constexpr RegionKernel region_amx = {"amx",         kNeeds,      plan_amx,      conv_amx,        depthwise_dots,
                                     binary_zmm,    pool_simple, lookup_here,   quantize_simple, dequantize_simple};

}  // namespace onnxq
