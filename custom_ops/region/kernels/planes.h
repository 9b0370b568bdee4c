// How float32 planes of many channels pass, where pixels that have their channels together are on the other side.

#ifndef ONNXQ_REGION_PLANES_H_
#define ONNXQ_REGION_PLANES_H_

#include <immintrin.h>
#include <stdint.h>

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

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_PLANES_H_
