"""Calls of local functions become the nodes of the function; those of our own operators' bodies stay calls."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import defs, inliner
from onnx_ir.passes.common import InlinePass

from onnxq import own_ops
from onnxq.errors import BadModel, first_line
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import CONVERTED
from onnxq.passes.opsets import _meanings
from onnxq.passes.opsets.raise_opset import RaiseOpset, through_protobuf


class InlineFunctions(ir.passes.InPlacePass):
    """Inline every local function that is not the body of an operator of the onnxq domain.

    1. Functions in the model's own opset, or in another whose operators are the same: onnx_ir's pass.
    2. Functions in another one: the model is raised to the highest of all, and ONNX's inliner, which converts functions
       as it goes, takes the place of onnx_ir's.

    Raises (as the cause of an `onnx_ir` PassError):
        BadModel: functions call each other in a circle, or a function cannot be converted.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        functions = [function for function in model.functions.values() if _is_foreign(function)]
        if not functions:
            return ir.passes.PassResult(model, modified=False)
        for function in functions:
            _adopt(function, model.opset_imports)
        versions = {f.opset_imports.get("", graph.opset(model)) for f in functions}
        if versions == {graph.opset(model)}:
            return InlinePass(_is_foreign)(model)
        RaiseOpset(max(versions))(model)
        try:
            _keep_meanings(model, functions)
            through_protobuf(model, _inlined)
            oldest = min(versions)  # others have their numbers as inputs, of the right type
            _meanings.after(model, oldest, _meanings.types_of_numbers(model, oldest))
        except Exception as error:  # the converter raises whatever its C++ core throws
            raise BadModel(f"a local function cannot be converted to the model's opset: {_reason(error)}") from None
        model.meta[CONVERTED] = ", ".join(f"'{f.domain}::{f.name}'" for f in functions)
        for function in functions:
            del model.functions[function.identifier()]
        return ir.passes.PassResult(model, modified=True)


def _adopt(function: ir.Function, opsets: Mapping[str, int]) -> None:
    """Let a function be in the model's opsets, where all operators that it has of one are the same there."""
    for domain, own in list(function.opset_imports.items()):
        opset = opsets.get(domain, own)
        names = (domain, "ai.onnx") if not domain else (domain,)
        used = {node.op_type for node in function.graph.all_nodes() if node.domain in names}
        with contextlib.suppress(defs.SchemaError):  # one of them has no such operator
            if all(_since(op, own, domain) == _since(op, opset, domain) for op in used):
                function.opset_imports[domain] = opset


def _since(op: str, opset: int, domain: str) -> int:
    return int(defs.get_schema(op, opset, domain).since_version)


def _reason(error: Exception) -> str:
    """What the converter says, without where in its source it says that."""
    if unknown := re.search(r"Type unknown for (\S+)", str(error)):
        return f"ONNX's converter knows no type of '{unknown[1]}', with which a function of another opset is called"
    return first_line(error)


def _keep_meanings(model: ir.Model, functions: list[ir.Function]) -> None:
    opset, names = graph.opset(model), Names(model)
    _name_arguments(model, functions)
    _meanings.name_defaults(graph.nodes(model), opset)
    for function in functions:
        own = function.opset_imports.get("", opset)
        _meanings.before(function.graph.all_nodes(), names, own, opset, has_shapes=False)
        _meanings.name_defaults(function.graph.all_nodes(), own)
        for node in [*function.graph.all_nodes()]:
            for body in graph.bodies(node):
                _produce_outputs(body, names)


def _name_arguments(model: ir.Model, functions: list[ir.Function]) -> None:
    """Give each call of a function the attributes that the function has a default for: ONNX's inliner has none."""
    usual = {
        function.identifier(): [attribute for attribute in function.attributes.values() if attribute.value is not None]
        for function in functions
    }
    inner = (node for function in functions for node in function.graph.all_nodes())
    for node in (*graph.nodes(model), *inner):
        for attribute in usual.get(node.op_identifier(), ()):
            node.attributes.setdefault(attribute.name, attribute)


def _produce_outputs(body: ir.Graph, names: Names) -> None:
    """Let each output of a Loop's body, or another, be that of a node of its own: ONNX's inliner loses the others, such
    as a condition that is passed on."""
    made = set[ir.Value | None]()
    for i, value in enumerate(body.outputs):
        producer = value.producer()
        if producer is None or producer.graph is not body or value in made:
            name = names.fresh(f"{value.name}_passed_on")
            same = ir.node("Identity", [value], name=name)
            (out,) = same.outputs
            out.name, out.type, out.shape = name, value.type, value.shape
            body.append(same)
            body.outputs[i] = out
        made.add(value)


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    # The converter wants to know the type of what a call returns.
    for function in [function for function in proto.functions if function.domain == own_ops.DOMAIN]:
        proto.functions.remove(function)
    return inliner.inline_local_functions(onnx.shape_inference.infer_shapes(proto), convert_version=True)


def _is_foreign(function: ir.Function) -> bool:
    return function.domain != own_ops.DOMAIN
