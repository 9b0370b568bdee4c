"""Where channels of an activation can be scaled without changing what a model computes.

What makes the activation takes the inverse factors into its constants (the weight of a normalization, the outputs of a
layer before, a factor), and every weight that reads it takes the factors into its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph
from onnxq.model.layer_inputs import LayerInput, Patches, layer_inputs
from onnxq.model.weights import Weight, find_weights

#: Operators that give s · y for s · x with s > 0, each channel by itself.
_HOMOGENEOUS = ("Relu", "LeakyRelu", "Identity", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
#: Normalizations, and which of their inputs the last axis is multiplied by or added to.
_NORMS = {
    ("", "LayerNormalization"): (1, 2),
    ("", "SimplifiedLayerNormalization"): (1,),
    ("", "RMSNormalization"): (1,),
    (graph.MICROSOFT, "SkipLayerNormalization"): (2, 3),
    (graph.MICROSOFT, "SkipSimplifiedLayerNormalization"): (2,),
}


@dataclass(frozen=True)
class Scaled:
    """A constant that a node reads at input `index`, whose `axis` are channels, `repeats` numbers for each."""

    node: str
    index: int
    axis: int
    repeats: int = 1


@dataclass(frozen=True)
class Reader:
    """A weight that multiplies the activation, and how that lies beside it."""

    weight: str
    scaled: Scaled
    seen: LayerInput


@dataclass(frozen=True)
class ChannelPlace:
    """An activation whose channels can be scaled.

    Attributes:
        value: its name.
        channels: how many there are.
        makers: the constants that are divided by the factors.
        readers: the weights that are multiplied by them.
        low, high: between which a Clip in front keeps it, as networks with ReLU6 do; it does so with what is divided
            too. Then a model computes the same as long as numbers do not come that far.
    """

    value: str
    channels: int
    makers: tuple[Scaled, ...]
    readers: tuple[Reader, ...]
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_bounded(self) -> bool:
        """Whether what a model computes stays only as long as numbers stay between the bounds."""
        return math.isfinite(self.high) or (math.isfinite(self.low) and self.low < 0)


def channel_places(model: ir.Model) -> list[ChannelPlace]:
    """Every such place, in the order of execution."""
    seen = layer_inputs(model)
    by_value: dict[ir.Value, list[tuple[Weight, LayerInput]]] = {}
    for weight in find_weights(model):
        several = seen.get(weight.value.name or "", [])
        if len(several) == 1 and len(weight.value.uses()) == 1 and _can_change(weight.tensor):
            value = next(v for v in weight.node.inputs if v is not None and v.name == several[0].value)
            by_value.setdefault(value, []).append((weight, several[0]))
    places = (_place(value, readers) for value, readers in by_value.items())
    return [place for place in places if place is not None]


def _place(value: ir.Value, weights: list[tuple[Weight, LayerInput]]) -> ChannelPlace | None:
    """Of a value that is read by these; None: it cannot be scaled."""
    first = weights[0][1].rows
    channels = first.channels if isinstance(first, Patches) else first.k
    made = (_reader(weight, seen, channels, type(first)) for weight, seen in weights)
    readers = [reader for reader in made if reader is not None]
    if len(readers) != len(value.uses()) or value.is_graph_output():
        return None
    found, low, high = _unclipped(value)
    makers = _makers(found, channels, -1 - len(first.kernel) if isinstance(first, Patches) else -1)
    if makers is None or not low <= 0 <= high:
        return None
    return ChannelPlace(value.name or "", channels, tuple(makers), tuple(readers), low, high)


def _unclipped(value: ir.Value) -> tuple[ir.Value | None, float, float]:
    """What is cut off to become `value`, and between which numbers; `value` itself where nothing is.

    Only where nothing comes between them: what is known of the size of `value` has to hold for what is cut off.
    """
    node = value.producer()
    cut = node.inputs[0] if node is not None and graph.is_op(node, "Clip") else None
    if node is None or cut is None or graph.only_consumer(cut) is None:
        return value, -math.inf, math.inf
    low, high = _bound(node, 1, "min", -math.inf), _bound(node, 2, "max", math.inf)
    return (None, 0.0, 0.0) if low is None or high is None else (cut, low, high)


def _bound(node: ir.Node, index: int, name: str, default: float) -> float | None:
    """Of a Clip: where it is one number for all, and known."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = graph.constant(value)
    if value is None:
        return graph.attribute_float(node, name, default)
    return float(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None


def _reader(weight: Weight, seen: LayerInput, channels: int, kind: type) -> Reader | None:
    rows, shape, name = seen.rows, weight.shape, weight.node.name or ""
    index = weight.role.index
    if weight.node.op_type == "Attention" or not isinstance(rows, kind):
        return None
    if not isinstance(rows, Patches):
        axis = weight.role.contraction
        fits = rows.is_last and shape[axis] == channels
        return Reader(weight.value.name or "", Scaled(name, index, axis), seen) if fits else None
    if rows.channels != channels or (rows.groups != 1 and shape[1] != 1):
        return None
    scaled = Scaled(name, index, 1) if rows.groups == 1 else Scaled(name, index, 0, shape[0] // channels)
    return Reader(weight.value.name or "", scaled, seen)


def _makers(value: ir.Value | None, channels: int, axis: int) -> list[Scaled] | None:
    """The constants by which the channels of `value` are made, if scaling these scales nothing else.

    Args:
        axis: of the channels, from the end.
    """
    node = graph.producer(value)
    if node is None or value is not node.outputs[0]:
        return None
    if node.domain == "" and node.op_type in _HOMOGENEOUS and not (axis == -1 and "Pool" in node.op_type):
        return None if len(node.outputs) > 1 else _through(node.inputs[0], channels, axis)
    if axis == -1 and (node.domain, node.op_type) in _NORMS:
        return _of_norm(node, channels)
    if graph.is_op(node, "Mul", "Add"):
        return _of_elements(node, channels, axis)
    if graph.is_op(node, "MatMul", "Gemm") if axis == -1 else graph.is_op(node, "Conv"):
        return _of_layer(node, channels)
    return None


def _through(value: ir.Value | None, channels: int, axis: int) -> list[Scaled] | None:
    if value is None or graph.only_consumer(value) is None:
        return None
    return _makers(value, channels, axis)


def _of_norm(node: ir.Node, channels: int) -> list[Scaled] | None:
    if graph.attribute_int(node, "axis", -1) != -1:
        return None
    indices = [i for i in _NORMS[node.domain, node.op_type] if i < len(node.inputs) and node.inputs[i] is not None]
    return _all(_vector(node, index, channels, -1) for index in indices)


def _of_elements(node: ir.Node, channels: int, axis: int) -> list[Scaled] | None:
    """A factor or a bias for each channel; or a product of two activations, of which one is scaled."""
    constants = [index for index in (0, 1) if graph.constant(node.inputs[index]) is not None]
    if not constants and node.op_type == "Mul":
        found = (_through(node.inputs[index], channels, axis) for index in (1, 0))
        return next((each for each in found if each is not None), None)
    if len(constants) != 1:
        return None
    vector = _vector(node, constants[0], channels, axis)
    other = node.inputs[1 - constants[0]]
    if node.op_type == "Mul":
        return [vector] if vector is not None else None
    rest = _through(other, channels, axis)
    return None if vector is None or rest is None else [vector, *rest]


def _of_layer(node: ir.Node, channels: int) -> list[Scaled] | None:
    """The outputs of a weight, and its bias."""
    weight = graph.constant(node.inputs[1])
    if not _can_change(weight) or weight is None or len(node.inputs[1].uses()) != 1:  # type: ignore[union-attr]
        return None
    axis = 0 if node.op_type == "Conv" or graph.attribute_int(node, "transB", 0) else 1
    shape = tuple(weight.shape.numpy())
    if (node.op_type != "Conv" and len(shape) != 2) or shape[axis] != channels:
        return None
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    bias = [_vector(node, 2, channels, -1)] if has_bias else []
    return _all([Scaled(node.name or "", 1, axis), *bias])


def _all(found: Iterable[Scaled | None]) -> list[Scaled] | None:
    every = list(found)
    known = [each for each in every if each is not None]
    return known if len(known) == len(every) else None


def _can_change(tensor: ir.TensorProtocol | None) -> bool:
    """Whether numbers may become others: they have digits to lose, and are not the codes of another tool."""
    has_digits = tensor is not None and tensor.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    return has_digits and not isinstance(tensor, GivenTensor)


def _vector(node: ir.Node, index: int, channels: int, axis: int) -> Scaled | None:
    """The constant at this input, if it holds one number for each channel, along `axis` from the end."""
    tensor = graph.constant(node.inputs[index])
    if tensor is None or tensor.size != channels or not _can_change(tensor):
        return None
    shape = tuple(tensor.shape.numpy())
    if len(shape) < -axis or shape[axis] != channels:
        return None
    return Scaled(node.name or "", index, len(shape) + axis)
