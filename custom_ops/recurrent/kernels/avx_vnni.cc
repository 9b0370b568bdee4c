#include "../../cpu/kernels/avx_vnni.h"
#include "ymm.h"

namespace onnxq {
namespace {

struct Dots : Half {
  using W = I;

  static W weights(const uint8_t* p) { return load(p); }
  static I start(int32_t bytes) { return _mm256_set1_epi32(-128 * bytes); }
  static I dot(I sum, W w, I bytes) { return _mm256_dpbusd_avx_epi32(sum, w, bytes); }
};

}  // namespace

extern const RecurrentKernel recurrent_avx_vnni;
constexpr RecurrentKernel recurrent_avx_vnni = {"avx_vnni", kAvxVnniNeeds, 15, run_job<Dots>};

}  // namespace onnxq
