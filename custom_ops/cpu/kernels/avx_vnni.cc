#include <immintrin.h>

#if defined(ONNXQ_EMULATE)  // the same operation in AVX512's encoding, for tests on processors without AVX-VNNI
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#define __AVXVNNI__ 1
#endif

#include "both.h"
#include "ymm.h"

namespace onnxq {
namespace {

#if defined(ONNXQ_EMULATE)
constexpr uint64_t kNeeds = kAvx2 | kAvx512 | kAvx512Vnni;
#else
constexpr uint64_t kNeeds = kAvx2 | kAvxVnni;
#endif

}  // namespace

extern const Kernel kernel_avx_vnni;
constexpr Kernel kernel_avx_vnni = {"avx_vnni", kNeeds, workspace<YmmVnni>, tasks<YmmVnni>, run<YmmVnni>};

}  // namespace onnxq
