"""The bounds of what is computed of numbers whose bounds are known."""

from __future__ import annotations

import functools

import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.counts import spans
from onnxq.planning.counts.spans import ANY, ANY_WHOLE, COUNT, Span
from onnxq.planning.counts.uses import CHOOSES, MOVES, kernels_of

SUMS = frozenset({"CumSum", "ReduceL1", "ReduceSum"})
#: What makes numbers whole.
WHOLE = frozenset({"Ceil", "Floor", "Round"})
#: What makes numbers between those that it reads, with zeros around them.
_MEANS = frozenset({"AveragePool", "GlobalAveragePool", "GridSample", "ReduceMean", "Resize", "Upsample"})
_LARGEST = frozenset({"GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"})


def is_small(node: ir.Node, read: list[Span], counts: list[Span]) -> bool:
    """Whether it makes small numbers of large ones: logarithms of whole ones, roots of sizes, and quotients of those by
    what is not less than 1, as places in a row are of its length. What is added up and divided by its number is as
    large as one of its parts."""
    if node.op_type in ("Log", "Sqrt"):
        return read[0].whole and (read[0].by_size or node.op_type == "Log")
    is_share = node.op_type == "Div" and len(counts) == 2 and read[0].by_size
    return is_share and read[1].low >= (0 if read[1].whole else 1)


def is_switch(span: Span) -> bool:
    """Whether they are nothing but one of three numbers."""
    return span.whole and span.low >= -1 and span.high <= 1


def computed(node: ir.Node, read: list[Span], *, is_float: bool) -> Span:
    """The bounds of what is made of numbers with these."""
    op, a = node.op_type, read[0] if read else COUNT
    if op in MOVES or op in WHOLE or op in _LARGEST or op == "Cast":
        return Span(a.low, a.high, a.whole or not is_float or op in WHOLE, a.by_size)
    if op in _MEANS:
        return Span(min(a.low, 0), max(a.high, 0), False, a.by_size)
    if op in CHOOSES:
        return functools.reduce(Span.joined, read, Span(0, 0, True) if op == "Pad" else a)
    if op in SUMS:
        return spans.total(a)
    if op in ("Conv", "ConvTranspose", "MatMul") and len(read) > 1 and (kernels := kernels_of(node)):
        kernel, products = kernels[0], spans.multiplied(read[0], read[1])
        found = spans.total(products, kernel.elements // kernel.shape[kernel.role.channel])
        return functools.reduce(spans.added, read[2:], found)
    return _arithmetic(node, read, whole=not is_float)


def _arithmetic(node: ir.Node, read: list[Span], *, whole: bool) -> Span:
    anything = ANY_WHOLE if whole else ANY
    match node.op_type, read:
        case "Add", [a, b]:
            return spans.added(a, b)
        case "Sub", [a, b]:
            return spans.added(a, spans.negated(b))
        case "Mul", [a, b]:
            return spans.multiplied(a, b)
        case "Div", [a, b]:
            return spans.divided(a, b, whole=whole)
        case "Mod", [a, b]:
            return spans.rest(a, b, has_sign_of_a=graph.attribute_int(node, "fmod", 0) == 1)
        case "Neg", [a]:
            return spans.negated(a)
        case "Abs", [a]:
            return spans.absolute(a)
        case "Relu", [a]:
            return spans.clipped(a, Span(0, 0, True), None)
        case "Clip", [a, *_]:
            return _clip(node, a)
        case "Range", [start, limit, step]:
            found = start.joined(limit)
            return Span(found.low, found.high, start.whole and step.whole, found.by_size)
        case "Exp", [a]:
            return spans.exponential(a)
        case _:
            return anything


def _clip(node: ir.Node, a: Span) -> Span:
    bounds: list[Span | None] = [None, None]
    for index, name in ((1, "min"), (2, "max")):
        tensor = graph.constant(node.inputs[index]) if index < len(node.inputs) else None
        if tensor is not None:
            bounds[index - 1] = spans.of_tensor(tensor)
        elif name in node.attributes:
            number = graph.attribute_float(node, name, 0.0)
            bounds[index - 1] = Span(number, number, number.is_integer())
    return spans.clipped(a, *bounds)
