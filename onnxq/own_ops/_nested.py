"""NestedScales: the scales of double quantization, from 8 bits (`kinds/nested.py`), in the shape of tiles or rows.

Codes [S, scales of a factor], with factors [S, 1] and one offset, become [T, blocks, 16]. Those of a format of two
levels with one factor for the whole weight lie as [T, blocks, 16] already.
"""

from __future__ import annotations

import numpy as np

from onnxq.formats.kinds import maps
from onnxq.own_ops import NESTED, Variant
from onnxq.own_ops._parts import FLOAT, INT32, vector


def lines(v: Variant) -> list[str]:
    if v.decoded.stored_scales is not None:
        return [
            f"{NESTED} <dtype> (codes, factor) => (y) {{",
            f"code = Cast <to = {FLOAT}> (codes)",
            "scale = Mul (code, factor)",
            "y = Cast <to: int = @dtype> (scale)",
            "}",
        ]
    if v.decoded.nested_type == np.int8:
        rest = [f"code = Cast <to = {FLOAT}> (codes)", "difference = Div (code, factors)"]
    else:
        rest = [
            f"map = Constant <value = {vector(maps.dynamic_map())}> ()",
            f"index = Cast <to = {INT32}> (codes)",
            "entry = Gather (map, index)",
            "difference = Mul (entry, factors)",
        ]
    return [
        f"{NESTED} <N, blocks, dtype> (codes, factors, offset) => (y) {{",
        *rest,
        "all = Add (difference, offset)",
        "minus_one = Constant <value_ints = [-1]> ()",
        "zero = Constant <value_ints = [0]> ()",
        "sixteen = Constant <value_ints = [16]> ()",
        "n0 = Constant <value_int: int = @N> ()",
        "n = Reshape (n0, minus_one)",
        "blocks0 = Constant <value_int: int = @blocks> ()",
        "blocks1 = Reshape (blocks0, minus_one)",
        "count = Mul (n, blocks1)",
        "flat = Reshape (all, minus_one)",
        "used = Slice (flat, zero, count)",
        "missing0 = Neg (n)",
        "missing = Mod (missing0, sixteen)",  # the sign of the divisor: 0 to 15
        "padding = Mul (missing, blocks1)",
        "pads = Concat <axis = 0> (zero, padding)",
        "filled = Pad (used, pads)",
        "tiles_shape = Concat <axis = 0> (minus_one, sixteen, blocks1)",
        "tiles = Reshape (filled, tiles_shape)",
        "turned = Transpose <perm = [0, 2, 1]> (tiles)",
        "y = Cast <to: int = @dtype> (turned)",
        "}",
    ]
