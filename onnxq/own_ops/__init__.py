"""What the operators of the onnxq domain compute, in standard ONNX: the model-local functions that every file carries.

`MatMulNBits`, `DenseMatMul` and `GatherNBits` are compiled kernels where their library is registered. Where it is not,
a runtime calls the function of the same domain, name and overload, so that the file opens in any onnxruntime.
`DequantizeNBits` and `NestedScales` are functions everywhere: runtimes fold them when they load the model. One body
serves all shapes: sizes come from the attributes of the node and the shapes of its inputs. The overload names the
variant:

    MatMulNBits        FORMAT[_zp][_bias][_exact]
    DenseMatMul        FORMAT[_bias][_exact]
    GatherNBits        FORMAT[_zp]
    DequantizeNBits    FORMAT[_turned|_shaped]
    NestedScales       FORMAT

Spelling and bytes of all are defined here and in `layouts` alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.formats import Format, Granularity

DOMAIN, VERSION = "onnxq", 1
MATMUL, GATHER, DEQUANTIZE, NESTED = "MatMulNBits", "GatherNBits", "DequantizeNBits", "NestedScales"
DENSE = "DenseMatMul"
#: What DenseMatMul multiplies by: formats without scales.
DENSE_FORMATS = ("bfloat16",)
#: What a kernel calls the codes of a format; formats of one name differ in how their scales are chosen.
KERNEL_FORMATS = {
    "int4": "int4",
    "uint4": "int4",
    "q4_0": "int4",
    "pow2_int4": "int4",
    "int8": "int8",
    "uint8": "int8",
    "q8_0": "int8",
    "pow2_int8": "int8",
    "nf4": "nf4",
    "nf4_dq": "nf4",
    "nf4_dq_bnb": "nf4",
    "fp4": "fp4",
    "mxfp4": "mxfp4",
}
#: Overloads are part of the protobuf from this version on, and bodies are written in these standard operators.
IR_VERSION, OPSET = 10, 21
_FILES = {MATMUL: "_matmul", DENSE: "_dense", GATHER: "_gather", DEQUANTIZE: "_dequantize", NESTED: "_nested"}


@dataclass(frozen=True)
class Variant:
    """Which of the bodies of an operator.

    Attributes:
        op: one of the operators.
        format: a kernel's word, a value of `KERNEL_FORMATS` or one of `DENSE_FORMATS`; of the operators without
            kernels, any format.
        zero_points, bias: whether the node has that input.
        exact: activations are not rounded, whoever computes.
        moved: what DequantizeNBits does to [R, K]: nothing, `turned` (a matrix), or `shaped` (of any rank).
    """

    op: str
    format: str
    zero_points: bool = False
    bias: bool = False
    exact: bool = False
    moved: str = ""

    @property
    def overload(self) -> str:
        words = [self.format, "zp" * self.zero_points, "bias" * self.bias, "exact" * self.exact, self.moved]
        return "_".join(word for word in words if word)

    @property
    def is_integer(self) -> bool:
        return self.format in ("int4", "int8")

    @property
    def bits(self) -> int:
        """Of a code in the tiles that kernels read."""
        return 8 if self.format == "int8" else 4


def offset_type(format: Format) -> np.dtype | None:
    """Of the zero points or (floating-point) minima of a format; None if it has neither."""
    made = format.encode(np.zeros((1, 1), np.float32), Granularity(1, 1)).zero_points
    return None if made is None else made.dtype


def add_functions(model: ir.Model, variants: Iterable[Variant]) -> None:
    """Make sure that `model` carries the bodies of these variants."""
    for variant in sorted(variants, key=lambda variant: (variant.op, variant.overload)):
        model.opset_imports.setdefault(DOMAIN, VERSION)
        model.ir_version = max(model.ir_version, IR_VERSION)
        key = (DOMAIN, variant.op, variant.overload)
        if key not in model.functions:
            model.functions[key] = ir.serde.deserialize_function(body(variant, model.opset_imports[""]))


@functools.cache
def body(variant: Variant, opset: int) -> onnx.FunctionProto:
    """The function of `variant` in standard operators of version `opset` (at least `OPSET`)."""
    lines: list[str] = importlib.import_module(f"onnxq.own_ops.{_FILES[variant.op]}").lines(variant)
    function = onnx.parser.parse_function(f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>\n' + "\n".join(lines))
    function.overload = variant.overload
    return function
