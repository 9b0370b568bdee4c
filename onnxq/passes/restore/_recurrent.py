"""onnxq.Recurrent as the layer of the standard that it computes."""

from __future__ import annotations

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import layouts, own_ops
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats import get as format_of
from onnxq.model import graph
from onnxq.passes.restore._restored import Restored, Stored, constants_of, input_of, replace_layer

#: Attributes that a layer of the standard does not have.
_OWN = {"cell", "input_size", "activations"}


def read_recurrent(node: ir.Node, restored: Restored) -> bool:
    """Whether `node` is a recurrent layer now; weights of one direction keep their codes."""
    cell, h = graph.attribute_string(node, "cell", ""), graph.attribute_int(node, "hidden_size", 0)
    sizes = [graph.attribute_int(node, "input_size", 0), h]
    found = [constants_of(node, index, index + 1) for index in (1, 3)]
    if cell not in own_ops.CELLS or min(sizes) < 1 or any(each is None or None in each for each in found):
        return False
    weights = [
        _weight(node, index, each[0], each[1], h, k, restored)
        for index, each, k in zip((1, 3), found, sizes, strict=True)
        if each is not None and each[0] is not None and each[1] is not None
    ]
    rest = [input_of(node, index) for index in range(5, 9)]
    replace_layer(node, cell, "", [node.inputs[0], *weights, *rest], _OWN, restored)
    return True


def _weight(
    node: ir.Node,
    index: int,
    tiles: ir.TensorProtocol,
    scales: ir.TensorProtocol,
    h: int,
    k: int,
    restored: Restored,
) -> ir.Value:
    source = input_of(node, index)
    assert source is not None
    shape = tuple(tiles.shape.numpy())
    directions, gates = (shape[0], shape[3]) if len(shape) == 6 else (1, 1)
    wanted = (directions, gates * h, k)

    def read() -> QuantizedTensor:
        q = layouts.from_recurrent_tiles(tiles.numpy(), scales.numpy(), h=h, k=k)
        return QuantizedTensor(q.format, Granularity(1), q.codes.reshape(wanted), q.scales)

    def floats() -> NDArray:
        q = layouts.from_recurrent_tiles(tiles.numpy(), scales.numpy(), h=h, k=k)
        return q.dequantize().reshape(wanted)

    if directions == 1:
        return restored.weight(node, source, Stored(format_of("int8"), Granularity(1), wanted, read), ir.DataType.FLOAT)
    return restored.floats(node, source, floats, wanted, ir.DataType.FLOAT)  # scales of two axes are in no format
