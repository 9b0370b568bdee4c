// Convolutions by tiles of bfloat16.

#include "bf16_depthwise.h"
#include "tile_conv.h"

namespace onnxq {
namespace {

constexpr int64_t kDenseOffsets[kMostDense] = {0, kChunk, 2 * kChunk, 3 * kChunk};

// Windows whose rows are short, one after another.
struct Copies {
  // Rows are copied in whole lines: what is too much is written again, but for the last.
  alignas(64) uint8_t bytes[2][kTilePixels * kMostDense * kChunk + kChunk];
  int64_t rows[kMostDense * kChunk];  // where those of a window begin

  explicit Copies(const NumberConv& c) {
    for (int64_t row = 0; c.dense_weight && row < c.window_rows; ++row) {
      rows[row] = c.offsets[row * cover(c.row_bytes, kChunk)];
    }
  }
  static Windows all(const NumberConv& c) {
    if (!c.dense_weight) {
      return InPlace::all(c);
    }
    return {{nullptr, nullptr}, c.dense_chunks * kChunk, kDenseOffsets, c.dense_weight, c.dense_chunks};
  }
  void take(const NumberConv& c, const uint8_t* const* pixels, Windows& windows) {
    if (!c.dense_weight) {
      return InPlace::take(c, pixels, windows);
    }
    for (int64_t t = 0; t < 2; ++t) {
      const uint8_t* window = pixels[t];
      for (int64_t i = 0; i < c.tile; ++i, window += c.step_x) {
        uint8_t* to = bytes[t] + i * c.dense_chunks * kChunk;
        for (int64_t row = 0; row < c.window_rows; ++row, to += c.row_bytes) {
          for (int64_t at = 0; at < c.row_bytes; at += kChunk) {
            _mm512_storeu_si512(to + at, _mm512_loadu_si512(window + rows[row] + at));
          }
        }
      }
      windows.pixels[t] = bytes[t];
    }
  }
};

struct Pairs {
  using Problem = NumberConv;
  using Finish = NumberFinish;
  using Gathered = Copies;

  static const float* starts(const NumberConv& c, int64_t block) { return c.starts + block * kBlock; }
  template <int sum, int a, int b>
  static void multiply() {
    multiply_number_tiles<sum, a, b>();
  }
};

// A product of tiles takes the time of a sixteenth of its dot products.
bool plan_numbers(NumberConv& c) {
  int64_t pairs = 0;
  for (int64_t k = 0; k < c.chunks; ++k) {
    pairs += c.quads[k];
  }
  if (!c.dense_weight && (pairs < 4 || pairs < c.chunks * 3)) {
    return false;
  }
  plan_tiles(c, kTilePixels, 2);
  return true;
}

#if defined(ONNXQ_EMULATE)
constexpr uint64_t kNeeds = kAvx512 | kAvx512Bf16;
#else
constexpr uint64_t kNeeds = kAvx512 | kAvx512Bf16 | kAmxBf16;
#endif

}  // namespace

extern const NumberKernel bf16_region_amx;
constexpr NumberKernel bf16_region_amx = {
    "amx",                kNeeds,               plan_numbers,         conv_tiles_of<Pairs>,
    number_depthwise,     number_binary_simple, number_affine_simple, number_moments_simple, number_pool,
    number_interpolate_simple, number_copy_simple,   number_read,          number_write};

}  // namespace onnxq
