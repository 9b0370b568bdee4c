// What kernels with AVX-VNNI need of a processor.

#ifndef ONNXQ_CPU_KERNELS_AVX_VNNI_H_
#define ONNXQ_CPU_KERNELS_AVX_VNNI_H_

#include <immintrin.h>

#include "../kernel.h"

#if defined(ONNXQ_EMULATE)  // the same operation in AVX512's encoding, for tests on processors without AVX-VNNI
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#define _mm256_dpwssd_avx_epi32 _mm256_dpwssd_epi32
#define __AVXVNNI__ 1
#endif

namespace onnxq {

#if defined(ONNXQ_EMULATE)
constexpr uint64_t kAvxVnniNeeds = kAvx2 | kAvx512 | kAvx512Vnni;
#else
constexpr uint64_t kAvxVnniNeeds = kAvx2 | kAvxVnni;
#endif

}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_AVX_VNNI_H_
