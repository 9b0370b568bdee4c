// Convolutions by tiles of bfloat16.

#include "bf16_zmm.h"
#include "tile_conv.h"

namespace onnxq {
namespace {

struct Pairs {
  using Problem = NumberConv;
  using Finish = NumberFinish;

  static const float* starts(const NumberConv& c) { return c.starts; }
  template <int sum, int a, int b>
  static void multiply() {
    multiply_number_tiles<sum, a, b>();
  }
};

// A product of tiles takes the time of a sixteenth of its dot products.
bool plan_numbers(Conv& c) {
  int64_t pairs = 0;
  for (int64_t k = 0; k < c.chunks; ++k) {
    pairs += c.quads[k];
  }
  if (pairs < 4 || pairs < c.chunks * 3) {
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
    number_depthwise,     number_binary_simple, number_affine_simple, number_pool,
    number_copy_simple,   number_read,          number_write};

}  // namespace onnxq
