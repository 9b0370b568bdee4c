// Which pixels are computed together.

#ifndef ONNXQ_REGION_TILES_OF_H_
#define ONNXQ_REGION_TILES_OF_H_

#include "../kernel.h"

namespace onnxq {
namespace {

// Pixels of y from row to row of what is read flat.
inline int64_t flat_pitch(const Conv& c) { return c.step_x ? c.x.row / c.step_x : 1; }

// What tiles cost, in pixels: one of few waits for its own sums, each of which takes a product some cycles.
inline int64_t tiles_cost(int64_t tiles, int64_t pixels) {
  constexpr int64_t kWaiting = 5;
  return tiles * (pixels > kWaiting ? pixels : kWaiting);
}

// Tiles of at most `most` pixels, in units of `together`; as few as possible, and then as small as possible.
inline void plan_tiles(Conv& c, int64_t most, int64_t together) {
  const int64_t by_row = cover(c.y.W, most), row_tiles = c.y.H * by_row;
  c.flat = 0;
  c.tiles = row_tiles;
  c.tile = cover(c.y.W, by_row);
  // Where windows of neighbouring rows are as far apart as rows of x, rows follow each other without a seam; unless pads
  // on both sides are larger than the window, which makes rows of y longer than the distance of rows of x.
  if (c.step_y == c.x.row && c.step_x == c.x.C && c.y.W <= flat_pitch(c)) {
    const int64_t pixels = (c.y.H - 1) * flat_pitch(c) + c.y.W, tiles = cover(pixels, most);
    // Tiles that are multiplied together take their time however few pixels they have; others that of their pixels, and
    // the more of them there are, the more weights are loaded.
    const int64_t flat_cost = tiles_cost(tiles, cover(pixels, tiles)), row_cost = tiles_cost(row_tiles, c.tile);
    const bool is_shorter =
        together > 1 ? cover(tiles, together) <= cover(row_tiles, together) : 256 * flat_cost <= 257 * row_cost;
    if (is_shorter) {
      c.flat = 1;
      c.tiles = tiles;
      c.tile = cover(pixels, tiles);
    }
  }
  c.units = cover(c.tiles, together);
}

// Where a tile begins; walks over its pixels.
struct Pixels {
  int64_t y, x;
  int64_t seam;  // where a row of what is read flat ends; else none
  const uint8_t* window;

  Pixels(const Conv& c, int64_t n, int64_t tile) {
    const int64_t width = c.flat ? flat_pitch(c) : cover(c.y.W, c.tile);
    seam = c.flat ? width : -1;
    const int64_t at = c.flat ? tile * c.tile : tile;
    y = at / width;
    x = c.flat ? at % width : at % width * c.tile;
    window = c.x.data + n * c.x.image + c.first + (c.flat ? at * c.step_x : y * c.step_y + x * c.step_x);
  }

  // Whether y has this pixel.
  bool is_there(const Conv& c) const { return y < c.y.H && x < c.y.W; }
  void next() {
    ++x;
    if (x == seam) {
      x = 0;
      ++y;
    }
  }
};

// A block's group, and its number there. Divisions take as long as the sums of small windows.
inline int64_t group_of(const Conv& c, int64_t block) { return c.groups == 1 ? 0 : block / c.blocks; }
inline int64_t in_group(const Conv& c, int64_t block) { return c.groups == 1 ? block : block % c.blocks; }

// Outputs of a block that exist.
inline int64_t outputs_of(const Conv& c, int64_t block) {
  const int64_t left = c.group_out - in_group(c, block) * kBlock;
  return left < kBlock ? left : kBlock;
}

// The first channel of a block.
inline int64_t channel_of(const Conv& c, int64_t block) {
  return group_of(c, block) * c.group_out + in_group(c, block) * kBlock;
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_TILES_OF_H_
