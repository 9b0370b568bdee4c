"""Operators that hold a whole layer in codes: onnxruntime's DynamicQuantizeLSTM, QAttention and QMoE, our Recurrent."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats, layouts, own_ops
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.passes.restore._restored import (
    Restored,
    RestorePass,
    Stored,
    array_of,
    constants_of,
    input_of,
    replace_layer,
)

#: Attributes of QMoE that say how its weights lie.
_OF_CODES = {"block_size", "expert_weight_bits", "quant_type", "weights_prepacked", "accuracy_level"}
_OF_CODES |= {f"fc{i}_expert_weight_bits" for i in (1, 2, 3)}

#: Attributes that a layer of the standard does not have.
_OF_RECURRENT = {"cell", "input_size", "activations"}


class ReadLayers(RestorePass):
    """The same layer with float weights, which are exactly what the codes stand for.

    1. DynamicQuantizeLSTM becomes LSTM: its weights are [directions, inputs, gates], those of LSTM turned.
    2. QAttention becomes Attention of the same domain, and reads what its input was rounded from in every run, or the
       input behind a DequantizeLinear.
    3. QMoE of integers becomes MoE. It normalizes the weights of the experts it took, whatever its attribute says
       (measured, onnxruntime 1.31); where it is given the softmax of the router, MoE finds that itself. Other routing
       weights, and a third product, stay.
    """

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        readers = {"DynamicQuantizeLSTM": _lstm, "QAttention": _attention, "QMoE": _experts}
        read = readers.get(node.op_type) if node.domain == graph.MICROSOFT else None
        return read is not None and read(node, restored)


def _lstm(node: ir.Node, restored: Restored) -> bool:
    found = constants_of(node, 1, 2, 8, 9, 10, 11)
    sources = [input_of(node, 1), input_of(node, 2)]
    if found is None or None in found[:3] or found[4] is None:
        return False
    weights = [
        _gates(node, source, *parts, restored=restored)
        for source, *parts in zip(sources, found[:2], found[2::2], found[3::2], strict=True)
    ]
    rest = [input_of(node, index) for index in range(3, 8)]
    replace_layer(node, "LSTM", "", [node.inputs[0], *weights, *rest], (), restored)
    return True


def _gates(
    node: ir.Node,
    source: ir.Value | None,
    codes: ir.TensorProtocol | None,
    scale: ir.TensorProtocol | None,
    zeros: ir.TensorProtocol | None,
    *,
    restored: Restored,
) -> ir.Value:
    """[directions, gates, inputs] of codes that lie as [directions, inputs, gates]."""
    assert source is not None and codes is not None and scale is not None
    directions, inputs, gates = (int(size) for size in codes.shape.numpy())

    def read() -> NDArray:
        return _minus(codes.numpy(), array_of(zeros), scale.numpy(), directions).swapaxes(1, 2)

    return restored.floats(node, source, read, (directions, gates, inputs), ir.DataType.FLOAT)


def _minus(codes: NDArray, zeros: NDArray | None, scale: NDArray, directions: int) -> NDArray:
    """Floats of [directions, inputs, gates], with scales a direction or for each of its gates."""

    def spread(x: NDArray) -> NDArray:
        return x.reshape(directions, 1, -1)

    shifted = codes.astype(np.float32) - (0 if zeros is None else spread(zeros.astype(np.float32)))
    return shifted * spread(scale.astype(np.float32))


def _attention(node: ir.Node, restored: Restored) -> bool:
    found, source, x = constants_of(node, 1, 4, 7), input_of(node, 1), node.inputs[0]
    if found is None or source is None or x is None or found[0] is None or found[1] is None:
        return False
    codes, scale, zeros = found
    assert codes is not None and scale is not None

    def read() -> NDArray:
        shift = 0 if zeros is None else zeros.numpy().astype(np.float32).reshape(1, -1)
        return (codes.numpy().astype(np.float32) - shift) * scale.numpy().astype(np.float32).reshape(1, -1)

    w = restored.floats(node, source, read, tuple(codes.shape.numpy()), scale.dtype)
    rounded = x.producer()
    if graph.is_op(rounded, "DynamicQuantizeLinear") and rounded is not None:
        in_float = rounded.inputs[0]
    else:
        name = restored.names.fresh(f"{node.name}_input")
        parts = [value for value in (x, input_of(node, 3), input_of(node, 6)) if value is not None]
        in_float = graph.add_node(node, "DequantizeLinear", parts, name, restored.names.fresh(f"{name}_out"))
    inputs = [in_float, w, input_of(node, 2), input_of(node, 5), input_of(node, 8)]
    replace_layer(node, "Attention", graph.MICROSOFT, inputs, (), restored)
    return True


def _experts(node: ir.Node, restored: Restored) -> bool:
    router, given = input_of(node, 1), input_of(node, 14)
    is_plain = graph.attribute_string(node, "quant_type", "int") == "int"
    is_raw = graph.attribute_int(node, "weights_prepacked", 0) == 0
    if not is_plain or not is_raw or any(input_of(node, index) is not None for index in (8, 9, 10, 13)):
        return False
    softmax = graph.producer(given)
    if given is not None and (
        not graph.is_op(softmax, "Softmax") or softmax is None or softmax.inputs[0] is not router
    ):
        return False
    weights = []
    for number, (codes, scales, zeros) in enumerate(((2, 3, 11), (5, 6, 12)), start=1):
        w = _expert_weight(node, (codes, scales, zeros), number, restored)
        if w is None:
            return False
        weights.append(w)
    inputs = [node.inputs[0], router, weights[0], input_of(node, 4), weights[1], input_of(node, 7)]
    made = replace_layer(node, "MoE", graph.MICROSOFT, inputs, _OF_CODES, restored)
    made.attributes["normalize_routing_weights"] = ir.AttrInt64("normalize_routing_weights", int(given is None))
    return True


def _expert_weight(node: ir.Node, indices: tuple[int, int, int], number: int, restored: Restored) -> ir.Value | None:
    """[experts, outputs, inputs] of the codes, scales and zero points at these inputs; None: they are not constant, or
    zero points of whole rows, which lie otherwise."""
    found, source = constants_of(node, *indices), input_of(node, indices[0])
    if found is None or source is None or found[0] is None or found[1] is None:
        return None
    codes, scales, zeros = found
    assert codes is not None and scales is not None
    bits = graph.attribute_int(
        node, f"fc{number}_expert_weight_bits", graph.attribute_int(node, "expert_weight_bits", 4)
    )
    experts, n, row = (int(size) for size in codes.shape.numpy())
    k = row * 8 // bits
    block = graph.attribute_int(node, "block_size", 0) or k
    if bits not in (2, 4, 8) or codes.dtype is not ir.DataType.UINT8 or k % block or (zeros is not None and block == k):
        return None
    format = formats.get(f"int{bits}" if zeros is None else f"uint{bits}")

    def read() -> NDArray:
        packed = codes.numpy().reshape(experts * n, k // block, block * bits // 8)
        offsets = None if zeros is None else zeros.numpy().reshape(experts * n, -1)
        q = layouts.from_matmul_nbits(format, packed, scales.numpy().astype(np.float32), offsets, k)
        return q.dequantize().reshape(experts, n, k)

    return restored.floats(node, source, read, (experts, n, k), scales.dtype)


def read_recurrent(node: ir.Node, restored: Restored) -> bool:
    """Whether `node` is a recurrent layer now, whose weights keep their codes."""
    cell, h = graph.attribute_string(node, "cell", ""), graph.attribute_int(node, "hidden_size", 0)
    sizes = {1: graph.attribute_int(node, "input_size", 0), 3: h}
    found = constants_of(node, 1, 2, 3, 4)
    if cell not in own_ops.CELLS or min(sizes.values()) < 1 or found is None or None in found:
        return False
    weights = [_gates_in_tiles(node, index, (own_ops.CELLS[cell], h, k), restored) for index, k in sizes.items()]
    rest = [input_of(node, index) for index in range(5, 9)]
    replace_layer(node, cell, "", [node.inputs[0], *weights, *rest], _OF_RECURRENT, restored)
    return True


def _gates_in_tiles(node: ir.Node, index: int, sizes: tuple[int, int, int], restored: Restored) -> ir.Value:
    """[directions, gates · h, k] of the tiles that `node` reads at `index`, and of the scales behind them: of two
    directions each row is a block, for channels are the same rows in both."""
    source, (gates, h, k) = input_of(node, index), sizes
    tiles, scales = (graph.constant(input_of(node, each)) for each in (index, index + 1))
    assert source is not None and tiles is not None and scales is not None
    shape = tuple(tiles.shape.numpy())
    directions = shape[0] if len(shape) == 6 else 1
    wanted = (directions, gates * h, k)
    how = Granularity(1) if directions == 1 else Granularity(2, k)

    def read() -> QuantizedTensor:
        q = layouts.from_recurrent_tiles(tiles.numpy(), scales.numpy(), n=h, k=k, gates=gates)
        assert q.scales is not None
        steps = q.scales.reshape(how.scale_shape(wanted))
        return QuantizedTensor(q.format, how, q.codes.reshape(wanted), steps)

    stored = Stored(formats.get("int8"), how, wanted, read)
    return restored.weight(node, source, stored, ir.DataType.FLOAT)
