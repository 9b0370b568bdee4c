#include "both.h"
#include "zmm.h"

namespace onnxq {

extern const Kernel kernel_avx512_vnni;
constexpr Kernel kernel_avx512_vnni = {"avx512_vnni", kAvx512 | kAvx512Vnni, workspace<ZmmVnni>, tasks<ZmmVnni>, run<ZmmVnni>};

}  // namespace onnxq
