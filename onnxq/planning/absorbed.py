"""Activations and biases that vanish into the int8 kernel before them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph
from onnxq.runtime import known


def final_output(node: ir.Node) -> ir.Value:
    """The value an int8 kernel for `node` stores: behind the Relu or Clip that the kernel absorbs, if there is one."""
    out = node.outputs[0]
    follower = graph.only_consumer(out)
    if follower is None or follower.graph is not node.graph or not graph.is_op(follower, *known.ABSORBED):
        return out
    if node.op_type not in known.ABSORBING | known.ABSORBING_IN_REGIONS:
        return out
    if follower.inputs[0] is not out or any(v is not None and graph.constant(v) is None for v in follower.inputs[1:]):
        return out
    return follower.outputs[0]


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """The node whose int8 kernel would store `value`, seen through an absorbed activation."""
    node = graph.producer(value)
    if node is not None and graph.is_op(node, *known.ABSORBED) and node.inputs[0] is not None:
        before = node.inputs[0].producer()
        if before is not None and final_output(before) is value:
            return before
    return node


def behind_product(node: ir.Node) -> list[ir.Node]:
    """What a region computes with a product by a constant matrix: the Add of a vector behind a MatMul, and a Relu or
    Clip with constant bounds; in order. In the model as it is, or once its constants are codes."""
    outputs = outputs_of(node)
    if outputs is None:
        return []
    found: list[ir.Node] = []
    follower = _follower(node)
    if node.op_type == "MatMul" and graph.is_op(follower, "Add") and follower is not None:
        vectors = [tensor for value in follower.inputs if (tensor := _stored(value)) is not None]
        if len(vectors) == 1 and vectors[0].size == outputs == vectors[0].shape[-1]:
            found.append(follower)
            follower = _follower(follower)
    last = found[-1] if found else node
    if follower is None or not graph.is_op(follower, *known.ABSORBED) or follower.inputs[0] is not last.outputs[0]:
        return found
    is_bounded = all(value is None or graph.constant(value) is not None for value in follower.inputs[1:])
    return [*found, follower] if is_bounded else found


def product_result(node: ir.Node) -> ir.Value:
    """The value that a region's product makes."""
    return [node, *behind_product(node)][-1].outputs[0]


def product_of(value: ir.Value | None) -> ir.Node | None:
    """The MatMul or Gemm by a constant matrix that makes `value` in a region."""
    node = graph.producer(value)
    for _ in range(3):
        if node is None or outputs_of(node) is not None:
            break
        is_behind = graph.is_op(node, "Add", *known.ABSORBED)
        read = [each.producer() for each in node.inputs if each is not None and _stored(each) is None]
        node = read[0] if is_behind and len(read) == 1 else None
    is_made = node is not None and outputs_of(node) is not None and product_result(node) is value
    return node if is_made else None


def _follower(node: ir.Node) -> ir.Node | None:
    follower = graph.only_consumer(node.outputs[0])
    return follower if follower is not None and follower.graph is node.graph else None


def _stored(value: ir.Value | None) -> ir.TensorProtocol | None:
    """A constant, or the codes of one."""
    codes = graph.decoded(value)
    return graph.constant(value if codes is None else codes)


def outputs_of(node: ir.Node) -> int | None:
    """How many numbers a product by a constant matrix makes of a row; None if this is none."""
    if not graph.is_op(node, "MatMul", "Gemm") or len(node.inputs) < 2:
        return None
    weight = _stored(node.inputs[1])
    if weight is None or len(weight.shape) != 2 or _stored(node.inputs[0]) is not None:
        return None
    turned = node.op_type == "Gemm" and graph.attribute_int(node, "transB", 0)
    return int(weight.shape.numpy()[0 if turned else 1])
