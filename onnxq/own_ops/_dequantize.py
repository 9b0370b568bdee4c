"""DequantizeNBits: a float weight from codes of any width (`layouts.bit_fields`), for formats without a kernel.

Rows of codes [R, bytes] with scales and offsets [R, blocks] become floats [R, K]. A weight that does not lie so takes
`shape`, then the order of axes `perm`: a variant of its own, because onnxruntime copies every float it moves. What the
offsets are depends on the format: zero points, which are subtracted from the codes, or minima, which are added in the
end. Scales and minima of a format of two levels are made in the same way, from codes and factors of their own.
"""

from __future__ import annotations

from onnxq.formats import E8M0, Format
from onnxq.layouts import fields_of
from onnxq.own_ops import DEQUANTIZE, Variant
from onnxq.own_ops._parts import FLOAT, K_AND_BLOCK, level_values, middle_values, scale_values, scaled, shifted_values


def lines(v: Variant) -> list[str]:
    format = _made(v)
    inputs = "codes, scales" if format.offset_type is None else "codes, scales, offsets"
    if format.levels is not None:
        values = level_values(format.levels, "code_rows")
    elif format.has_minimum:
        values = [f"value = Cast <to = {FLOAT}> (code_rows)"]
    elif format.offset_type is not None:
        values = shifted_values("code_rows", "offsets", axis=1)
    elif format.code_type.kind == "u":
        values = [f"value = Cast <to = {FLOAT}> (code_rows)"]
    else:
        values = middle_values(1 << (format.bits - 1), "code_rows")
    text = [
        f"{DEQUANTIZE} <K, block_size, shape, perm, format> ({inputs}) => (y) {{",
        K_AND_BLOCK,
        *_codes(format.bits),
        *scale_values("scales", exponents=format.scale_type == E8M0),
        *values,
        *scaled(axis=1),
    ]
    if format.has_minimum:
        text += [
            f"minima = Cast <to = {FLOAT}> (offsets)",
            "each_minimum = Gather <axis = 1> (minima, block_of_k)",
            "shifted = Add (w, each_minimum)",
        ]
    rows = "shifted" if format.has_minimum else "w"
    if v.moved == "turned":
        return [*text, f"y = Transpose <perm: ints = @perm> ({rows})", "}"]
    if v.moved == "shaped":
        text += ["y_shape = Constant <value_ints: ints = @shape> ()", f"shaped = Reshape ({rows}, y_shape)"]
        return [*text, "y = Transpose <perm: ints = @perm> (shaped)", "}"]
    return [*text, f"y = Identity ({rows})", "}"]


def _made(v: Variant) -> Format:
    """The format of what is made: the weight, or its scales or minima."""
    format = v.decoded
    found = {"scales": format.stored_scales, "minima": format.stored_minima}.get(v.moved, format)
    assert found is not None
    return found


def _codes(bits: int) -> list[str]:
    """`code_rows` [R, K]: uint8, or float32 if a code has more than 8 bits."""
    text = [
        "codes_shape = Shape (codes)",
        "row_count = Slice (codes_shape, zero, one)",
        "seven = Constant <value_ints = [7]> ()",
        "eight = Constant <value_ints = [8]> ()",
        "k7 = Add (k, seven)",
        "groups = Div (k7, eight)",
        "kp = Mul (groups, eight)",
        "rows_shape = Concat <axis = 0> (row_count, kp)",
        "start0 = Identity (zero)",
    ]
    so_far = ""
    for i, (width, low) in enumerate(fields_of(bits)):
        shifts = ", ".join(str(shift) for shift in range(0, 8, width))
        text += [
            f"width{i} = Constant <value_ints = [{width}]> ()",
            f"bytes{i} = Mul (groups, width{i})",
            f"start{i + 1} = Add (start{i}, bytes{i})",
            f"field{i} = Slice (codes, start{i}, start{i + 1}, one)",
            f"column{i} = Unsqueeze (field{i}, two)",
            f"shifts{i} = Constant <value = uint8[{8 // width}] {{{shifts}}}> ()",
            f'shifted{i} = BitShift <direction = "RIGHT"> (column{i}, shifts{i})',
            f"mask{i} = Constant <value = uint8 {{{(1 << width) - 1}}}> ()",
            f"masked{i} = BitwiseAnd (shifted{i}, mask{i})",
            f"part{i} = Reshape (masked{i}, rows_shape)",
        ]
        text += _placed(i, low, bits)
        if so_far:
            text.append(f"sum{i} = {'Add' if bits > 8 else 'BitwiseOr'} ({so_far}, placed{i})")
        so_far = f"sum{i}" if so_far else f"placed{i}"
    return [*text, f"code_rows = Slice ({so_far}, zero, k, one)"]


def _placed(i: int, low: int, bits: int) -> list[str]:
    """The field moved up to its place in the code."""
    if bits > 8:
        return [
            f"float{i} = Cast <to = {FLOAT}> (part{i})",
            f"place{i} = Constant <value = float {{{1 << low}}}> ()",
            f"placed{i} = Mul (float{i}, place{i})",
        ]
    return [
        f"place{i} = Constant <value = uint8 {{{low}}}> ()",
        f'placed{i} = BitShift <direction = "LEFT"> (part{i}, place{i})',
    ]
