// The AMX instructions that are used, one function each; or, with ONNXQ_EMULATE, what they do in plain loops, so that the
// kernel can be tested on processors without them. After Intel's Software Developer's Manual, volume 2: TDPBF16PS.

#ifndef ONNXQ_CPU_KERNELS_TILES_H_
#define ONNXQ_CPU_KERNELS_TILES_H_

#include "../../base/format.h"

namespace onnxq {
namespace {

constexpr int64_t kTileRows = 16, kTileBytes = 1024;  // 16 rows of 64 bytes
constexpr int64_t kTilesAhead = 2048;  // bytes that weights are fetched ahead, as measured on processors with AMX

struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
alignas(64) constexpr TileConfig kAllTilesFull = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
static_assert(sizeof(TileConfig) == 64, "as the processor reads it");
// Sums (tiles 0 to 3) and x (4 and 5) of half as many rows: products take half the time.
alignas(64) constexpr TileConfig kHalfTheRows = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {8, 8, 8, 8, 8, 8, 16, 16}};

#if defined(ONNXQ_EMULATE)

static thread_local float tile_memory[8][kTileRows][16];

inline void tiles_begin(int = kTileRows) {}
inline void tiles_end() { memset(tile_memory, 0xFF, sizeof tile_memory); }  // NaN: nothing may rely on what is left
template <int t>
void tile_zero() { memset(tile_memory[t], 0, kTileBytes); }
template <int t>
void tile_load(const void* from) { memcpy(tile_memory[t], from, kTileBytes); }
template <int t>
void tile_load_passing(const void* from) { tile_load<t>(from); }
template <int t>
void tile_store(void* to) { memcpy(to, tile_memory[t], kTileBytes); }

template <int sum, int a, int b>
void tile_multiply() {
  uint16_t x[16][32], w[16][32];
  memcpy(x, tile_memory[a], kTileBytes);
  memcpy(w, tile_memory[b], kTileBytes);
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 16; ++n) {
        for (int i = 0; i < 2; ++i) {
          tile_memory[sum][m][n] += bits_to_float(static_cast<uint32_t>(x[m][2 * k + i]) << 16) *
                                    bits_to_float(static_cast<uint32_t>(w[k][2 * n + i]) << 16);
        }
      }
    }
  }
}

#else

// Assembly, because the compilers' intrinsics take no template parameter, and GCC 12 believes that _tile_loadconfig reads
// only eight bytes, so that it drops the stores of the others.
inline void tiles_begin(int rows = kTileRows) {
  asm volatile("ldtilecfg %0" ::"m"(*(rows == kTileRows ? &kAllTilesFull : &kHalfTheRows)));
}
inline void tiles_end() { asm volatile("tilerelease" ::: "memory"); }
template <int t>
void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(t)); }
// A tile that lies in one piece: rows 64 bytes apart.
template <int t>
void tile_load(const void* from) { asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(64L), "i"(t) : "memory"); }
// The same where others shall stay in the first-level cache.
template <int t>
void tile_load_passing(const void* from) { asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(64L), "i"(t) : "memory"); }
template <int t>
void tile_store(void* to) { asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(64L), "i"(t) : "memory"); }
// sum[m][n] += Σ a[m][2k + i] · b[k][2n + i], i = 0, 1, in float32.
template <int sum, int a, int b>
void tile_multiply() { asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b)); }

#endif

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_TILES_H_
