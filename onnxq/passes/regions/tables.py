"""Functions of a code as tables, computed by the runtime that would compute the function, and tables as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.passes.regions.group import Group
from onnxq.runtime.session import Session

CODES = 256
#: How often the slopes are halved in: from as steep as a table can be to what float32 cannot tell apart.
HALVINGS = 42
#: The steepest line, and what stands for no bound on its height: more than any code.
STEEPEST, FAR = 512.0, 1e6
#: Channels of which it is asked where they bend, before all are.
SOME = 8
#: Where codes lie on halves, only a slope that has few bits gives them.
FEW_BITS = 4096.0


def tables_of(groups: Sequence[Group], opset: int) -> dict[Group, NDArray]:
    """By group, the codes that its chain makes of 0…255: [256], or [channels, 256]."""
    graph_ = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="tables")
    feed: dict[str, NDArray] = {}
    for number, group in enumerate(groups):
        _add(graph_, number, group)
        feed[f"x_{number}"] = _all_codes(group)
    session = Session(ir.Model(graph_, ir_version=8), optimize=False, library=False)
    found: dict[Group, NDArray] = {}
    for group, y in zip(groups, session.run(feed), strict=True):
        by_channel = np.ascontiguousarray(y.reshape(CODES, -1).T)
        found[group] = by_channel if by_channel.shape[0] > 1 else by_channel[0]
    return found


def _all_codes(group: Group) -> NDArray:
    """Every code, as DequantizeLinear makes it float: [256, channels, 1, …]."""
    chain, (source,) = group.chain, group.sources
    assert chain is not None and isinstance(source, ir.Node)
    scale, zero = (graph.constant(value) for value in source.inputs[1:])
    assert scale is not None and zero is not None
    x = (np.arange(CODES, dtype=np.float32) - zero.numpy().astype(np.float32)) * scale.numpy()
    ones = [1] * ((chain.rank or 2) - 2)
    return np.ascontiguousarray(np.broadcast_to(x.reshape(CODES, 1, *ones), (CODES, chain.channels, *ones)))


def _add(into: ir.Graph, number: int, group: Group) -> None:
    """The chain and its QuantizeLinear."""
    chain = group.chain
    assert chain is not None
    x = _all_codes(group)
    start = ir.Value(name=f"x_{number}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(x.shape))
    into.inputs.append(start)
    copies: dict[ir.Value, ir.Value] = {chain.root: start}
    for place, node in enumerate(group.nodes):
        read: list[ir.Value | None] = []
        for index, value in enumerate(node.inputs):
            tensor = graph.constant(value)
            if value is not None and tensor is not None and value not in copies:
                constant = ir.tensor(tensor.numpy())
                copies[value] = graph.add_constant(into, f"c_{number}_{place}_{index}", constant)
            read.append(None if value is None else copies[value])
        copy = ir.node(node.op_type, read, num_outputs=1, name=f"n_{number}_{place}")
        for attribute in node.attributes.values():
            copy.attributes[attribute.name] = ir.Attr(attribute.name, attribute.type, attribute.value)
        copy.outputs[0].name = f"v_{number}_{place}"
        copies[node.outputs[0]] = copy.outputs[0]
        into.append(copy)
    out = copies[group.last.outputs[0]]
    out.type, out.shape = ir.TensorType(ir.DataType.UINT8), ir.Shape(x.shape)
    into.outputs.append(out)


@dataclass(frozen=True)
class Line:
    """clip(round(code · factor + start) + zero point, low, high), rounded half to even, in float32.

    Attributes:
        factor, start: float32, [channels]; or [2, channels], of which the second is for codes from the knee on.
        knee: float32, [channels]; None: there is one line.
    """

    factor: NDArray
    start: NDArray
    low: int
    high: int
    knee: NDArray | None = None

    def codes(self, zero: int) -> NDArray:
        """uint8, [channels, 256]: of every code."""
        code = np.arange(CODES, dtype=np.float32)
        numbers = code * self.factor[..., None] + self.start[..., None]
        if self.knee is not None:
            numbers = np.where(code < self.knee[:, None], *numbers)
        return np.clip(np.rint(numbers) + zero, self.low, self.high).astype(np.uint8)


def line_of(tables: NDArray, zero: int) -> Line | None:
    """What makes exactly these codes; None where no line was found that does, with a knee or without.

    Args:
        tables: uint8, [channels, 256].
        zero: the zero point of the codes that are made.
    """
    wanted = _Wanted(tables, zero)
    whole = wanted.line(np.zeros(len(tables)), np.full(len(tables), CODES))
    if whole.is_right.all():
        return Line(whole.factor, whole.start, wanted.low, wanted.high)
    # Mostly it is the same code in all channels, that of 0: an activation function bends there. A line may go on for a
    # few codes more.
    same = np.full(len(tables), wanted.knees(np.flatnonzero(~whole.is_right)[:SOME]).min())
    for knee in (same, wanted.knees(np.arange(len(tables)))):
        before, behind = wanted.line(np.zeros(len(tables)), knee), wanted.line(knee, np.full(len(tables), CODES))
        if (before.is_right & behind.is_right).all():
            factor, start = np.stack([before.factor, behind.factor]), np.stack([before.start, behind.start])
            return Line(factor, start, wanted.low, wanted.high, knee.astype(np.float32))
    return None


@dataclass(frozen=True)
class _Part:
    """By channel, a line through some of its codes, and whether it gives these."""

    factor: NDArray
    start: NDArray
    is_right: NDArray


class _Wanted:
    """What lines are to give.

    Of each channel the line is wanted that lies farthest inside of what rounds to its codes: for a given slope the room
    is between two of the codes, and which two they are says where there is more of it.
    """

    def __init__(self, tables: NDArray, zero: int) -> None:
        self.tables, self.zero = tables, zero
        self.low, self.high = int(tables.min()), int(tables.max())
        steps = tables.astype(np.float64) - zero
        # What is clipped may be anywhere beyond.
        self._least = np.where(tables > self.low, steps - 0.5, -FAR)
        self._most = np.where(tables < self.high, steps + 0.5, FAR)

    def line(self, first: NDArray, last: NDArray, channels: NDArray | slice = slice(None)) -> _Part:
        """Through the codes [first, last) of some channels."""
        is_asked = (np.arange(CODES) >= first[:, None]) & (np.arange(CODES) < last[:, None])
        least = np.where(is_asked, self._least[channels], -FAR)
        most = np.where(is_asked, self._most[channels], FAR)
        flattest, steepest = (np.full(len(least), bound) for bound in (-STEEPEST, STEEPEST))
        for _ in range(HALVINGS):
            slope = (flattest + steepest) / 2
            by_most, by_least = _tightest(slope, least, most)
            flattest = np.where(by_least >= by_most, slope, flattest)
            steepest = np.where(by_least <= by_most, slope, steepest)
        found = []
        for slope, bits in (((flattest + steepest) / 2, 0.0), (np.rint(steepest * FEW_BITS) / FEW_BITS, FEW_BITS)):
            factor, start = _through(slope, least, most, bits)
            codes = Line(factor, start, self.low, self.high).codes(self.zero)
            found.append(_Part(factor, start, ((codes == self.tables[channels]) | ~is_asked).all(axis=1)))
        exact, short = found
        factor = np.where(exact.is_right, exact.factor, short.factor)
        start = np.where(exact.is_right, exact.start, short.start)
        return _Part(factor, start, exact.is_right | short.is_right)

    def knees(self, channels: NDArray) -> NDArray:
        """Of each of these channels, how many of its first codes are on one line."""
        least, most = np.zeros(len(channels), int), np.full(len(channels), CODES)
        while (most - least > 1).any():
            half = (least + most + 1) // 2
            is_right = self.line(np.zeros(len(channels)), half, channels).is_right
            least, most = np.where(is_right, half, least), np.where(is_right, most, half)
        return np.asarray(np.where(self.line(np.zeros(len(channels)), most, channels).is_right, most, least))


def _tightest(slope: NDArray, least: NDArray, most: NDArray) -> tuple[NDArray, NDArray]:
    """By channel, the codes that bound the height of a line of this slope from above and from below."""
    rise = slope[:, None] * np.arange(CODES)
    return (most - rise).argmin(axis=1), (least - rise).argmax(axis=1)


def _through(slope: NDArray, least: NDArray, most: NDArray, bits: float) -> tuple[NDArray, NDArray]:
    """Slopes and starts, in float32, of lines in the middle of the room that there is; starts of few bits."""
    rise = slope[:, None] * np.arange(CODES)
    start = ((most - rise).min(axis=1) + (least - rise).max(axis=1)) / 2
    start = np.rint(start * bits) / bits if bits else start
    return slope.astype(np.float32), start.astype(np.float32)
