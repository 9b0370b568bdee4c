"""Channels of layers brought to where the float ones are, before anything is trained: layer after layer, behind those
that are quantized already, each output channel gets the scale and the bias that are best for it in closed form.

With y what a channel gives on data and t what the float layer gives, a · y + c is nearest to t (least squares) for
a = cov(y, t) / var(y) and c = mean(t) − a · mean(y): a goes into the scales of the weight's channel, c into the bias.
Kernels of few numbers, as those of depthwise convolutions, need it most: no number there makes up for another.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction (ICCV 2019), section 4.2,
with measured means; Finkelstein et al., Fighting Quantization Bias With Bias (2019); the factor too, as is common where
normalizations are fitted anew to a quantized model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from onnxq.model import graph
from onnxq.model.weights import Weight, weights_of
from onnxq.training.graph.execution import State, reads
from onnxq.training.graph.module import GraphModule
from onnxq.training.learned import TENTH, LearnedWeight
from onnxq.training.student import Student

#: How far a factor may be from 1; and the numbers of a channel from which one is told.
FARTHEST, ROWS = 2.0, 64

_MULTIPLIES = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Place:
    """Where channels of a layer can be moved.

    Attributes:
        value: what the layer makes.
        axis: of its channels.
        weight: whose scales learn, by name; empty: no factor can be given.
        channel: the axis of the weight's outputs.
        bias: that learns, by name; empty: nothing can be added.
    """

    value: str
    axis: int
    weight: str
    channel: int
    bias: str


def places_of(student: Student) -> dict[str, Place]:
    """By the name of the value that they make, the layers of the main graph whose channels can be moved."""
    found = (_place(student, weight) for node in student.module.model.graph for weight in weights_of(node, 1))
    return {place.value: place for place in found if place is not None and (place.weight or place.bias)}


def _place(student: Student, weight: Weight) -> Place | None:
    node, role = weight.node, weight.role
    if role.index != 1 or node.op_type not in _MULTIPLIES or (node.op_type == "MatMul" and len(weight.shape) != 2):
        return None
    made, bias = node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    if node.op_type == "Gemm" and any(graph.attribute_float(node, word, 1.0) != 1 for word in ("alpha", "beta")):
        return None
    if node.op_type == "MatMul":
        add, bias = graph.added_vector(node) or (node, None)
        made = add.outputs[0]
    name, size = weight.value.name or "", weight.shape[role.channel]
    learned = student.weights.get(name)
    has_factor = learned is not None and _is_by_channel(learned, role.channel) and len(weight.value.uses()) == 1
    learns = bias is not None and bias.name in student.floats and len(bias.uses()) == 1
    if learns and student.floats[bias.name or ""].numel() != size:  # type: ignore[union-attr]
        learns = False
    return Place(
        made.name or "",
        1 if node.op_type == "Conv" else -1,
        name if has_factor and (learns or bias is None) else "",
        role.channel,
        (bias.name or "") if learns and bias is not None else "",
    )


def _is_by_channel(weight: LearnedWeight, channel: int) -> bool:
    """Whether each output channel has scales of its own, which learn."""
    how, dimensions, axis = weight.start.granularity, weight.place.dim(), weight.axis(channel)
    if not weight.stretch.requires_grad or weight.beside is not None or how.axis is None or axis is None:
        return False
    is_own = how.axis % dimensions == axis
    return is_own if how.block is None else not is_own and weight.stretch.dim() == dimensions


@torch.no_grad()  # type: ignore[untyped-decorator]
def match(
    student: Student,
    teacher: GraphModule,
    places: dict[str, Place],
    states: Sequence[tuple[State, State]],
    makes: Sequence[str],
) -> int:
    """Move the channels of the layers that lead to `makes`; how many layers were moved.

    Args:
        states: what is known before, of the student and of the teacher, for each of several batches.
    """
    module, known, moved = student.module, list(states), 0
    nodes = module.between(known[0][0], makes)
    for i, node in enumerate(nodes):
        place = places.get(node.outputs[0].name or "") if node.outputs else None
        if place is None:
            continue
        live = dict.fromkeys([place.value, *_live(nodes, i, known[0][0], makes)])
        rounding = module.made_instead.pop(place.value, None)  # what is rounded to is looked at afterwards
        try:
            known = [(module.run(mine, list(live)), teacher.run(true, list(live))) for mine, true in known]
        finally:
            if rounding is not None:
                module.made_instead[place.value] = rounding
        sums = _Sums.of(place, known)
        line = None if sums is None else sums.line(has_factor=bool(place.weight), has_shift=bool(place.bias))
        if line is not None:
            _move(student, place, *line)
            moved += 1
        for mine, _ in known:
            y = mine[place.value] if line is None else _moved(mine[place.value], place.axis, *line)
            mine[place.value] = y if rounding is None else rounding(y)
    return moved


def _live(nodes: Sequence[ir.Node], i: int, known: State, makes: Sequence[str]) -> Iterator[str]:
    """What is known behind node `i` and needed later."""
    there = {*known, *(value.name or "" for node in nodes[: i + 1] for value in node.outputs)}
    later = (value.name or "" for node in nodes[i + 1 :] for value in reads(node))
    return (name for name in (*later, *makes) if name in there)


@dataclass(frozen=True)
class _Sums:
    """Of each channel [C]: numbers of the student (y) and the teacher (t).

    Attributes:
        rows: numbers of a channel.
        y, t, yy, yt: sums over them, of products too.
    """

    rows: int
    y: Tensor
    t: Tensor
    yy: Tensor
    yt: Tensor

    @classmethod
    def of(cls, place: Place, known: Sequence[tuple[State, State]]) -> _Sums | None:
        """None where both are not of one shape."""
        found = list[tuple[Tensor, ...]]()
        rows = 0
        for mine, true in known:
            y, t = mine[place.value], true[place.value]
            if y.shape != t.shape or not y.numel():
                return None
            y, t = (x.movedim(place.axis, 0).flatten(1).double() for x in (y, t))
            rows += y.shape[1]
            found.append((y.sum(1), t.sum(1), (y * y).sum(1), (y * t).sum(1)))
        return cls(rows, *(torch.stack(each).sum(0) for each in zip(*found, strict=True)))

    def line(self, *, has_factor: bool, has_shift: bool) -> tuple[Tensor, Tensor] | None:
        """Factor and shift [C] that are best; None where some number is not finite."""
        n, factor = max(1, self.rows), torch.ones_like(self.y)
        mean, wanted = (self.y / n, self.t / n) if has_shift else (torch.zeros_like(self.y),) * 2
        if has_factor and self.rows >= ROWS:
            square = self.yy / n
            spread, together = square - mean.square(), self.yt / n - mean * wanted
            tells = spread > 1e-9 * square  # what is always the same gives no factor
            factor = torch.where(tells, together / torch.where(tells, spread, 1.0), factor)
            factor = factor.clamp(1 / FARTHEST, FARTHEST)
        shift = wanted - factor * mean
        is_finite = bool(torch.isfinite(factor).all()) and bool(torch.isfinite(shift).all())
        return (factor, shift) if is_finite else None


def _moved(y: Tensor, axis: int, factor: Tensor, shift: Tensor) -> Tensor:
    shape = [-1 if i == axis % y.dim() else 1 for i in range(y.dim())]
    return y * factor.to(y.dtype).reshape(shape) + shift.to(y.dtype).reshape(shape)


def _move(student: Student, place: Place, factor: Tensor, shift: Tensor) -> None:
    if place.weight:
        weight = student.weights[place.weight]
        axis = weight.axis(place.channel)
        shape = [-1 if i == axis else 1 for i in range(weight.place.dim())]
        more = factor.log().to(weight.stretch.dtype) / TENTH
        weight.stretch += more if weight.stretch.dim() == 1 else more.reshape(shape)
    if place.bias:
        bias = student.floats[place.bias]
        was = bias.double().reshape(-1)
        bias.copy_((factor * was + shift).reshape(bias.shape))


def is_better(found: float, before: float) -> bool:
    """Whether a loss is lower than the one before; none that is not finite is."""
    return math.isfinite(found) and (found < before or not math.isfinite(before))
