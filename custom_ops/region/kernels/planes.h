// How float32 planes of many channels pass, where pixels that have their channels together are on the other side.

#ifndef ONNXQ_REGION_PLANES_H_
#define ONNXQ_REGION_PLANES_H_

#include <immintrin.h>
#include <stdint.h>

#include "../kernel.h"

namespace onnxq {
namespace {

// Pixels that follow each other in a plane and are taken together: as many as leave their other side, of so many bytes a
// pixel, in the second cache while all channels pass. Memory is slow where it is read in many places, a little of each.
inline int64_t pixels_at_once(int64_t bytes) {
  constexpr int64_t kCached = 1 << 18, kFewest = 256;
  const int64_t pixels = kCached / (bytes < 1 ? 1 : bytes) / 16 * 16;
  return pixels < kFewest ? kFewest : pixels;
}

// Begins to fetch what is read (_MM_HINT_T0) or written (_MM_HINT_ET0) some pixels behind `at` of `count` planes: there are
// more of them than processors watch by themselves.
template <_mm_hint hint>
inline void fetch(const float* at, int64_t plane, int64_t count) {
  constexpr int64_t kAhead = 96;
  for (int64_t i = 0; i < count; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(at + i * plane + kAhead), hint);
  }
}

// Pixels that follow each other.
struct RowPiece {
  uint8_t* codes;  // of the first pixel
  const Border* border;
  int64_t plane, first, pixels;

  float* floats(int64_t channel) const { return border->floats + first + channel * plane; }
};

// Rows that follow each other without pads between them are one.
template <class Work>
inline void in_pieces(const Border& p, int64_t first, int64_t last, const Work& work) {
  const Image& image = p.codes;
  const int64_t plane = image.H * image.W, most = pixels_at_once(image.C);
  for (int64_t row = first, rows; row < last; row += rows) {
    const int64_t n = row / image.H, y = row % image.H, left = image.H - y < last - row ? image.H - y : last - row;
    rows = image.row == image.W * image.C ? left : 1;
    for (int64_t x = 0; x < rows * image.W; x += most) {
      const int64_t pixels = rows * image.W - x;
      work(RowPiece{image.data + n * image.image + y * image.row + x * image.C, &p, plane, n * image.C * plane + y * image.W + x,
                    pixels < most ? pixels : most});
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_PLANES_H_
