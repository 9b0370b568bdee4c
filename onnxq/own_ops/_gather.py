"""GatherNBits: rows [*indices, K] of a packed [N, K] table.

Rows are taken while they are packed, so only those that are looked up become floats, whoever computes.
"""

from __future__ import annotations

from onnxq.formats import E8M0
from onnxq.own_ops import GATHER, Variant
from onnxq.own_ops._parts import TILES, kernel_values, nibbles, scale_values, scaled


def lines(v: Variant) -> list[str]:
    return [
        f"{GATHER} <K, N, block_size, format, dtype> (weight, scales, zero_points, indices) => (y) {{",
        TILES,
        "weight_turned = Transpose <perm = [0, 2, 1, 3]> (weight)",  # [T, 16, Kp / 8, 4]
        "weight_shape = Shape (weight)",
        "groups = Slice (weight_shape, one, two)",
        "group = Constant <value_ints = [4]> ()",
        "rows_shape = Concat <axis = 0> (rest, groups, group)",
        "padded_rows = Reshape (weight_turned, rows_shape)",
        "rows = Slice (padded_rows, zero, n)",  # without it, negative indices would count from behind the last row
        "flat = Reshape (indices, rest)",
        "found = Gather <axis = 0> (rows, flat)",  # [M, Kp / 8, 4]
        *nibbles(v, "found", axis=2),
        "codes_shape = Concat <axis = 0> (zero, kp)",
        "padded = Reshape (unpacked, codes_shape)",
        "codes = Slice (padded, zero, k, one)",
        *_found("scales"),
        *scale_values("scales_found", exponents=v.decoded.scale_type == E8M0),
        *(_found("zero_points") if v.zero_points else []),
        *kernel_values(v, "codes", "zero_points_found", axis=1),
        *scaled(axis=1),
        "typed = Cast <to: int = @dtype> (w)",
        "indices_shape = Shape (indices)",
        "y_shape = Concat <axis = 0> (indices_shape, k)",
        "y = Reshape <allowzero = 1> (typed, y_shape)",
        "}",
    ]


def _found(name: str) -> list[str]:
    """[M, blocks] of the rows that are looked up, from [T, blocks, 16]."""
    return [
        f"{name}_turned = Transpose <perm = [0, 2, 1]> ({name})",
        f"{name}_shape2 = Concat <axis = 0> (rest, blocks)",
        f"{name}_padded = Reshape ({name}_turned, {name}_shape2)",
        f"{name}_rows = Slice ({name}_padded, zero, n)",
        f"{name}_found = Gather <axis = 0> ({name}_rows, flat)",
    ]
