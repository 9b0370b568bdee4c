"""Which bytes: how the codes of a quantized weight are laid out for the operators that read them.

Every function takes a `QuantizedTensor` and returns arrays as they go to disk; its inverse is called `from_…`. `K` is
the contraction, `N` the output dimension, `B` the block. Element counts that do not fill the last block are padded with
codes that decode to zero.
"""

from __future__ import annotations

from onnxq.layouts._bits import from_low_first, high_first, low_first, nibbles_low_first, pack_codes, unpack_codes
from onnxq.layouts._compact import compact, from_compact
from onnxq.layouts._contrib import (
    BNB4_FORMATS,
    from_matmul_bnb4,
    from_matmul_nbits,
    gather_block,
    halves,
    matmul_bnb4,
    matmul_nbits,
    matmul_nbits_zero_points,
)
from onnxq.layouts._fields import as_rows, bit_fields, fields_of, group_rows
from onnxq.layouts._gguf import BLOCK as GGUF_BLOCK
from onnxq.layouts._gguf import from_gguf, gguf
from onnxq.layouts._gguf import nbytes as gguf_nbytes
from onnxq.layouts._linear4bit import from_linear4bit, linear4bit
from onnxq.layouts._rows import blocks_last, scales_by_row, zero_points_by_row
from onnxq.layouts._tiles import (
    DENSE_BLOCK,
    dense_tiles,
    from_onnxq_tiles,
    onnxq_scales,
    onnxq_tiles,
    onnxq_zero_points,
)

__all__ = [
    "BNB4_FORMATS",
    "DENSE_BLOCK",
    "GGUF_BLOCK",
    "as_rows",
    "bit_fields",
    "blocks_last",
    "compact",
    "dense_tiles",
    "fields_of",
    "from_compact",
    "from_gguf",
    "from_linear4bit",
    "from_low_first",
    "from_matmul_bnb4",
    "from_matmul_nbits",
    "from_onnxq_tiles",
    "gather_block",
    "gguf",
    "gguf_nbytes",
    "group_rows",
    "halves",
    "high_first",
    "linear4bit",
    "low_first",
    "matmul_bnb4",
    "matmul_nbits",
    "matmul_nbits_zero_points",
    "nibbles_low_first",
    "onnxq_scales",
    "onnxq_tiles",
    "onnxq_zero_points",
    "pack_codes",
    "scales_by_row",
    "unpack_codes",
    "zero_points_by_row",
]
