#include "both.h"
#include "ymm.h"

namespace onnxq {

extern const Kernel kernel_avx2;
constexpr Kernel kernel_avx2 = {"avx2", kAvx2, workspace<YmmPairs>, tasks<YmmPairs>, run<YmmPairs>};

}  // namespace onnxq
