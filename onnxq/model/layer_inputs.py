"""What each weight is multiplied by: which value, and how its numbers lie in rows beside the weight's."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.origin import identity
from onnxq.model.weights import Weight, find_weights

#: Of an input of K numbers, so many rows tell enough, and so many times K.
ROWS, TIMES_K = 1 << 14, 4


@dataclass(frozen=True)
class Rows:
    """The rows of an activation that a matrix product sums over: along its last axis, or the one before.

    Attributes:
        k: numbers in a row.
    """

    k: int
    is_last: bool = True
    groups: int = 1

    def __call__(self, x: NDArray, samples: int = 1) -> NDArray:
        """[rows, 1, K]: all there are, however many samples there will be.

        Raises:
            BadModel: there are no such rows.
        """
        rows = x if self.is_last or x.ndim < 2 else np.swapaxes(x, -1, -2)
        if rows.shape[-1:] != (self.k,):
            raise BadModel(f"the model multiplies rows of {self.k} numbers of an array of shape {[*x.shape]}")
        return rows.reshape(-1, 1, self.k)


@dataclass(frozen=True)
class Patches:
    """The parts of an activation [batch, channels, …] that a convolution's kernel is laid over, of all or some places.

    Attributes:
        kernel, strides, dilations: by spatial axis.
        pads: in front of each spatial axis, then behind each.
    """

    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int

    @property
    def k(self) -> int:
        return self.channels // self.groups * math.prod(self.kernel)

    def __call__(self, x: NDArray, samples: int = 1) -> NDArray:
        """[rows, groups, K], the numbers of a row in the order of the weight's: channel, then place in the kernel.

        Args:
            samples: how many there are like this one: the more, the fewer places are taken from each.

        Raises:
            BadModel: it cannot be laid over them.
        """
        rank = len(self.kernel)
        if x.ndim != 2 + rank or x.shape[1] != self.channels:
            raise BadModel(f"a convolution of {self.channels} channels gets an array of shape {[*x.shape]}")
        if any(self.pads):
            x = np.pad(x, [(0, 0), (0, 0), *zip(self.pads[:rank], self.pads[rank:], strict=True)])
        span = tuple((size - 1) * d + 1 for size, d in zip(self.kernel, self.dilations, strict=True))
        steps: list[Any] = [slice(None), slice(None), *(slice(None, None, s) for s in self.strides)]
        steps += (slice(None, None, d) for d in self.dilations)
        if any(size < width for size, width in zip(x.shape[2:], span, strict=True)):
            raise BadModel(f"a convolution over {[*span]} places gets an array of shape {[*x.shape]}")
        windows = sliding_window_view(x, span, axis=tuple(range(2, 2 + rank)))[tuple(steps)]
        places = windows.shape[2 : 2 + rank]
        most = -(-max(ROWS, TIMES_K * self.k) // (samples * max(1, len(x))))
        chosen: list[Any] = [slice(None), slice(None)]
        chosen += np.unravel_index(_some(math.prod(places), most), places)
        found = windows[tuple(chosen)]
        return np.moveaxis(found, 2, 1).reshape(-1, self.groups, self.k)


@dataclass(frozen=True)
class LayerInput:
    """Where a weight is multiplied.

    Attributes:
        value: name of the activation.
        rows: how its numbers lie beside the weight's.
        channel: the axis of the weight's outputs.
    """

    value: str
    rows: Rows | Patches
    channel: int

    @property
    def seen(self) -> LayerInput:
        """The same for weights that lie differently beside the same rows."""
        return LayerInput(self.value, self.rows, 0)


def layer_inputs(model: ir.Model) -> dict[str, list[LayerInput]]:
    """By name of the weight, what it is multiplied by wherever it is read.

    Left out are weights that any node reads in another way (a table of embeddings is looked up), that are multiplied
    along different axes, or in a Loop or Scan, whose turns cannot be told apart from outside; and those of which the
    model has a transpose, so that both get the same codes, which are written once.
    """
    loops = [node for node in graph.nodes(model) if graph.is_op(node, "Loop", "Scan")]
    looped = {id(node) for loop in loops for node in graph.inside(loop)}
    found: dict[str, list[LayerInput]] = {}
    weights = list(find_weights(model))
    values = {weight.value.name or "": weight.value for weight in weights}
    for weight in weights:
        made = None if id(weight.node) in looped else _layer_input(weight)
        if made is not None:
            found.setdefault(weight.value.name or "", []).append(made)
    forms = Counter(map(identity, values.values()))
    return {
        name: inputs
        for name, inputs in found.items()
        if len(inputs) == len(values[name].uses())
        and len({(each.channel, each.rows.groups, each.rows.k) for each in inputs}) == 1
        and forms[identity(values[name])] == 1
    }


def readers(model: ir.Model) -> dict[LayerInput, ir.Node]:
    """By what is seen of an input, the first node that multiplies it."""
    found: dict[LayerInput, ir.Node] = {}
    for weight in find_weights(model):
        made = _layer_input(weight)
        if made is not None:
            found.setdefault(made.seen, weight.node)
    return found


def _layer_input(weight: Weight) -> LayerInput | None:
    """What `weight` is multiplied by here; None for operators that do more than multiply."""
    node, role = weight.node, weight.role
    if graph.is_op(node, "Conv"):
        return _of_convolution(weight)
    if len(weight.shape) != 2:
        return None
    if node.op_type in ("MatMul", "Attention"):
        other, is_last = (0, True) if role.index == 1 else (1, False)
    elif node.op_type == "Gemm":
        turn = graph.attribute_int(node, "transA" if role.index == 1 else "transB", 0)
        other, is_last = 1 - role.index, bool(turn) == (role.index == 0)
    else:
        return None
    return _seen(node.inputs[other], Rows(weight.shape[role.contraction], is_last), role.channel)


def _seen(value: ir.Value | None, rows: Rows | Patches, channel: int) -> LayerInput | None:
    if value is None or not value.name or graph.constant(value) is not None:
        return None
    return LayerInput(value.name, rows, channel)


def _of_convolution(weight: Weight) -> LayerInput | None:
    node, kernel = weight.node, weight.shape[2:]
    groups, rank = graph.attribute_int(node, "group", 1), len(kernel)
    pads = _ints(node, "pads", (0,) * 2 * rank)
    strides, dilations = (_ints(node, name, (1,) * rank) for name in ("strides", "dilations"))
    how = graph.attribute_string(node, "auto_pad", "NOTSET")
    if how in ("SAME_UPPER", "SAME_LOWER"):
        if any(stride != 1 for stride in strides):
            return None  # what is padded then depends on the size of each sample
        total = [(size - 1) * d for size, d in zip(kernel, dilations, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*less, *more) if how == "SAME_UPPER" else (*more, *less)
    elif how == "VALID":
        pads = (0,) * 2 * rank
    channels = weight.shape[1] * groups
    return _seen(node.inputs[0], Patches(channels, kernel, strides, dilations, pads, groups), 0)


def _ints(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = node.attributes.get(name)
    return default if found is None else tuple(found.as_ints())


def _some(count: int, most: int) -> NDArray[np.intp]:
    """At most so many of `count` places, in order: the same ones each time, and in no step that an image may have."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(count).choice(count, most, replace=False))
