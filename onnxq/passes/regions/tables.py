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
        factor: float32, [channels].
        start: float32, [channels].
    """

    factor: NDArray
    start: NDArray
    low: int
    high: int

    def codes(self, zero: int) -> NDArray:
        """uint8, [channels, 256]: of every code."""
        numbers = np.arange(CODES, dtype=np.float32) * self.factor[:, None] + self.start[:, None]
        return np.clip(np.rint(numbers) + zero, self.low, self.high).astype(np.uint8)


def line_of(tables: NDArray, zero: int) -> Line | None:
    """What makes exactly these codes; None where no line was found that does.

    Of each channel the line is wanted that lies farthest inside of what rounds to its codes: for a given slope the room
    is between two of the codes, and which two they are says where there is more of it.

    Args:
        tables: uint8, [channels, 256].
        zero: the zero point of the codes that are made.
    """
    low, high = int(tables.min()), int(tables.max())
    steps = tables.astype(np.float64) - zero
    # What is clipped may be anywhere beyond.
    least = np.where(tables > low, steps - 0.5, -FAR)
    most = np.where(tables < high, steps + 0.5, FAR)
    flattest, steepest = (np.full(len(tables), bound) for bound in (-STEEPEST, STEEPEST))
    for _ in range(HALVINGS):
        slope = (flattest + steepest) / 2
        by_most, by_least = _tightest(slope, least, most)
        flattest = np.where(by_least > by_most, slope, flattest)
        steepest = np.where(by_least < by_most, slope, steepest)
        settled = by_least == by_most
        flattest, steepest = np.where(settled, slope, flattest), np.where(settled, slope, steepest)
    exact = _through((flattest + steepest) / 2, least, most, low, high)
    round_ = _through(np.rint(exact.factor * FEW_BITS) / FEW_BITS, least, most, low, high, FEW_BITS)
    is_exact, is_round = ((line.codes(zero) == tables).all(axis=1) for line in (exact, round_))
    if not (is_exact | is_round).all():
        return None
    factor, start = (np.where(is_exact, a, b) for a, b in ((exact.factor, round_.factor), (exact.start, round_.start)))
    return Line(factor, start, low, high)


def _tightest(slope: NDArray, least: NDArray, most: NDArray) -> tuple[NDArray, NDArray]:
    """By channel, the codes that bound the height of a line of this slope from above and from below."""
    rise = slope[:, None] * np.arange(CODES)
    return (most - rise).argmin(axis=1), (least - rise).argmax(axis=1)


def _through(slope: NDArray, least: NDArray, most: NDArray, low: int, high: int, bits: float = 0) -> Line:
    """Lines of these slopes, in the middle of the room that there is."""
    rise = slope[:, None] * np.arange(CODES)
    start = ((most - rise).min(axis=1) + (least - rise).max(axis=1)) / 2
    start = np.rint(start * bits) / bits if bits else start
    return Line(slope.astype(np.float32), start.astype(np.float32), low, high)
