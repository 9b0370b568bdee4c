"""Pools in float in front of codes, spelled so that onnxruntime leaves them in float."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.passes.fusing.keep_in_float import AXIS_SINCE, MOST_PLACES, sure_types


class KeepPoolsInFloat(ir.passes.InPlacePass):
    """onnxruntime moves a QuantizeLinear with one scale to in front of a MaxPool (`known.CODES_MOVE_PAST`). Behind a
    convolution in float, as networks begin with one, the pool of codes has channels first then, and takes seventy times
    as long as that of floats, which stays in the convolution's layout (MLAS has none for it; 1.31, 1.32).

    Such a QuantizeLinear gets its scale once for each channel, which computes the same codes, and stays where it is.
    Where the channels are not known, and before opset 13, nothing is done.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = list(_moved(model)) if graph.opset(model) >= AXIS_SINCE else []
        if not found:
            return ir.passes.PassResult(model, modified=False)
        types, names = sure_types(model), Names(model)
        modified = False
        for node in found:
            shape = types.of(node.inputs[0]).shape if node.inputs[0] is not None else None
            channels = shape[1] if shape is not None and len(shape) > 1 else None
            if isinstance(channels, int) and 1 < channels <= MOST_PLACES:
                _repeat_scale(node, channels, names)
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def _moved(model: ir.Model) -> Iterator[ir.Node]:
    """Each QuantizeLinear with one constant scale that alone reads a MaxPool of what was not codes before."""
    for node in graph.nodes(model):
        if not graph.is_op(node, "QuantizeLinear") or node.inputs[0] is None or len(node.inputs) != 3:
            continue
        pool = graph.own_producer(node.inputs[0], node)
        if pool is None or not graph.is_op(pool, "MaxPool"):
            continue
        before = graph.producer(pool.inputs[0])
        constants = [graph.constant(value) for value in node.inputs[1:]]
        if not graph.is_op(before, "DequantizeLinear") and all(c is not None and c.size == 1 for c in constants):
            yield node


def _repeat_scale(node: ir.Node, channels: int, names: Names) -> None:
    owner = node.graph
    assert isinstance(owner, ir.Graph)
    for place, suffix in ((1, "scales"), (2, "zero_points")):
        tensor = graph.constant(node.inputs[place])
        assert tensor is not None
        repeated = ir.tensor(np.repeat(tensor.numpy().reshape(1), channels), dtype=tensor.dtype)
        word = names.fresh(f"{node.outputs[0].name}_{suffix}")
        node.replace_input_with(place, graph.add_constant(owner, word, repeated))
    node.attributes["axis"] = ir.AttrInt64("axis", 1)
