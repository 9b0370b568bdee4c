"""Writes shapes, and integers that are computed of shapes, as constants where they are the same for every input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.dimensions import add, begun
from onnxq.model.dims.known import MOST, Dims, Elements, Sizes
from onnxq.model.graph import Names

#: Inputs of operators that say sizes, bounds or places, by their numbers.
_SAYING = {
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Range": (0, 1, 2),
    "Gather": (1,),
    "Cast": (0,),
}


class FoldShapes(ir.passes.InPlacePass):
    """Exporters compute the shape of a Reshape, by Shape, Gather, Unsqueeze and Concat, where batches have any size.

    1. A dimension that is the input's at the same place is 0 in a constant shape. `dims/` says which are
       equal. Where a zero meant none (`allowzero`), all must be numbers; the attribute goes then.
    2. Others must be numbers. A shape of which any other is computed stays.
    3. `allowzero` goes where a constant shape has no zero.
    4. So do bounds of Slice, Split and others: those of which all elements are numbers become constants.

    The shape is the same for every input, empty ones too: a zero stands for whatever is there.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, sizes, modified = Names(model), begun(model), False
        for node in list(graph.nodes(model)):
            if graph.is_op(node, "Reshape") and len(node.inputs) == 2:
                modified = _fold_reshape(node, sizes, names) or modified
            elif node.domain == "" and node.op_type in _SAYING:
                modified = _fold_numbers(node, sizes, names) or modified
            add(node, sizes)
        return ir.passes.PassResult(model, modified=modified)


def _fold_reshape(node: ir.Node, sizes: Sizes, names: Names) -> bool:
    asked, data, given = node.inputs[1], node.inputs[0], graph.constant(node.inputs[1])
    if given is not None:
        return graph.attribute_int(node, "allowzero", 0) == 1 and _means_nothing(node, given)
    if asked is None or data is None or not isinstance(node.graph, ir.Graph):
        return False
    elements = sizes.elements_of(asked)
    keeps = not graph.attribute_int(node, "allowzero", 0)
    shape = None if elements is None else _folded(sizes.of(data), elements, keeps)
    if shape is None:
        return False
    constant = ir.tensor(np.array(shape, np.int64))
    node.replace_input_with(1, graph.add_constant(node.graph, names.fresh(f"{node.name}_shape"), constant))
    node.attributes.pop("allowzero", None)
    return True


def _means_nothing(node: ir.Node, shape: ir.TensorProtocol) -> bool:
    """Takes `allowzero` away where no size is zero: torch's exporter writes it always, and others look for Reshapes
    without."""
    is_plain = shape.size <= MOST and bool(np.all(shape.numpy() != 0))
    if is_plain:
        node.attributes.pop("allowzero")
    return is_plain


def _folded(data: Dims | None, asked: Elements, keeps: bool) -> list[int] | None:
    """The computed shape of a Reshape as numbers; None where it cannot be said."""
    found: list[int] = []
    for axis, size in enumerate(asked.sizes):
        if isinstance(size, int):
            if not keeps and size < 1:
                return None
            found.append(size)
        elif data is not None and axis < len(data) and data[axis] == size:
            found.append(0)
        else:
            return None
    return found or None


def _fold_numbers(node: ir.Node, sizes: Sizes, names: Names) -> bool:
    modified = False
    for index in _SAYING[node.op_type]:
        value = node.inputs[index] if index < len(node.inputs) else None
        found = None if graph.constant(value) is not None else sizes.elements_of(value)
        numbers = None if found is None else found.numbers
        if found is None or numbers is None or not isinstance(node.graph, ir.Graph):
            continue
        array = np.array(numbers, found.dtype.numpy())
        constant = ir.tensor(array.reshape(()) if found.is_scalar else array)
        node.replace_input_with(index, graph.add_constant(node.graph, names.fresh(f"{node.name}_numbers"), constant))
        modified = True
    return modified
