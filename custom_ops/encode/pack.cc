// Codes of one byte each on their way into a layout: two a byte, and [K, N] to [N, K].

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../base/export.h"
#include "../base/clones.h"
#include "../base/threads.h"

namespace onnxq {
namespace {

constexpr int64_t kColumns = 64;  // bytes of a cache line

// Of the two codes of a byte the first goes to the bits from `low` on. Pairs are read as one number of 16 bits.
ONNXQ_CLONES void pack_range(const uint8_t* __restrict codes, int64_t first, int64_t last, bool high_first,
                             uint32_t flip, uint8_t* __restrict packed) {
  for (int64_t i = first; i < last; ++i) {
    uint16_t pair;
    std::memcpy(&pair, codes + 2 * i, sizeof pair);
    const uint32_t one = pair & 15, other = (pair >> 8) & 15;
    packed[i] = static_cast<uint8_t>((high_first ? one << 4 | other : one | other << 4) ^ flip);
  }
}

// Squares of 64 by 64 bytes are turned in the cache; memory is read and written a line at a time, as strides of powers
// of two would fall on the same few lines of the cache.
ONNXQ_CLONES void transpose_bands(const uint8_t* __restrict from, int64_t rows, int64_t columns, int64_t first,
                                  int64_t last, uint8_t* __restrict to) {
  uint8_t square[kColumns * kColumns] = {}, turned[kColumns * kColumns];
  for (int64_t band = first; band < last; ++band) {
    const int64_t c0 = band * kColumns, width = std::min(columns - c0, kColumns);
    for (int64_t r0 = 0; r0 < rows; r0 += kColumns) {
      const int64_t height = std::min(rows - r0, kColumns);
      for (int64_t r = 0; r < height; ++r) {
        std::memcpy(square + r * kColumns, from + (r0 + r) * columns + c0, static_cast<size_t>(width));
      }
      for (int64_t c = 0; c < kColumns; ++c) {
        for (int64_t r = 0; r < kColumns; ++r) {
          turned[c * kColumns + r] = square[r * kColumns + c];
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        std::memcpy(to + (c0 + c) * rows + r0, turned + c * kColumns, static_cast<size_t>(height));
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

// Two codes a byte, the first of two in the low nibble or, with `high_first`, in the high one; `pairs` bytes. The bits
// of `flip` are inverted: 0x88 adds 8 to every code.
ONNXQ_EXPORT void onnxq_pack_nibbles(const uint8_t* codes, int64_t pairs, int32_t high_first, int32_t flip,
                                     uint8_t* packed, int32_t threads) {
  onnxq::in_threads(pairs, threads, [=](int64_t first, int64_t last) {
    onnxq::pack_range(codes, first, last, high_first != 0, static_cast<uint32_t>(flip), packed);
  });
}

// [rows, columns] bytes as [columns, rows].
ONNXQ_EXPORT void onnxq_transpose(const uint8_t* from, int64_t rows, int64_t columns, uint8_t* to, int32_t threads) {
  onnxq::in_threads((columns + onnxq::kColumns - 1) / onnxq::kColumns, threads, [=](int64_t first, int64_t last) {
    onnxq::transpose_bands(from, rows, columns, first, last, to);
  });
}
