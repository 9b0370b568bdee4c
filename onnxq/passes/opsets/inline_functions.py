"""Calls of local functions become the nodes of the function; those of our own operators' bodies stay calls."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import defs, inliner
from onnx_ir.passes.common import InlinePass

from onnxq import own_ops
from onnxq.errors import BadModel, first_line
from onnxq.model import graph
from onnxq.model.graph import Names
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
            if _means_the_same(function, graph.opset(model)):
                function.opset_imports[""] = graph.opset(model)
        versions = {f.opset_imports.get("", graph.opset(model)) for f in functions}
        if versions == {graph.opset(model)}:
            return InlinePass(_is_foreign)(model)
        RaiseOpset(max(versions))(model)
        try:
            _keep_meanings(model, functions)
            through_protobuf(model, _inlined)
            _meanings.after(model, min(versions), {})
        except Exception as error:  # the converter raises whatever its C++ core throws
            raise BadModel(f"a local function cannot be converted to the model's opset: {first_line(error)}") from None
        for function in functions:
            del model.functions[function.identifier()]
        return ir.passes.PassResult(model, modified=True)


def _means_the_same(function: ir.Function, opset: int) -> bool:
    """Whether all operators of a function are the same in this opset, the standard ones by their definitions."""
    own = function.opset_imports.get("", opset)
    used = {node.op_type for node in function.graph.all_nodes() if node.domain in ("", "ai.onnx")}
    try:
        return own == opset or all(
            defs.get_schema(op, own).since_version == defs.get_schema(op, opset).since_version for op in used
        )
    except defs.SchemaError:  # one of them has no such operator
        return False


def _keep_meanings(model: ir.Model, functions: list[ir.Function]) -> None:
    opset, names = graph.opset(model), Names(model)
    _name_arguments(model, functions)
    _meanings.name_defaults(graph.nodes(model), opset)
    for function in functions:
        own = function.opset_imports.get("", opset)
        _meanings.before(function.graph.all_nodes(), names, own, opset)
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
