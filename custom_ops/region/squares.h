// Sizes of convolutions by Winograd's transformation, as kernels and those who give them memory must agree about.

#ifndef ONNXQ_REGION_SQUARES_H_
#define ONNXQ_REGION_SQUARES_H_

#include "kernel.h"

namespace onnxq {

constexpr int64_t kSquareOut = 4, kSquareIn = 6;  // pixels along a side of a square of y, and of the x that it reads
constexpr int64_t kPlaces = kSquareIn * kSquareIn;

// Numbers from one place of squares to the next: no multiple of 4096 bytes, or caches would not hold all places of a channel.
constexpr int64_t next_place(int64_t numbers) { return numbers + 32; }
// The same of sums: at multiples of 1024 bytes, caches would not hold those of one square.
constexpr int64_t next_sums(int64_t numbers) { return numbers + 16; }
// Channels that a square has room for: whole registers.
constexpr int64_t square_channels(int64_t channels) { return (channels + 31) / 32 * 32; }

constexpr int64_t squares_along(int64_t size) { return (size + kSquareOut - 1) / kSquareOut; }
constexpr int64_t squares_of(const Image& y) { return squares_along(y.H) * squares_along(y.W); }

// Numbers of 16 bits that the transformed weights of a block are.
constexpr int64_t winograd_block(int64_t channels) { return kPlaces * next_place(channels * kBlock); }
// Bytes that a task needs: transformed squares of x, and their sums.
constexpr int64_t winograd_scratch(int64_t channels, int64_t at_once) {
  return kPlaces * (2 * next_place(at_once * square_channels(channels)) + 4 * next_sums(at_once * kBlock));
}

}  // namespace onnxq

#endif  // ONNXQ_REGION_SQUARES_H_
