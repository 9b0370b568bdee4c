#include "in_floats.h"
#include "zmm_math.h"

namespace onnxq {

extern const AttentionKernel attention_avx512;
constexpr AttentionKernel attention_avx512 = {"avx512", kAvx512, InFloats<ZmmMath>::workspace, InFloats<ZmmMath>::tasks,
                                              InFloats<ZmmMath>::run};

}  // namespace onnxq
