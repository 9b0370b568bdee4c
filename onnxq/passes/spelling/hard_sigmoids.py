"""HardSigmoid is one node again, where an exporter wrote it as Add, Clip and Div."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types, infer_types

#: How much a factor may differ from the reciprocal of the bound, as it was written in float32.
CLOSE = 1e-6
#: Of normal numbers in float32.
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class HardSigmoids(ir.passes.InPlacePass):
    """Clip(x + b, 0, h) / h becomes HardSigmoid(x, alpha = 1/h, beta = b/h), and x · Clip(x + b, 0, h) / h, the
    HardSwish of Howard et al. 2019 (Searching for MobileNetV3), x times that: two passes over numbers in the place of
    four, and one step of a region, which knows both.

    1. In float32, which onnxruntime has a kernel for.
    2. Constants are numbers; a factor of 1/h is as good as a division by h. Nobody else may read what is between.
    3. Constants of one dimension would make vectors of numbers without: then x is known to have one.
    4. Slope and offset are numbers that float32 has.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, found = Names(model), [node for node in graph.nodes(model) if graph.is_op(node, "Clip")]
        types = functools.cache(lambda: infer_types(model))
        made = [_replaced(clip, names, types) for clip in found]
        return ir.passes.PassResult(model, modified=any(made))


def _replaced(clip: ir.Node, names: Names, types: Callable[[], Types]) -> bool:
    add, (low, high) = graph.producer_beside(clip), _bounds(clip)
    if low != 0 or add is None or not graph.is_op(add, "Add"):
        return False
    x, shift = _and_number(add)
    behind = _only_reader(clip)
    if x is None or shift is None or high is None or high <= 0 or behind is None or _only_reader(add) is not clip:
        return False
    product = behind if graph.is_op(behind, "Mul") and {*behind.inputs} == {x, clip.outputs[0]} else None
    last = behind if product is None else _only_reader(product)
    if last is None or not _divides(last, high) or last.graph is not clip.graph:
        return False
    if not _LEAST <= 1 / high <= _MOST or abs(shift / high) > _MOST:
        return False
    has_vector = any(_is_vector(value) for node in (add, last) for value in node.inputs)
    if has_vector and not (x.shape.rank() if x.shape is not None else types().of(x).rank):
        return False
    attributes: graph.Attributes = {"alpha": 1 / high, "beta": shift / high}
    y = graph.add_node(last, "HardSigmoid", [x], names.fresh(f"{clip.name}_sigmoid"), "", attributes)
    if product is not None:
        y.name = names.fresh(f"{clip.outputs[0].name}_share")
        y.type, y.shape = clip.outputs[0].type, clip.outputs[0].shape
        y = graph.add_node(last, "Mul", [x, y], names.fresh(f"{product.name}_swish"), "")
    graph.replace_value(last.outputs[0], y)
    assert clip.graph is not None
    clip.graph.remove([each for each in (last, product, clip, add) if each is not None], safe=True)
    return True


def _only_reader(node: ir.Node) -> ir.Node | None:
    reader = graph.only_consumer(node.outputs[0])
    return reader if reader is not None and reader.graph is node.graph else None


def _bounds(clip: ir.Node) -> tuple[float | None, float | None]:
    """The least and the largest number, where both are given."""
    low, high = clip.attributes.get("min"), clip.attributes.get("max")  # before opset 11
    if low is not None and high is not None:
        are_floats = low.type is high.type is ir.AttributeType.FLOAT  # nobody looks at those that the operator lacks
        return (low.as_float(), high.as_float()) if are_floats else (None, None)
    return (_number(clip.inputs[1]), _number(clip.inputs[2])) if len(clip.inputs) > 2 else (None, None)


def _number(value: ir.Value | None) -> float | None:
    """A finite constant in float32 that is one number and adds no dimension worth the name."""
    tensor = graph.constant(value)
    if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.size != 1 or len(tensor.shape) > 1:
        return None
    number = float(tensor.numpy().reshape(()))
    return number if math.isfinite(number) else None


def _is_vector(value: ir.Value | None) -> bool:
    tensor = graph.constant(value)
    return tensor is not None and len(tensor.shape) == 1


def _and_number(node: ir.Node) -> tuple[ir.Value | None, float | None]:
    """What a node reads that is no number, and the number beside it."""
    a, b = node.inputs
    return (a, _number(b)) if _number(b) is not None else (b, _number(a))


def _divides(node: ir.Node, by: float) -> bool:
    if graph.is_op(node, "Div"):
        return _number(node.inputs[1]) == by
    factor = _and_number(node)[1] if graph.is_op(node, "Mul") else None
    return factor is not None and abs(factor * by - 1) < CLOSE
