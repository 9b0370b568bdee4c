"""Which bytes: how the codes of a quantized weight are laid out for the operators that read them.

A `Layout` takes a `QuantizedTensor` and returns an array as it goes to disk; its `form` is the type and shape of that
array, known before the weight is computed. Its inverse is called `from_…`. `K` is
the contraction, `N` the output dimension, `B` the block. Element counts that do not fill the last block are padded with
codes that decode to zero.
"""

from __future__ import annotations

from onnxq.layouts._bits import from_low_first, high_first, low_first, nibbles_low_first, pack_codes, unpack_codes
from onnxq.layouts._compact import compact, from_compact
from onnxq.layouts._contrib import (
    from_matmul_bnb4,
    from_matmul_nbits,
    gather_block,
    halves,
    matmul_bnb4,
    matmul_nbits,
    matmul_nbits_zero_points,
)
from onnxq.layouts._fields import (
    as_rows,
    bit_fields,
    fields_of,
    from_bit_fields,
    group_offsets,
    group_rows,
    group_scales,
    moved_axes,
)
from onnxq.layouts._gguf import from_gguf, gguf, gguf_block
from onnxq.layouts._gguf import nbytes as gguf_nbytes
from onnxq.layouts._layout import Form, Layout, Outline, by_channel, column, flat, layout, stacked, turned
from onnxq.layouts._linear4bit import from_linear4bit, group_size, linear4bit, linear4bit_groups
from onnxq.layouts._nested import nested_codes, nested_factors, nested_offset
from onnxq.layouts._plain import codes, scales, zero_points
from onnxq.layouts._rows import block_rows, blocks_last, scales_by_row, zero_points_by_row
from onnxq.layouts._stored_scales import (
    channel_factors,
    minimum_codes,
    minimum_factors,
    scale_code_tiles,
    scale_codes,
    scale_factor,
    scale_factors,
    stored_scales,
)
from onnxq.layouts._tiles import (
    ROWS,
    Step,
    dense,
    dense_tiles,
    few_bits_tiles,
    from_dense_tiles,
    from_few_bits_tiles,
    from_onnxq_tiles,
    from_recurrent_tiles,
    from_row_tiles,
    onnxq_scales,
    onnxq_tiles,
    onnxq_width,
    onnxq_zero_points,
    recurrent_scales,
    recurrent_tiles,
    steps_to_rows,
)

__all__ = [
    "ROWS",
    "Form",
    "Layout",
    "Outline",
    "Step",
    "as_rows",
    "bit_fields",
    "block_rows",
    "blocks_last",
    "by_channel",
    "channel_factors",
    "codes",
    "column",
    "compact",
    "dense",
    "dense_tiles",
    "few_bits_tiles",
    "fields_of",
    "flat",
    "from_bit_fields",
    "from_compact",
    "from_dense_tiles",
    "from_few_bits_tiles",
    "from_gguf",
    "from_linear4bit",
    "from_low_first",
    "from_matmul_bnb4",
    "from_matmul_nbits",
    "from_onnxq_tiles",
    "from_recurrent_tiles",
    "from_row_tiles",
    "gather_block",
    "gguf",
    "gguf_block",
    "gguf_nbytes",
    "group_offsets",
    "group_rows",
    "group_scales",
    "group_size",
    "halves",
    "high_first",
    "layout",
    "linear4bit",
    "linear4bit_groups",
    "low_first",
    "matmul_bnb4",
    "matmul_nbits",
    "matmul_nbits_zero_points",
    "minimum_codes",
    "minimum_factors",
    "moved_axes",
    "nested_codes",
    "nested_factors",
    "nested_offset",
    "nibbles_low_first",
    "onnxq_scales",
    "onnxq_tiles",
    "onnxq_width",
    "onnxq_zero_points",
    "pack_codes",
    "recurrent_scales",
    "recurrent_tiles",
    "scale_code_tiles",
    "scale_codes",
    "scale_factor",
    "scale_factors",
    "scales",
    "scales_by_row",
    "stacked",
    "steps_to_rows",
    "stored_scales",
    "turned",
    "unpack_codes",
    "zero_points",
    "zero_points_by_row",
]
