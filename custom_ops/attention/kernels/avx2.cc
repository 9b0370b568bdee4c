#include "../../cpu/kernels/ymm.h"
#include "in_floats.h"

namespace onnxq {
namespace {

struct YmmMath : Ymm {
  // The second where either is NaN.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }

  static bool any_above(F a, float bound) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_set1_ps(bound), _CMP_NLE_UQ)) != 0;
  }

  static float largest(F a) {
    float numbers[kLanes];
    store(numbers, a);
    float most = numbers[0];
    for (const float each : numbers) {
      most = each > most ? each : most;
    }
    return most;
  }

  static float sum(F a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // e^x for x ≤ 0, NaN where x is, 0 where it would be subnormal; within 2^-22.
  static F exp(F x) {
    const F lowest = _mm256_set1_ps(-87.0f);
    const F is_more = _mm256_cmp_ps(x, lowest, _CMP_NLT_UQ), least = _mm256_max_ps(lowest, x);
    const F n = _mm256_round_ps(_mm256_mul_ps(least, _mm256_set1_ps(1.44269504f)), 8);
    F r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), least);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    F y = _mm256_set1_ps(1.0f / 720);
    constexpr float kFactors[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (const float factor : kFactors) {
      y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(factor));
    }
    const I exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(exponent)), is_more);
  }
};

}  // namespace

extern const AttentionKernel attention_avx2;
constexpr AttentionKernel attention_avx2 = {"avx2", kAvx2, InFloats<YmmMath>::workspace, InFloats<YmmMath>::tasks,
                                            InFloats<YmmMath>::run};

}  // namespace onnxq
