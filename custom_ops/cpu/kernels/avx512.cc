#include "both.h"
#include "zmm.h"

namespace onnxq {

extern const Kernel kernel_avx512;
constexpr Kernel kernel_avx512 = {"avx512", kAvx512, workspace<ZmmPairs>, tasks<ZmmPairs>, run<ZmmPairs>};

}  // namespace onnxq
