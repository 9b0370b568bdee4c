// The lookup in registers by itself: what else processors with VBMI run is compiled once, in avx512_vnni.cc.

#include "lookup_vbmi.h"

namespace onnxq {

void lookup_avx512_vbmi(const Lookup& p, int64_t first, int64_t last);
void lookup_avx512_vbmi(const Lookup& p, int64_t first, int64_t last) { lookup_vbmi(p, first, last); }

}  // namespace onnxq
