"""What the operators of the onnxq domain compute, in standard ONNX: the model-local functions that every file carries.

`MatMulNBits` and `GatherNBits` are compiled kernels where their library is registered. Where it is not, a runtime calls
the function of the same domain, name and overload, so that the file opens in any onnxruntime. One body serves all
shapes: sizes come from the attributes of the node and from the shape of its scales. The overload names the variant:

    MatMulNBits   FORMAT[_zp][_bias][_exact]
    GatherNBits   FORMAT[_zp]

A multiplication in an integer format decodes by DequantizeLinear on blocks: stock onnxruntime folds what is in front of
it and fuses the rest to its own 4-bit or 8-bit kernel, which rounds activations to int8. In an `exact` one, and in the
formats that have a table of levels, the weight is decoded by Mul, which onnxruntime folds to floats at load.

Bytes: `layouts.onnxq_tiles`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats

DOMAIN, VERSION = "onnxq", 1
MATMUL, GATHER = "MatMulNBits", "GatherNBits"
#: What a kernel calls the codes of a format; formats of one name differ in how their scales are chosen.
KERNEL_FORMATS = {
    "int4": "int4",
    "uint4": "int4",
    "q4_0": "int4",
    "int8": "int8",
    "uint8": "int8",
    "q8_0": "int8",
    "nf4": "nf4",
    "nf4_dq": "nf4",
    "fp4": "fp4",
    "mxfp4": "mxfp4",
}
#: Overloads are part of the protobuf from this version on, and bodies are written in these standard operators.
IR_VERSION, OPSET = 10, 21
_UINT4 = int(ir.DataType.UINT4)


@dataclass(frozen=True)
class Variant:
    """Which of the bodies of an operator.

    Attributes:
        op: `MATMUL` or `GATHER`.
        format: a kernel's word, a value of `KERNEL_FORMATS`.
        zero_points, bias: whether the node has that input.
        exact: activations are not rounded, whoever computes.
    """

    op: str
    format: str
    zero_points: bool = False
    bias: bool = False
    exact: bool = False

    @property
    def overload(self) -> str:
        return self.format + "_zp" * self.zero_points + "_bias" * self.bias + "_exact" * self.exact

    @property
    def is_integer(self) -> bool:
        return self.format in ("int4", "int8")

    @property
    def bits(self) -> int:
        return 8 if self.format == "int8" else 4


def add_function(model: ir.Model, variant: Variant) -> None:
    """Make sure that `model` carries the body of this variant."""
    model.opset_imports.setdefault(DOMAIN, VERSION)
    model.ir_version = max(model.ir_version, IR_VERSION)
    key = (DOMAIN, variant.op, variant.overload)
    if key not in model.functions:
        model.functions[key] = ir.serde.deserialize_function(body(variant, model.opset_imports[""]))


@functools.cache
def body(variant: Variant, opset: int) -> onnx.FunctionProto:
    """The function of `variant` in standard operators of version `opset` (at least `OPSET`)."""
    lines = _matmul(variant) if variant.op == MATMUL else _gather(variant)
    function = onnx.parser.parse_function(f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>\n' + "\n".join(lines))
    function.overload = variant.overload
    return function


_SIZES = """
    k0 = Constant <value_int: int = @K> ()
    n0 = Constant <value_int: int = @N> ()
    block0 = Constant <value_int: int = @block_size> ()
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    rest = Constant <value_ints = [-1]> ()
    k = Reshape (k0, rest)
    n = Reshape (n0, rest)
    block = Reshape (block0, rest)
    scales_shape = Shape (scales)
    blocks = Slice (scales_shape, one, two)
    kp = Mul (blocks, block)
    first = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    each_k = Range (first, k0, step)
    block_of_k = Div (each_k, block0)"""


def _matmul(v: Variant) -> list[str]:
    inputs = ["x", "weight", "scales", *["zero_points"] * (v.zero_points or v.bias), *["bias"] * v.bias]
    lines = [
        f"{MATMUL} <K, N, block_size, format, activations> ({', '.join(inputs)}) => (y) {{",
        _SIZES,
        *_nibbles(v, "weight", axis=3),
        "turned = Transpose <perm = [1, 3, 0, 2]> (unpacked)",  # [Kp / 8, 8, T, 16]
        "padded_shape = Concat <axis = 0> (kp, rest)",
        "padded = Reshape (turned, padded_shape)",  # [Kp, 16 T]
        "origin = Constant <value_ints = [0, 0]> ()",
        "kn = Concat <axis = 0> (k, n)",
        "codes = Slice (padded, origin, kn)",
        *_turned("scales"),
        *_scale_values(v, "scales_n"),
    ]
    if v.zero_points:
        lines += _turned("zero_points")
    lines += _dequantized(v) if v.is_integer and not v.exact else _decoded(v)
    lines += ["x32 = Cast <to = 1> (x)", "product = MatMul (x32, w)"]
    if v.bias:
        lines += ["bias32 = Cast <to = 1> (bias)", "sum = Add (product, bias32)"]
    return [*lines, f"y = CastLike ({'sum' if v.bias else 'product'}, x)", "}"]


def _turned(name: str) -> list[str]:
    """[blocks, N] from [T, blocks, 16]."""
    return [
        f"{name}_turned = Transpose <perm = [1, 0, 2]> ({name})",
        f"{name}_shape2 = Concat <axis = 0> (blocks, rest)",
        f"{name}_padded = Reshape ({name}_turned, {name}_shape2)",
        f"{name}_n = Slice ({name}_padded, zero, n, one)",
    ]


def _nibbles(v: Variant, name: str, axis: int) -> list[str]:
    """`unpacked`: one code a byte, low nibbles first along `axis`."""
    if v.bits == 8:
        return [f"unpacked = Identity ({name})"]
    return [
        "fifteen = Constant <value = uint8 {15}> ()",
        "four = Constant <value = uint8 {4}> ()",
        f"low = BitwiseAnd ({name}, fifteen)",
        f'high = BitShift <direction = "RIGHT"> ({name}, four)',
        f"unpacked = Concat <axis = {axis}> (low, high)",
    ]


def _scale_values(v: Variant, name: str) -> list[str]:
    """`scale`: scales as float32."""
    if v.format != "mxfp4":
        return [f"scale = Cast <to = 1> ({name})"]
    return [
        f"exponent = Cast <to = 1> ({name})",
        "exponent_of_one = Constant <value = float {127}> ()",
        "power = Sub (exponent, exponent_of_one)",
        "base = Constant <value = float {2}> ()",
        "scale = Pow (base, power)",
    ]


def _dequantized(v: Variant) -> list[str]:
    """`w` [K, N] in a form that onnxruntime fuses with the product."""
    zeros = ["zeros = Identity (zero_points_n)"]
    if not v.zero_points:
        zeros = [
            f"middle = Constant <value = uint8 {{{1 << (v.bits - 1)}}}> ()",
            "scale_shape = Shape (scale)",
            "zeros = Expand (middle, scale_shape)",
        ]
    codes, zero = "codes", "zeros"
    if v.bits == 4:
        zeros += [f"codes4 = Cast <to = {_UINT4}> (codes)", f"zeros4 = Cast <to = {_UINT4}> (zeros)"]
        codes, zero = "codes4", "zeros4"
    return [*zeros, f"w = DequantizeLinear <axis = 0, block_size: int = @block_size> ({codes}, scale, {zero})"]


def _decoded(v: Variant) -> list[str]:
    """`w` [K, N] in as few float arrays as possible: onnxruntime holds all of them while it folds."""
    lines = _values(v, "codes")
    value = "value"
    if v.is_integer and v.zero_points:
        lines += [
            "zeros = Cast <to = 1> (zero_points_n)",
            "each_zero = Gather <axis = 0> (zeros, block_of_k)",
            "difference = Sub (value, each_zero)",
        ]
        value = "difference"
    return [*lines, "each_scale = Gather <axis = 0> (scale, block_of_k)", f"w = Mul ({value}, each_scale)"]


def _values(v: Variant, codes: str) -> list[str]:
    """`value`: what the codes stand for, before the scale; of integers with zero points, the code itself."""
    if not v.is_integer:
        return [
            f"levels = Constant <value = {_tensor(levels(v.format))}> ()",
            f"index = Cast <to = {int(ir.DataType.INT32)}> ({codes})",
            "value = Gather (levels, index)",
        ]
    if v.zero_points:
        return [f"value = Cast <to = 1> ({codes})"]
    return [
        f"code = Cast <to = 1> ({codes})",
        f"middle = Constant <value = float {{{1 << (v.bits - 1)}}}> ()",
        "value = Sub (code, middle)",
    ]


def _gather(v: Variant) -> list[str]:
    """Rows are taken while they are packed, so only those that are looked up become floats."""
    inputs = "weight, scales, zero_points, indices"
    lines = [
        f"{GATHER} <K, N, block_size, format, dtype> ({inputs}) => (y) {{",
        _SIZES,
        "weight_turned = Transpose <perm = [0, 2, 1, 3]> (weight)",  # [T, 16, Kp / 8, 4]
        "weight_shape = Shape (weight)",
        "groups = Slice (weight_shape, one, two)",
        "group = Constant <value_ints = [4]> ()",
        "rows_shape = Concat <axis = 0> (rest, groups, group)",
        "padded_rows = Reshape (weight_turned, rows_shape)",
        "rows = Slice (padded_rows, zero, n)",  # without it, negative indices would count from behind the last row
        "flat = Reshape (indices, rest)",
        "found = Gather <axis = 0> (rows, flat)",  # [M, Kp / 8, 4]
        *_nibbles(v, "found", axis=2),
        "codes_shape = Concat <axis = 0> (zero, kp)",
        "padded = Reshape (unpacked, codes_shape)",
        "codes = Slice (padded, zero, k, one)",
        *_found("scales"),
        *_scale_values(v, "scales_found"),
        *_values(v, "codes"),
    ]
    value = "value"
    if v.zero_points:
        lines += [
            *_found("zero_points"),
            "zeros = Cast <to = 1> (zero_points_found)",
            "each_zero = Gather <axis = 1> (zeros, block_of_k)",
            "difference = Sub (value, each_zero)",
        ]
        value = "difference"
    return [
        *lines,
        "each_scale = Gather <axis = 1> (scale, block_of_k)",
        f"floats = Mul ({value}, each_scale)",
        "typed = Cast <to: int = @dtype> (floats)",
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


def levels(format: str) -> NDArray[np.float32]:
    """What the 16 codes of a table format stand for."""
    found: NDArray[np.float32] = getattr(formats.get(format), "levels")  # noqa: B009
    return found


def _tensor(array: NDArray[np.float32]) -> str:
    """A vector in ONNX's text form, exact."""
    return f"float[{array.size}] {{{', '.join(repr(float(x)) for x in array)}}}"
