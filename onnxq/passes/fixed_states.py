"""What every turn of a Loop or Scan hands on unchanged is read from the graph around it."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.model import graph

#: From this opset on a Loop may have no states, and a Scan has no axis of batches.
_FROM = {"Loop": 11, "Scan": 9}


class FixedStates(ir.passes.InPlacePass):
    """TensorFlow's while loops carry all they read, weights of recurrent layers too: no product inside has a constant.

    1. A state that the body gives back as it came, perhaps through Identity, is the same in all turns and behind the
       last one: who reads it, in the body, in what nests there or behind the node, reads what it was at first.
    2. Then nothing carries it any more. Where it is an output of a graph it stays, and so does the last output.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(graph.nodes(model)):
            least = _FROM.get(node.op_type) if node.domain == "" else None
            if least is not None and graph.opset(model) >= least:
                modified |= _freed(node)
        return ir.passes.PassResult(model, modified=modified)


def _freed(node: ir.Node) -> bool:
    """Take the states of `node` that never change out of it; whether there are any."""
    body = next(graph.bodies(node), None)
    if body is None:
        return False
    before, behind = (2, 1) if node.op_type == "Loop" else (0, 0)  # the number of the turn and the condition
    read = min(len(body.inputs), len(node.inputs)) - before - graph.attribute_int(node, "num_scan_inputs", 0)
    count = min(read, len(node.outputs), len(body.outputs) - behind)  # all the same, unless the model is broken
    fixed = [
        at
        for at in range(count)
        if node.inputs[at + before] is not None
        and not node.outputs[at].is_graph_output()
        and _is_fixed(body, at + before, at + behind)
    ]
    fixed = fixed[: len(node.outputs) - 1]
    for at in reversed(fixed):
        first, state = node.inputs[at + before], body.inputs[at + before]
        given = body.outputs.pop(at + behind)
        if (identity := given.producer()) is not None and not given.uses() and not given.is_graph_output():
            identity.replace_input_with(0, None)
            body.remove(identity, safe=True)
        del body.inputs[at + before]
        assert first is not None
        for value in (state, node.outputs[at]):
            value.replace_all_uses_with(first)
    if fixed:
        _replace(node, {at + before for at in fixed}, set(fixed))
    return bool(fixed)


def _is_fixed(body: ir.Graph, at: int, behind: int) -> bool:
    """Whether output `behind` is input `at`. One that is given back twice is two outputs, of which neither is taken."""
    value: ir.Value | None = body.outputs[behind]
    node = graph.producer(value)
    if graph.is_op(node, "Identity") and node is not None and node.graph is body:
        value = node.inputs[0]
    state = body.inputs[at]
    return value is state and sum(output is state for output in body.outputs) <= (body.outputs[behind] is state)


def _replace(node: ir.Node, inputs: set[int], outputs: set[int]) -> None:
    """Put a node without these inputs and outputs in the place of `node`."""
    left = [value for at, value in enumerate(node.outputs) if at not in outputs]
    made = ir.Node(
        node.domain,
        node.op_type,
        [value for at, value in enumerate(node.inputs) if at not in inputs],
        list(node.attributes.values()),
        num_outputs=len(left),
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    owner = node.graph
    assert owner is not None
    owner.insert_before(node, made)
    for old, new in zip(left, made.outputs, strict=True):
        new.name, new.type, new.shape, old.name = old.name, old.type, old.shape, None
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    owner.remove(node, safe=True)
