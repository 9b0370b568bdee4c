// Convolutions by tiles of bytes.

#include "binary_zmm.h"
#include "border_zmm.h"
#include "depthwise_dot.h"
#include "interpolate_zmm.h"
#if !defined(ONNXQ_EMULATE)
#include "lookup_vbmi.h"
#endif
#include "pool_zmm.h"
#include "tile_conv.h"

namespace onnxq {
namespace {

struct Bytes {
  using Problem = Conv;
  using Finish = onnxq::Finish;
  using Gathered = InPlace;

  static const int32_t* starts(const Conv& c, int64_t block) { return c.bias + block * kBlock; }
  template <int sum, int a, int b>
  static void multiply() {
    multiply_tiles<sum, a, b>();
  }
};

struct JoinedBytes : Bytes {
  using Finish = FinishJoined;
};

void conv_amx(const Conv& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  (c.join ? conv_tiles_of<JoinedBytes> : conv_tiles_of<Bytes>)(c, n, first, last, block, end);
}

bool plan_amx(Conv& c) {
  // Few bytes of a window leave most of a tile empty.
  int64_t quads = 0;
  for (int64_t k = 0; k < c.chunks; ++k) {
    quads += c.quads[k];
  }
  if (quads * 4 < 24 || quads * 3 < c.chunks * 16) {
    return false;
  }
  plan_tiles(c, kTilePixels, 2);
  return true;
}

#if defined(ONNXQ_EMULATE)
constexpr uint64_t kNeeds = kAvx512 | kAvx512Vnni;
constexpr auto lookup_here = lookup_simple;
#else
constexpr uint64_t kNeeds = kAvx512 | kAvx512Vnni | kAvx512Vbmi | kAmxInt8;
constexpr auto lookup_here = lookup_vbmi;
#endif

}  // namespace

extern const RegionKernel region_amx;
constexpr RegionKernel region_amx = {
    "amx", kNeeds, plan_amx, conv_amx, depthwise_dots,
    binary_zmm, pool_zmm, lookup_here, affine_zmm,
    interpolate_zmm, quantize_zmm, dequantize_zmm, nullptr};

}  // namespace onnxq
