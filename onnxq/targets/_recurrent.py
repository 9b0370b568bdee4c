"""Recurrent layers: which of them the kernels for int8 weights compute."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph

#: The activation functions of a direction that the operators have where nothing else is said.
_DEFAULTS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_PEEPHOLES = 7
#: Of inputs, and of the state: sums of so many products of codes fit into 32 bits.
MOST_SUMMED = 65536


def why_no_kernel(node: ir.Node) -> str:
    """Why the kernels of the onnxq domain do not compute a recurrent layer; empty if they do."""
    directions = 2 if graph.attribute_string(node, "direction", "forward") == "bidirectional" else 1
    if len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES] is not None:
        return "it has peepholes"
    if graph.attribute_int(node, "input_forget", 0):
        return "its input and forget gates are one"
    said = node.attributes.get("activations")
    words = [] if said is None else [word.lower() for word in said.as_strings()]
    if words and words != _DEFAULTS[node.op_type] * directions:
        return "its activation functions are not the default ones"
    tensors = [graph.constant(value) for value in node.inputs[1:3]]
    if len(tensors) < 2 or None in tensors:
        return "its weights are not both constant"
    if any(tensor is not None and tensor.dtype is not ir.DataType.FLOAT for tensor in tensors):
        return "it does not compute in float32"
    shapes = [tuple(tensor.shape.numpy()) for tensor in tensors if tensor is not None]
    rows = own_ops.CELLS[node.op_type] * shapes[1][-1]
    if any(len(shape) != 3 or shape[:2] != (directions, rows) for shape in shapes):
        return "its weights are not of the sizes that its operator has"
    if max(shape[2] for shape in shapes) > MOST_SUMMED or min(shape[2] for shape in shapes) < 1:
        return f"it sums more than {MOST_SUMMED} products"
    return ""
