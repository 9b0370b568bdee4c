"""What the operators of the onnxq domain compute, in standard ONNX: the model-local functions that every file carries.

`MatMulNBits`, `DenseMatMul`, `GatherNBits`, `Attention` and `Recurrent` are compiled kernels where their library is
registered. Where it is not, a runtime calls the function of the same domain, name and overload, so that the file opens
in any onnxruntime.
`DequantizeNBits`, `NestedScales` and `WidenTiles` are functions everywhere: runtimes fold them when they load the
model. One body serves all shapes: sizes come from the attributes of the node and the shapes of its inputs. The
overload names the variant:

    MatMulNBits        FORMAT[_zp][_bias][_exact|_shared]
    DenseMatMul        FORMAT[_bias][_plus|_times][_exact][_relu|_gelu|_gelu_tanh|_silu]
    GatherNBits        FORMAT[_zp]
    Attention          softmax[_mask][_exact][_turnedRANK|_joinedPARTS]
    Recurrent          FORMAT[_exact]_lstm|gru|rnn[_bias][_lens][_h][_c][_clip]
    DequantizeNBits    FORMAT[_turned|_shaped|_scales|_minima]
    NestedScales       FORMAT
    WidenTiles         FORMAT

Spelling and bytes of all are defined here and in `layouts` alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxq import formats, layouts
from onnxq.formats import Format

DOMAIN, VERSION = "onnxq", 1
MATMUL, GATHER, DEQUANTIZE, NESTED = "MatMulNBits", "GatherNBits", "DequantizeNBits", "NestedScales"
DENSE, ATTENTION, WIDEN, RECURRENT = "DenseMatMul", "Attention", "WidenTiles", "Recurrent"
#: Bits of an attention's attribute `joined`: of what the heads of a row lie side by side.
JOINED = {"q": 1, "k": 2, "v": 4, "y": 8}
#: What a Recurrent computes, in the words of standard operators, and how many gates a number of its state has.
CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}
#: Its inputs behind the weights.
RECURRENT_INPUTS = ("bias", "sequence_lens", "initial_h", "initial_c")
#: Their bodies are islands of models (`passes/regions`).
ISLANDS = REGION, BF16_REGION = "Region", "Bf16Region"
#: Overloads are part of the protobuf from this version on, and bodies are written in these standard operators.
IR_VERSION, OPSET = 10, 21
#: Those of a DenseMatMul and an Attention need no newer ones than these.
FLOAT_OPSET = 15
_FILES = {
    MATMUL: "_matmul",
    DENSE: "_dense",
    GATHER: "_gather",
    ATTENTION: "_attention",
    RECURRENT: "_recurrent",
    DEQUANTIZE: "_dequantize",
    NESTED: "_nested",
    WIDEN: "_widen",
}


@dataclass(frozen=True)
class Variant:
    """Which of the bodies of an operator.

    Attributes:
        op: one of the operators.
        format: `kernel` of the weight's format; of the operators without kernels, the format's own word; of an
            attention `softmax`.
        zero_points, bias: whether the node has that input.
        exact: activations are not rounded, whoever computes.
        moved: what DequantizeNBits does to [R, K]: nothing, `turned` (a matrix), or `shaped` (of any rank); or which
            part of a weight in a format of two levels it is that it makes, `scales` or `minima`. Of an attention,
            `turned` and the rank of k, where that is [..., T, D], or `joined` and the number that its attribute of
            that name has. Of a DenseMatMul its activation function. Of a Recurrent the standard operator, and the last
            words of the inputs behind the weights that it has, and `clip`.
        mask: whether an attention has that input.
        shared: whether other products read the weight of this one too, for the body alone.
        other: what a DenseMatMul does with its last input: nothing, `plus` or `times`.
    """

    op: str
    format: str
    zero_points: bool = False
    bias: bool = False
    exact: bool = False
    moved: str = ""
    mask: bool = False
    other: str = ""
    shared: bool = False

    @property
    def overload(self) -> str:
        inputs = ["zp" * self.zero_points, "bias" * self.bias, "mask" * self.mask, self.other]
        words = [self.format, *inputs, "exact" * self.exact, "shared" * self.shared, self.moved]
        return "_".join(word for word in words if word)

    @property
    def decoded(self) -> Format:
        """The format that says what the codes stand for: a kernel's word is that of a format too."""
        return formats.get(self.format)

    @property
    def bits(self) -> int:
        """Of a code in the tiles that kernels read."""
        return layouts.onnxq_width(self.decoded.bits)


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
    """The function of `variant` in standard operators of version `opset`: at least `OPSET`, or `FLOAT_OPSET`."""
    lines: list[str] = importlib.import_module(f"onnxq.own_ops.{_FILES[variant.op]}").lines(variant)
    function = onnx.parser.parse_function(f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>\n' + "\n".join(lines))
    function.overload = variant.overload
    return function
