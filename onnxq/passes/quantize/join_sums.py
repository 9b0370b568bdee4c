"""Convolutions whose result is added to something at once, for runtimes that compute both in one kernel."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.passes.quantize import PlanPass
from onnxq.plan import Method


class JoinSums(PlanPass):
    """Between an int8 convolution and the int8 Add that alone reads it there is no QuantizeLinear.

    The kernel adds the other operand to its own sums before it rounds: one rounding less, and one pass over the data.
    Of two convolutions the later one keeps its sums. onnxruntime, in which the noise of plans is measured, computes
    such a convolution in float: the same numbers, in more time.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        joined = 0
        chosen = {choice.node for choice in self.plan.those(Method.STATIC)}
        order = {node: number for number, node in enumerate(graph.nodes(model))}
        for node in list(order):
            if not graph.is_op(node, "Add") or node.name not in chosen:
                continue
            sums = [(index, found) for index in (0, 1) if (found := _sums(node.inputs[index], chosen)) is not None]
            if sums:
                index, value = max(sums, key=lambda each: order[_producer(each[1])])
                node.replace_input_with(index, value)
                joined += 1
        return ir.passes.PassResult(model, modified=joined > 0)


def _sums(value: ir.Value | None, chosen: set[str]) -> ir.Value | None:
    """What an int8 convolution makes before it is rounded, if `value` is that behind a pair that nobody else reads."""
    found = value
    for op in ("DequantizeLinear", "QuantizeLinear"):
        node = graph.producer(found)
        if node is None or not graph.is_op(node, op) or graph.only_consumer(node.outputs[0]) is None:
            return None
        found = node.inputs[0]
    node = graph.producer(found)
    is_ours = node is not None and graph.is_op(node, "Conv") and node.name in chosen
    return found if is_ours and found is not None and graph.only_consumer(found) is not None else None


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
