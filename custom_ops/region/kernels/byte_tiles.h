// The AMX instructions for bytes and for bfloat16, one function each; or, with ONNXQ_EMULATE, what they do in plain loops. After Intel's
// Software Developer's Manual, volume 2: TDPBUSD, TDPBF16PS. Why assembly, ../../cpu/kernels/tiles.h says.

#ifndef ONNXQ_REGION_BYTE_TILES_H_
#define ONNXQ_REGION_BYTE_TILES_H_

#include <stdint.h>
#include <string.h>

#include "../../base/format.h"

namespace onnxq {
namespace {

// Sums are tiles 0 to 3, pixels 4 and 5, weights 6 and 7.
struct ByteTiles {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {0, 0, 0, 0, 0, 0, 16, 16};

  explicit ByteTiles(int64_t pixels) {
    for (int t = 0; t < 6; ++t) {
      rows[t] = static_cast<uint8_t>(pixels);
    }
  }
};
static_assert(sizeof(ByteTiles) == 64, "as the processor reads it");

#if defined(ONNXQ_EMULATE)

static thread_local uint8_t byte_tiles[8][16][64];
static thread_local int64_t byte_rows;

inline void begin_tiles(const ByteTiles& tiles) { byte_rows = tiles.rows[0]; }
inline void end_tiles() { memset(byte_tiles, 0x55, sizeof byte_tiles); }  // nothing may rely on what is left
template <int t>
void load_tile(const void* from, int64_t stride) {
  for (int64_t row = 0; row < (t < 6 ? byte_rows : 16); ++row) {
    memcpy(byte_tiles[t][row], static_cast<const char*>(from) + row * stride, 64);
  }
}
template <int t>
void store_tile(void* to) {
  memcpy(to, byte_tiles[t], static_cast<size_t>(byte_rows) * 64);
}
template <int sum, int a, int b>
void multiply_tiles() {
  for (int64_t m = 0; m < byte_rows; ++m) {
    for (int n = 0; n < 16; ++n) {
      uint32_t total;
      memcpy(&total, byte_tiles[sum][m] + 4 * n, 4);
      for (int k = 0; k < 64; ++k) {
        const int product = byte_tiles[a][m][k] * static_cast<int8_t>(byte_tiles[b][k / 4][4 * n + k % 4]);
        total += static_cast<uint32_t>(product);
      }
      memcpy(byte_tiles[sum][m] + 4 * n, &total, 4);
    }
  }
}

// sum[m][n] += Σ a[m][2k + i] · b[k][2n + i], i = 0, 1, in float32.
template <int sum, int a, int b>
void multiply_number_tiles() {
  for (int64_t m = 0; m < byte_rows; ++m) {
    for (int n = 0; n < 16; ++n) {
      float total;
      memcpy(&total, byte_tiles[sum][m] + 4 * n, 4);
      for (int k = 0; k < 32; ++k) {
        uint16_t x, w;
        memcpy(&x, byte_tiles[a][m] + 2 * k, 2);
        memcpy(&w, byte_tiles[b][k / 2] + 4 * n + k % 2 * 2, 2);
        total += bfloat16_to_float(x) * bfloat16_to_float(w);
      }
      memcpy(byte_tiles[sum][m] + 4 * n, &total, 4);
    }
  }
}

#else

inline void begin_tiles(const ByteTiles& tiles) { asm volatile("ldtilecfg %0" ::"m"(tiles)); }
inline void end_tiles() { asm volatile("tilerelease" ::: "memory"); }
template <int t>
inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(t) : "memory");
}
template <int t>
inline void store_tile(void* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(t) : "memory");
}
// sum[m][n] += Σ a[m][4k + i] · b[k][4n + i], i = 0…3, a without signs.
template <int sum, int a, int b>
inline void multiply_tiles() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}
// sum[m][n] += Σ a[m][2k + i] · b[k][2n + i], i = 0, 1, of bfloat16 in float32.
template <int sum, int a, int b>
inline void multiply_number_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}

#endif

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_BYTE_TILES_H_
