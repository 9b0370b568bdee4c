#include "avx_vnni.h"
#include "both.h"
#include "ymm.h"

namespace onnxq {

extern const Kernel kernel_avx_vnni;
constexpr Kernel kernel_avx_vnni = {"avx_vnni", kAvxVnniNeeds, workspace<YmmVnni>, tasks<YmmVnni>, run<YmmVnni>};

}  // namespace onnxq
