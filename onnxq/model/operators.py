"""What ONNX says that operators must have, asked of its schemas once for each operator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import defs

from onnxq.errors import BadModel
from onnxq.model import graph

_SINGLE = defs.OpSchema.FormalParameterOption.Single
_ANY = 1 << 31
#: Indexes of the inputs that onnxruntime's own operators cannot do without, of those that are read here. Its schemas
#: say them, too, but of the version that is installed: later ones may ask for less of others, and know more inputs.
_THEIRS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("BiasGelu", "FusedConv", "FusedGemm", "FusedMatMul", "NhwcConv", "NhwcFusedConv"), (0, 1)),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear", "QLinearConcat", "Range"), (0, 1)),
    **dict.fromkeys(("QLinearAveragePool", "QLinearLeakyRelu", "QLinearReduceMean", "QLinearSigmoid"), (0, 1, 3)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), (0, 1, 3, 4, 6)),
    **dict.fromkeys(("DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulBnb4", "MatMulNBits"), (0, 1, 2)),
    "DynamicQuantizeLSTM": (0, 1, 2, 8, 9, 10, 11),
    "MatMulIntegerToFloat": (0, 1, 2, 3),
    "MoE": (0, 1, 2, 4),
    "QAttention": (0, 1, 2, 3, 4),
    "QGemm": (0, 1, 2, 3, 4, 5),
    "QLinearConv": range(8),
    "QLinearGlobalAveragePool": (0, 1, 2, 3, 4),
    "QLinearSoftmax": (0, 1, 3, 4),
    "QLinearWhere": range(9),
    "QMoE": (0, 1, 2, 5),
}


@dataclass(frozen=True)
class Operator:
    """Of one version.

    Attributes:
        inputs, outputs: the least and the most there may be.
        needed: index and name of inputs that cannot be left out.
        attributes: type of each by name, as `AttributeProto` calls it.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: Sequence[tuple[int, str]]
    attributes: Mapping[str, str]


@functools.cache
def operator(op_type: str, version: int, domain: str) -> Operator | None:
    """What the standard says, or onnxruntime of its own; None for operators that neither knows, but a runtime may."""
    if domain == graph.MICROSOFT and op_type in _THEIRS:
        needed = _THEIRS[op_type]
        least = int(op_type != "DynamicQuantizeLSTM")  # of which any output may be left out
        return Operator((needed[-1] + 1, _ANY), (least, _ANY), [(i, f"#{i + 1}") for i in needed], {})
    try:
        schema = defs.get_schema(op_type, version, domain)
    except Exception:  # onnx has an exception of its own for each way in which it does not know
        return None
    return Operator(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple((i, formal.name) for i, formal in enumerate(schema.inputs) if formal.option == _SINGLE),
        {name: str(attribute.type).rpartition(".")[2] for name, attribute in schema.attributes.items()},
    )


def operator_of(node: ir.Node, opset: int) -> Operator | None:
    """Of ONNX's and onnxruntime's operators, which a model of `opset` has."""
    return operator(node.op_type, opset, node.domain) if node.domain in ("", graph.MICROSOFT) else None


def body_sizes(node: onnx.NodeProto, version: int) -> tuple[int | None, int] | None:
    """How many inputs and outputs each subgraph of a standard operator has, as onnxruntime counts them, too; None where
    it has none. Of an If the inputs are nobody's, and may be any."""
    given, made = len(node.input), len(node.output)
    return {
        "If": (None, made),
        "Loop": (given, made + 1),  # a number and a condition go in, which are M and cond; a condition comes out
        "Scan": (given - (version < 9), made),
        "SequenceMap": (given, made),
    }.get(node.op_type)


def require_inputs(model: ir.Model) -> None:
    """Once functions are inlined: what a caller left out may be what an operator cannot do without.

    Raises:
        BadModel: it is.
    """
    version = graph.opset(model)
    for node in graph.nodes(model):
        known = operator_of(node, version)
        for i, name in () if known is None else known.needed:
            if i >= len(node.inputs) or node.inputs[i] is None:
                raise BadModel(f"node '{node.name}' ({node.op_type}), of a local function, lacks its input '{name}'")
