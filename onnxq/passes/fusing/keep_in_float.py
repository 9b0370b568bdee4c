"""Convolutions and products in float between int8 operators, spelled so that onnxruntime leaves them in float."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types, infer_types
from onnxq.runtime import known

#: The oldest opset in which a DequantizeLinear may have a scale for each place of an axis.
AXIS_SINCE = 13
#: Places of an axis, each of which gets a scale of its own: what a hostile model says of sizes is not believed.
MOST_PLACES = 1 << 16


class KeepInFloat(ir.passes.InPlacePass):
    """onnxruntime rounds weights in float to int8 where codes with one scale for all are read and codes are made
    (`known.ROUNDED_UNASKED`): what was kept in float for its accuracy would compute in integers.

    Such a node reads the same codes through a DequantizeLinear of its own, with the scale once for each place of an
    axis, which computes the same, as fast. Nodes that read the same codes share it. Where no axis of more than one
    place, and of no more than `MOST_PLACES`, is known, and before opset 13, nothing is done.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = list(rounded_unasked(model)) if graph.opset(model) >= AXIS_SINCE else []
        if not found:
            return ir.passes.PassResult(model, modified=False)
        types, names = sure_types(model), Names(model)
        made: dict[tuple[ir.Value, int], ir.Value] = {}
        for each in found:
            axis, size = each.axis(types)
            if size > 1:
                key = (each.floats, axis)
                if key not in made:
                    made[key] = _by_axis(each.floats, axis, size, names)
                each.reader.replace_input_with(0, made[key])
                _drop_unread(each.floats)
        return ir.passes.PassResult(model, modified=bool(made))


@dataclass(frozen=True)
class Rounded:
    """A node whose weights in float onnxruntime would round.

    Attributes:
        floats: what the DequantizeLinear makes, whose codes it would read.
        reader: of `floats`: the node itself, or the first of those that move numbers in front of it.
    """

    node: ir.Node
    floats: ir.Value
    reader: ir.Node

    def axis(self, types: Types) -> tuple[int, int]:
        """An axis of `floats` and how many places it has; (0, 1) if none with more than one is known."""
        found = [_channels(self.node, types)] if self.reader is self.node else []
        shape = types.of(self.floats).shape or ()
        found += [(axis, size) for axis, size in enumerate(shape) if isinstance(size, int)]
        return next((each for each in found if 1 < each[1] <= MOST_PLACES), (0, 1))


def sure_types(model: ir.Model) -> Types:
    """Types and shapes that follow from those of inputs and constants: of what the file says of values between, which
    onnxruntime does not hold anybody to, nothing is taken over."""
    copy = model.clone()
    for node in graph.nodes(copy):
        for out in node.outputs:
            out.shape = None
    return infer_types(copy)


def rounded_unasked(model: ir.Model) -> Iterator[Rounded]:
    """Every node whose weights in float onnxruntime would round."""
    for node in graph.nodes(model):
        if not graph.is_op(node, *known.ROUNDED_UNASKED) or not _has_float_constants(node):
            continue
        reader = node
        while graph.is_op(before := graph.producer_beside(reader), *known.CODES_MOVE_PAST):
            assert before is not None
            reader = before
        source, floats = graph.producer_beside(reader), reader.inputs[0]
        if source is not None and floats is not None and _has_one_scale(source) and _becomes_codes(node):
            yield Rounded(node, floats, reader)


def _has_one_scale(node: ir.Node) -> bool:
    """Whether it is a DequantizeLinear of an activation with one constant scale."""
    if not graph.is_op(node, "DequantizeLinear") or len(node.inputs) < 2 or graph.is_of_constants(node.inputs[0]):
        return False
    scale, zero = graph.constant(node.inputs[1]), graph.constant(_zero_points(node))
    if scale is None or scale.size != 1:
        return False
    return _zero_points(node) is None or (zero is not None and zero.size == 1)


def _zero_points(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _has_float_constants(node: ir.Node) -> bool:
    """Whether weight and bias are constants in float, once the model is loaded."""
    read = [value for value in node.inputs[1:3] if value is not None]
    are_codes = any(graph.is_op(value.producer(), "DequantizeLinear") for value in read)
    return bool(read) and not are_codes and all(graph.is_of_constants(value) for value in read)


def _becomes_codes(node: ir.Node) -> bool:
    """Whether what it makes is rounded and read by nobody else, behind what moves numbers or is fused with it."""
    if node.op_type == "MatMul" and graph.added_vector(node) is None:
        return False
    follower = graph.only_consumer(node.outputs[0])
    while follower is not None and not graph.is_op(follower, "QuantizeLinear"):
        moving = [value for value in follower.inputs if value is not None and not graph.is_of_constants(value)]
        is_passed = graph.is_op(follower, "Relu", "Clip", "Identity", *known.CODES_MOVE_PAST)
        is_joined = graph.is_op(follower, "Add", "Mul", "BatchNormalization")
        if len(moving) != 1 or not (is_passed or is_joined) or len(follower.outputs) != 1:
            return False
        follower = graph.only_consumer(follower.outputs[0])
    return follower is not None


def _channels(node: ir.Node, types: Types) -> tuple[int, int]:
    """The axis of what `node` reads that its weights are of, and its places; (0, 1) if they are not known."""
    weight = node.inputs[1]
    shape = [] if weight is None else [size for size in types.of(weight).shape or () if isinstance(size, int)]
    if len(shape) < 2:
        return (0, 1)
    if node.op_type == "Conv":
        return (1, shape[1] * graph.attribute_int(node, "group", 1))
    if node.op_type == "ConvTranspose":
        return (1, shape[0])
    if node.op_type == "MatMul":
        return (-1, shape[-2])
    return (
        0 if graph.attribute_int(node, "transA", 0) else 1,
        shape[1 if graph.attribute_int(node, "transB", 0) else 0],
    )


def _by_axis(floats: ir.Value, axis: int, size: int, names: Names) -> ir.Value:
    """The same numbers by a DequantizeLinear beside the one that makes `floats`, with a scale for each place."""
    node, base = floats.producer(), f"{floats.name}_by_axis"
    assert node is not None and isinstance(node.graph, ir.Graph)
    inputs = [node.inputs[0]]
    for suffix, value in (("scales", node.inputs[1]), ("zero_points", _zero_points(node))):
        tensor = graph.constant(value)
        if tensor is not None:
            repeated = ir.tensor(np.repeat(tensor.numpy().reshape(1), size), dtype=tensor.dtype)
            inputs.append(graph.add_constant(node.graph, names.fresh(f"{base}_{suffix}"), repeated))
    kept = [each for word, each in node.attributes.items() if word == "output_dtype"]
    attributes = [ir.AttrInt64("axis", axis), *kept]
    made = ir.Node("", "DequantizeLinear", inputs, attributes, name=names.fresh(base))
    out = made.outputs[0]
    out.name, out.type, out.shape = made.name, floats.type, floats.shape
    node.append(made)
    return out


def _drop_unread(value: ir.Value) -> None:
    node = value.producer()
    if node is not None and node.graph is not None and not value.uses() and not value.is_graph_output():
        node.graph.remove(node, safe=True)
