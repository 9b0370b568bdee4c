#include "both.h"
#include "ymm.h"

namespace onnxq {

extern const Kernel kernel_avx_vnni;
constexpr Kernel kernel_avx_vnni = {"avx_vnni", kAvx2 | kAvxVnni, workspace<YmmVnni>, tasks<YmmVnni>, run<YmmVnni>};

}  // namespace onnxq
