"""Normalizations of groups of channels (Wu and He 2018, "Group Normalization") as exporters spell them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.passes.regions.bf16.pixels import constant_of
from onnxq.passes.regions.group import NumberGroup, Words


def group_norm(first: ir.Node, types: Types) -> NumberGroup | None:
    """The step of Reshape to [N, groups, …], InstanceNormalization, Reshape to what it was, and a Mul and an Add by
    channel, where they follow; None where `first` does not begin one.

    1. Nobody else reads what lies between.
    2. The shape that it gets back is that of x: the output of a Shape that only the Reshape reads, or constants.
    """
    x = first.inputs[0]
    norm = _reader(first, "InstanceNormalization")
    back = None if norm is None else _reader(norm, "Reshape")
    if x is None or norm is None or back is None or not graph.is_op(first, "Reshape"):
        return None
    shape, factors, summands = types.of(x).shape, *(constant_of(value) for value in norm.inputs[1:3])
    epsilon = graph.attribute_float(norm, "epsilon", 1e-5)
    if shape is None or len(shape) not in (3, 4) or not isinstance(shape[1], int) or not 0 <= epsilon < math.inf:
        return None
    if factors is None or summands is None or factors.shape != summands.shape or factors.ndim != 1 or not factors.size:
        return None
    channels, groups = shape[1], factors.size
    shaper = _shaper(back, x)
    if channels % groups or not _parts(first, shape, groups) or not (shaper or _is_shape(back, shape)):
        return None
    nodes = [first, norm, *([] if shaper is None else [shaper]), back]
    weight, bias = (np.repeat(each, channels // groups).astype(np.float64) for each in (factors, summands))
    for op in ("Mul", "Add"):
        node = _reader(nodes[-1], op)
        each = None if node is None else _by_channel(node, nodes[-1].outputs[0], channels, len(shape))
        if node is not None and each is not None:
            nodes.append(node)
            weight, bias = (weight * each, bias * each) if op == "Mul" else (weight, bias + each)
    words: Words = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32), "group": groups}
    return NumberGroup("instance_norm", (), tuple(nodes), (x,), {**words, "epsilon": np.array(epsilon, np.float32)})


def _reader(node: ir.Node, op: str) -> ir.Node | None:
    """The only one that reads the output of `node`, if it is such an operator of the same graph."""
    found = graph.only_consumer(node.outputs[0])
    return found if found is not None and graph.is_op(found, op) and found.graph is node.graph else None


def _parts(reshape: ir.Node, shape: tuple[int | str | None, ...], groups: int) -> bool:
    """Whether a value of `shape` is cut into so many groups of channels of each image."""
    asked = graph.integers(reshape, 1) or []
    keeps = not graph.attribute_int(reshape, "allowzero", 0)
    is_image = bool(asked) and ((asked[0] == 0 and keeps) or asked[0] == shape[0])
    return len(asked) == 3 and is_image and asked[1] == groups and asked[2] != 0


def _shaper(reshape: ir.Node, x: ir.Value) -> ir.Node | None:
    """The Shape of `x` that says what `reshape` makes."""
    made = graph.own_producer(reshape.inputs[1], reshape)
    is_whole = made is not None and not {"start", "end"} & set(made.attributes) and made.inputs[0] is x
    return made if graph.is_op(made, "Shape") and is_whole else None


def _is_shape(reshape: ir.Node, shape: tuple[int | str | None, ...]) -> bool:
    """Whether constants say that it makes a value of `shape` again."""
    asked = graph.integers(reshape, 1) or []
    free = [i for i, size in enumerate(asked) if size != shape[i] or size < 1] if len(asked) == len(shape) else [0, 0]
    return not free or (len(free) == 1 and asked[free[0]] == -1)


def _by_channel(node: ir.Node, x: ir.Value, channels: int, rank: int) -> NDArray[np.float64] | None:
    """The numbers of the other operand, one for each channel."""
    other = node.inputs[1] if node.inputs[0] is x else node.inputs[0]
    array = constant_of(other)
    if array is None or array.ndim > rank:
        return None
    sizes = (1,) * (rank - array.ndim) + array.shape
    if sizes[1] not in (1, channels) or any(size != 1 for size in (*sizes[:1], *sizes[2:])):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), channels)
