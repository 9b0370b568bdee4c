#include "ymm.h"

namespace onnxq {
namespace {

// Products of signed bytes in pairs: 2 · 128 · 127 < 2^15.
struct Pairs : Half {
  struct W {
    I size, code;
  };

  static W weights(const uint8_t* p) {
    const I code = flip_sign_bit(load(p));
    return {_mm256_abs_epi8(code), code};
  }
  static I start(int32_t) { return zero_integer(); }
  static I dot(I sum, const W& w, I bytes) {
    const I pairs = _mm256_maddubs_epi16(w.size, _mm256_sign_epi8(bytes, w.code));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace

extern const RecurrentKernel recurrent_avx2;
constexpr RecurrentKernel recurrent_avx2 = {"avx2", kAvx2, 8, run_job<Pairs>};

}  // namespace onnxq
