"""Activation functions as models spell them, in one node or a dozen: known by the numbers that they compute.

What hangs on a value and reads nothing but it and single constants is computed on numbers near zero and far from it,
and compared with the functions that kernels have. So no spelling has to be known, neither that of an exporter nor
onnxruntime's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph

#: Nodes that one may have.
MOST_NODES = 12
#: Up to where functions differ by more than their tails do.
NEAR = 6.0
_FAR = np.geomspace(NEAR, 1e9, 64)[1:]
#: Where functions are compared, and how close they must be; Gelu and its approximation by tanh are 5e-4 apart. A ReLU6
#: is told from a ReLU far out only.
POINTS = np.concatenate([-_FAR[::-1], np.linspace(-NEAR, NEAR, 97), _FAR])
CLOSE = 2e-5

Numbers = NDArray[np.float64]


def _erf(x: Numbers) -> Numbers:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: Numbers) -> Numbers:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _gelu(x: Numbers) -> Numbers:
    return np.asarray(x * (1.0 + _erf(x / math.sqrt(2.0))) / 2.0)


def _tanh_gelu(x: Numbers) -> Numbers:
    return np.asarray(x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))) / 2.0)


#: By the word that kernels have for it.
FUNCTIONS: dict[str, Callable[[Numbers], Numbers]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": _gelu,
    "gelu_tanh": _tanh_gelu,
    "silu": lambda x: x * _sigmoid(x),
}

#: Operators of one value, and of two.
_ONE: dict[str, Callable[[Numbers], Numbers]] = {
    "Relu": FUNCTIONS["relu"],
    "Erf": _erf,
    "Tanh": np.tanh,
    "Sigmoid": _sigmoid,
    "Exp": np.exp,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Identity": np.asarray,
}
_TWO: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
}


@dataclass(frozen=True)
class Activation:
    """`nodes` compute `y` as the function `word` of a value that nobody else reads."""

    word: str
    nodes: tuple[ir.Node, ...]
    y: ir.Value


def activation_of(x: ir.Value) -> Activation | None:
    """The longest one that hangs on `x` alone."""
    made, taken = {x: POINTS.astype(np.float64)}, list[ir.Node]()
    found = None
    while len(taken) < MOST_NODES and (step := _next(made, taken)) is not None:
        node, numbers = step
        taken.append(node)
        made[node.outputs[0]] = numbers
        ends = [value for value in made if not _is_inside(value, taken)]
        if ends == [node.outputs[0]] and (word := _word_of(numbers)) is not None:
            found = Activation(word, tuple(taken), node.outputs[0])
    return found


def _next(made: dict[ir.Value, Numbers], taken: list[ir.Node]) -> tuple[ir.Node, Numbers] | None:
    """A node that reads nothing but what is known, and something of that; with what it computes."""
    for value in made:
        for node in sorted((use.node for use in value.uses()), key=lambda node: node.name or ""):
            inputs = [each for each in node.inputs if each is not None]
            is_known = all(each in made or _number(each) is not None for each in inputs)
            is_new = node not in taken and node.graph is not None and len(node.outputs) == 1
            if is_new and is_known and (numbers := _computed(node, made)) is not None:
                return node, numbers
    return None


def _is_inside(value: ir.Value, taken: list[ir.Node]) -> bool:
    """Whether nobody but these nodes reads it."""
    return not value.is_graph_output() and all(use.node in taken for use in value.uses())


def _computed(node: ir.Node, made: dict[ir.Value, Numbers]) -> Numbers | None:
    given = [each for each in node.inputs if each is not None]
    inputs = [made[each] if each in made else np.full_like(POINTS, _number(each) or 0.0) for each in given]
    with np.errstate(all="ignore"):
        if node.domain == graph.MICROSOFT:
            return _of_microsoft(node, inputs)
        return _of_onnx(node, inputs) if node.domain == "" else None


def _of_onnx(node: ir.Node, inputs: list[Numbers]) -> Numbers | None:
    if len(inputs) == 1 and node.op_type in _ONE:
        return np.asarray(_ONE[node.op_type](inputs[0]))
    if len(inputs) == 2 and node.op_type in _TWO:
        return np.asarray(_TWO[node.op_type](inputs[0], inputs[1]))
    if len(inputs) == 1 and node.op_type == "Gelu":
        return (_tanh_gelu if graph.attribute_string(node, "approximate", "none") == "tanh" else _gelu)(inputs[0])
    if len(inputs) == 1 and node.op_type == "Swish":
        return inputs[0] * _sigmoid(graph.attribute_float(node, "alpha", 1.0) * inputs[0])
    return None


def _of_microsoft(node: ir.Node, inputs: list[Numbers]) -> Numbers | None:
    if len(inputs) != 1:
        return None
    if node.op_type == "QuickGelu":
        return inputs[0] * _sigmoid(graph.attribute_float(node, "alpha", 1.702) * inputs[0])
    return {"Gelu": _gelu, "FastGelu": _tanh_gelu}.get(node.op_type, lambda _: None)(inputs[0])


def _word_of(numbers: Numbers) -> str | None:
    # A spelling whose exponentials overflow gives no number far out (inf / inf), in any runtime.
    overflows = np.isnan(numbers) & (np.abs(POINTS) > NEAR)
    for word, function in FUNCTIONS.items():
        with np.errstate(over="ignore"):
            wanted = function(POINTS)
        if bool(np.all(overflows | (np.abs(numbers - wanted) <= CLOSE * (1.0 + np.abs(wanted))))):
            return word
    return None


def _number(value: ir.Value) -> float | None:
    """The only element of a constant that adds no dimensions to what it is combined with."""
    tensor = graph.constant(value)
    if tensor is None or tensor.size != 1 or len(tensor.shape) > 1 or tensor.dtype not in graph.FLOATS:
        return None
    return float(np.asarray(tensor.numpy()).astype(np.float64).reshape(-1)[0])
