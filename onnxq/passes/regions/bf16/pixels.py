"""What is known of values of a float network: constants in bfloat16, and which values have the same pixels."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.passes.regions.makers import padding

Pixels = dict[ir.Value, Hashable]


def pixels_of(subgraph: ir.Graph) -> Pixels:
    """By value, a word for its sizes without channels: values with the same word have the same, whatever they are."""
    found: Pixels = {}
    for node in subgraph:
        inputs = [value for value in node.inputs if value is not None]
        words = [found.setdefault(value, len(found)) for value in inputs if constant_of(value) is None]
        if node.domain or not words or not node.outputs:
            continue
        word = words[0]
        if node.op_type in ("Conv", "MaxPool", "AveragePool"):
            word = _word_behind(node, word)
        elif node.op_type not in _SAME_PIXELS or len(set(words)) > 1 or graph.attribute_int(node, "axis", 1) != 1:
            continue
        elif node.op_type in ("Add", "Concat") and len(words) != len(inputs):
            continue  # a constant may be larger
        found[node.outputs[0]] = word
    return found


#: Operators whose outputs have the pixels of their inputs, if all of these have the same.
_SAME_PIXELS = {
    *("Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Concat", "Add"),
    *("InstanceNormalization", "QuantizeLinear", "DequantizeLinear"),
}


def _word_behind(node: ir.Node, word: Hashable) -> Hashable:
    """Of windows: that of the input, where there are as many; else one that says how they differ."""
    found = padding(node)
    weight = graph.constant(stored_in_half(node.inputs[1]) or node.inputs[1]) if node.op_type == "Conv" else None
    kernel = list(node.attributes.get_ints("kernel_shape", [])) or (
        [] if weight is None else list(weight.shape.numpy()[2:])
    )
    if found is None or len(kernel) not in (1, 2):
        return (id(node), word)
    strides, dilations, pads, kernel = (
        found.get("strides", [1, 1]),
        found.get("dilations", [1, 1]),
        found.get("pads", [0, 0, 0, 0]),
        [1, *map(int, kernel)][-2:],
    )
    assert isinstance(pads, list) and isinstance(dilations, list)
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    is_same = "same" in found or [pads[0] + pads[2], pads[1] + pads[3]] == reach
    if strides == [1, 1] and is_same:
        return word
    ceil = graph.attribute_int(node, "ceil_mode", 0)
    return (word, str((kernel, strides, dilations, pads, found.get("same"), ceil)))


def stored_in_half(value: ir.Value | None) -> ir.Value | None:
    """The constant in bfloat16 that `value` is made float32 of."""
    cast = graph.producer(value)
    if cast is None or not graph.is_op(cast, "Cast") or graph.attribute_int(cast, "to", 0) != int(ir.DataType.FLOAT):
        return None
    tensor = graph.constant(cast.inputs[0])
    return cast.inputs[0] if tensor is not None and tensor.dtype is ir.DataType.BFLOAT16 else None


def constant_of(value: ir.Value | None) -> NDArray | None:
    """A constant of float32, or one that is made float32 of bfloat16."""
    stored = stored_in_half(value)
    tensor = graph.constant(value if stored is None else stored)
    if tensor is None or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.BFLOAT16):
        return None
    return np.asarray(tensor.numpy().astype(np.float32))
