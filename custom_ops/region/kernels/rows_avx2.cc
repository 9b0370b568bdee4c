#include "../../cpu/kernel.h"
#include "code_rows.h"
#include "float_rows.h"

namespace onnxq {

extern const RowKernel rows_avx2;
constexpr RowKernel rows_avx2 = {"avx2",      kAvx2,    norm_rows,    softmax_rows, plus_rows,
                                 rotary_rows, weigh_rows, average_rows, pack_blocks,  moments_of_rows};

}  // namespace onnxq
