"""What ONNX says that operators must have, asked of its schemas once for each operator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx import defs

from onnxq.errors import BadModel
from onnxq.model import graph

_SINGLE = defs.OpSchema.FormalParameterOption.Single


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
    """What the standard says; None for operators that it does not know, but a runtime may."""
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


def require_inputs(model: ir.Model) -> None:
    """Once functions are inlined: what a caller left out may be what an operator cannot do without.

    Raises:
        BadModel: it is.
    """
    version = graph.opset(model)
    for node in graph.nodes(model):
        known = operator(node.op_type, version, "") if node.domain == "" else None
        for i, name in () if known is None else known.needed:
            if i >= len(node.inputs) or node.inputs[i] is None:
                raise BadModel(f"node '{node.name}' ({node.op_type}), of a local function, lacks its input '{name}'")
