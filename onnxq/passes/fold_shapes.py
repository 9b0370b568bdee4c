"""Writes the shape of a Reshape as a constant where what computes it only repeats dimensions of the input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.passes.sizes import sizes_of

#: Operators whose output has the shape of their first input, and those that keep the number of images, and channels.
_SAME_SHAPE = (
    *("Relu", "LeakyRelu", "Elu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Softplus", "Gelu", "Erf", "Clip"),
    *("Cast", "BatchNormalization", "InstanceNormalization", "Softmax", "Neg", "Abs", "Sqrt", "Exp", "Log"),
)
_KEEPING = {"Conv": 1, "ConvTranspose": 1, "MaxPool": 2, "AveragePool": 2, "GlobalAveragePool": 2, "GlobalMaxPool": 2}


class FoldShapes(ir.passes.InPlacePass):
    """Exporters compute the shape of a Reshape, by Shape, Gather, Unsqueeze and Concat, where batches have any size.

    1. A dimension that is the input's at the same place is 0 in a constant shape, if the node has no `allowzero`. A
       Transpose and functions of each element keep dimensions, convolutions and pools the number of images.
    2. Others must be constants. A shape of which any other is computed stays.

    The shape is the same for every input, empty ones too: a zero stands for whatever is there.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, modified = Names(model), False
        for node in list(graph.nodes(model)):
            if not graph.is_op(node, "Reshape") or len(node.inputs) != 2 or graph.attribute_int(node, "allowzero", 0):
                continue
            shape = None if node.inputs[0] is None else _folded(node.inputs[0], node.inputs[1])
            if shape is not None and isinstance(node.graph, ir.Graph):
                constant = graph.add_constant(
                    node.graph, names.fresh(f"{node.name}_shape"), ir.tensor(np.array(shape, np.int64))
                )
                node.replace_input_with(1, constant)
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def _folded(data: ir.Value, shape: ir.Value | None) -> list[int] | None:
    """The computed shape of a Reshape of `data` as numbers; None where it cannot be said, or is constant already."""
    if shape is None or not graph.is_op(shape.producer(), "Concat"):
        return None
    found: list[int] = []
    for size in sizes_of(shape) or ():
        if not isinstance(size, int) and _origin(*size) != _origin(data, len(found)):
            return None
        found.append(size if isinstance(size, int) else 0)
    return found or None


def _origin(value: ir.Value, axis: int) -> tuple[ir.Value, int]:
    """The first dimension that this one is known to equal."""
    while (node := value.producer()) is not None and node.domain == "" and value is node.outputs[0] and node.inputs:
        source = node.inputs[0]
        if source is None:
            break
        if node.op_type == "Transpose":
            order = list(node.attributes.get_ints("perm", []))
            if sorted(order) != list(range(len(order))) or axis >= len(order):
                break
            axis = order[axis]
        elif node.op_type not in _SAME_SHAPE and axis >= _KEEPING.get(node.op_type, 0):
            break
        value = source
    return value, axis
