// Convolutions by tiles: two tiles of pixels times two halves of a block. What they add up to is rounded a few pixels at a
// time between the products of the next pair.
//
// E: the elements. `Problem` is a Conv, `Finish` stores two registers of sums of a pixel, multiply<sum, pixels, weights>()
// is a product of tiles, starts(c, block) what sums begin with. `Gathered` says where windows are: as they lie (InPlace), or in
// copies.

#ifndef ONNXQ_REGION_TILE_CONV_H_
#define ONNXQ_REGION_TILE_CONV_H_

#include <immintrin.h>

#include "byte_tiles.h"
#include "tiles_of.h"

namespace onnxq {
namespace {

constexpr int64_t kTilePixels = 16, kTileSums = 256;

// Sums of two tiles that are to be stored. Scratch is [2 tiles][2 halves][16 pixels][16 outputs].
template <class E>
struct Pending {
  struct Row {
    int32_t sums;  // index into the scratch
    typename E::Finish::At at;
  };
  typename E::Finish to;
  Row rows[2 * kTilePixels];
  int64_t n = 0, size = 0, done = 0;
  const int32_t* scratch = nullptr;

  explicit Pending(const typename E::Problem& c) : to(c) {}

  void some(int64_t count) {
    // What is written could be any of our own numbers: copies stay in registers.
    const typename E::Finish finish = to;
    const int32_t* const sums = scratch;
    const int64_t image = n, until = done + count < size ? done + count : size;
    for (int64_t i = done; i < until; ++i) {
      const Row row = rows[i];
      finish.store(image, row.at, _mm512_load_si512(sums + row.sums), _mm512_load_si512(sums + row.sums + kTileSums));
    }
    done = until;
  }
};

// The pixels of a pair of tiles that y has.
template <class E>
struct Pair {
  const uint8_t* windows[2];
  typename Pending<E>::Row rows[2 * kTilePixels];
  int64_t size = 0;

  Pair(const Conv& c, int64_t n, int64_t unit, const typename E::Finish& to) {
    for (int64_t t = 0; t < 2; ++t) {
      // Where the last one is missing, the one before is computed twice.
      const int64_t tile = 2 * unit + t;
      Pixels at(c, n, tile < c.tiles ? tile : tile - 1);
      windows[t] = at.window;
      for (int64_t i = 0; i < c.tile && tile < c.tiles; ++i, at.next()) {
        if (at.is_there(c)) {
          rows[size++] = {static_cast<int32_t>(t * 2 * kTileSums + i * 16), to.place(at.y, at.x)};
        }
      }
    }
  }
};

// What tiles are loaded from.
struct Windows {
  const uint8_t* pixels[2];
  int64_t step;  // bytes from one to the next
  const int64_t* offsets;
  const int8_t* weight;
  int64_t chunks;
};

struct InPlace {
  explicit InPlace(const Conv&) {}
  static Windows all(const Conv& c) { return {{nullptr, nullptr}, c.step_x, c.offsets, c.weight, c.chunks}; }
  static void take(const Conv&, const uint8_t* const* pixels, Windows& windows) {
    windows.pixels[0] = pixels[0];
    windows.pixels[1] = pixels[1];
  }
};

template <class E, bool half>
inline void multiply(const typename E::Problem& c, const Windows& windows, int64_t b, int64_t each, Pending<E>& pending) {
  const int8_t* w = windows.weight + b * windows.chunks * kBlockBytes;
  const auto* const starts = E::starts(c, b);
  const int64_t group = group_of(c, b) * c.group_in;
  load_tile<0>(starts, 0);
  load_tile<2>(starts, 0);
  if (!half) {
    load_tile<1>(starts + 16, 0);
    load_tile<3>(starts + 16, 0);
  }
  for (int64_t k = 0; k < windows.chunks; ++k, w += kBlockBytes) {
    const int64_t at = group + windows.offsets[k];
    load_tile<6>(w, 64);
    load_tile<4>(windows.pixels[0] + at, windows.step);
    E::template multiply<0, 4, 6>();
    load_tile<5>(windows.pixels[1] + at, windows.step);
    E::template multiply<2, 5, 6>();
    if (!half) {
      load_tile<7>(w + kBlockBytes / 2, 64);
      E::template multiply<1, 4, 7>();
      E::template multiply<3, 5, 7>();
    }
    pending.some(each);
  }
}

template <class E>
void conv_tiles_of(const typename E::Problem& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  alignas(64) int32_t scratch[2][4 * kTileSums];
  Pending<E> pending(c);
  int current = 0;
  typename E::Gathered gathered(c);
  Windows windows = gathered.all(c);
  const int64_t each = cover(2 * c.tile, windows.chunks);
  begin_tiles(ByteTiles(c.tile));
  for (int64_t unit = first; unit < last; ++unit) {
    const Pair<E> pair(c, n, unit, pending.to);
    gathered.take(c, pair.windows, windows);
    for (int64_t b = block; b < end; ++b) {
      const bool half = outputs_of(c, b) <= 16;
      (half ? multiply<E, true> : multiply<E, false>)(c, windows, b, each, pending);
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

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_TILE_CONV_H_
