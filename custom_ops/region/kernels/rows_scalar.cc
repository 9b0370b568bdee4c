#include "../../cpu/kernel.h"
#include "code_rows.h"
#include "float_rows.h"

namespace onnxq {

extern const RowKernel rows_scalar;
constexpr RowKernel rows_scalar = {"scalar",      0,    norm_rows,    softmax_rows, plus_rows,
                                 rotary_rows, weigh_rows, average_rows, pack_blocks,  moments_of_rows};

}  // namespace onnxq
