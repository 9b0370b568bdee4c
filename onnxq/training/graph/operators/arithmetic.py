"""Sums, products, comparisons, and functions of each number by itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onnxq.training.graph.operators import Call, enter_one, operator
from onnxq.training.graph.types import torch_type

_UNARY: dict[str, Callable[..., Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Log": torch.log,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
}
_STEPS: dict[str, Callable[..., Tensor]] = {
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Floor": torch.floor,
    "IsNaN": torch.isnan,
    "Not": torch.logical_not,
    "Round": torch.round,
    "Sign": torch.sign,
}
_BINARY: dict[str, Callable[..., Tensor]] = {"Add": torch.add, "Mul": torch.mul, "Sub": torch.sub}
_COMPARING: dict[str, Callable[..., Tensor]] = {
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}


def _ignoring_call(function: Callable[..., Tensor], call: Call, *inputs: Tensor) -> Tensor:
    return function(*inputs)


def _aligned(function: Callable[..., Tensor], call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Before opset 7 the second input had to be told where in the first its dimensions lie."""
    if call.opset < 7 and call.get("broadcast", 0):
        axis = call.get("axis")
        behind = 0 if axis is None else a.ndim - int(axis) % a.ndim - b.ndim
        b = b.reshape(*b.shape, *[1] * behind)
    return function(a, b)


for _name, _function in _UNARY.items():
    enter_one(_name, functools.partial(_ignoring_call, _function))
for _name, _function in _STEPS.items():
    enter_one(_name, functools.partial(_ignoring_call, _function), gradient=False)
for _name, _function in _BINARY.items():
    enter_one(_name, functools.partial(_aligned, _function))
for _name, _function in _COMPARING.items():
    enter_one(_name, functools.partial(_aligned, _function), gradient=False)


def _divided(a: Tensor, b: Tensor) -> Tensor:
    """Integers are cut towards zero."""
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


enter_one("Div", functools.partial(_aligned, _divided))


@operator("Mod", constants=[1])
def mod(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if call.get("fmod", 0) else torch.remainder(a, b)


@operator("Pow", constants=[1])
def power(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if b.numel() == 1 and not b.requires_grad:  # a square is exact, and its gradient at zero too
        exponent = b.item()
        found = torch.pow(a, int(exponent) if float(exponent).is_integer() else exponent)
        return found.reshape(torch.broadcast_shapes(a.shape, b.shape)).to(a.dtype)
    return torch.pow(a, b).to(a.dtype)


@operator("Max")
def maximum(call: Call, *inputs: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, inputs)


@operator("Min")
def minimum(call: Call, *inputs: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, inputs)


@operator("Sum")
def total(call: Call, *inputs: Tensor) -> Tensor:
    return functools.reduce(torch.add, inputs)


@operator("Mean")
def mean(call: Call, *inputs: Tensor) -> Tensor:
    return functools.reduce(torch.add, inputs) / len(inputs)


@operator("IsInf", gradient=False)
def is_inf(call: Call, x: Tensor) -> Tensor:
    found = torch.zeros_like(x, dtype=torch.bool)
    if call.get("detect_positive", 1):
        found = found | (x == math.inf)
    return found | (x == -math.inf) if call.get("detect_negative", 1) else found


@operator("BitShift", gradient=False)
def bit_shift(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if call.get("direction") == "LEFT":
        return torch.bitwise_left_shift(a, b)
    return torch.bitwise_right_shift(a, b)


@operator("Where")
def where(call: Call, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


@operator("Clip", constants=[1, 2])
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    least = call.get("min") if low is None else low.reshape(())
    most = call.get("max") if high is None else high.reshape(())
    if least is None and most is None:
        return x
    bounds = (None if y is None else torch.as_tensor(y, dtype=x.dtype, device=x.device) for y in (least, most))
    return torch.clamp(x, *bounds)  # in one go; where both bounds cross, the upper one


@operator("Cast")
def cast(call: Call, x: Tensor) -> Tensor:
    kind = torch_type(ir.DataType(call.get("to")))
    return x.to(kind)


@operator("CastLike", constants=[1])
def cast_like(call: Call, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


@operator("MatMul")
def matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@operator("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if call.get("transA", 0) else a
    b = b.T if call.get("transB", 0) else b
    found = torch.matmul(a, b)
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    found = found if alpha == 1 else alpha * found
    return found if c is None else found + (c if beta == 1 else beta * c)


@operator("Einsum")
def einsum(call: Call, *inputs: Tensor) -> Tensor:
    return torch.einsum(call.get("equation").replace(" ", ""), *inputs)


@operator("CumSum", constants=[1])
def cumsum(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    along = int(axis)
    turned = torch.flip(x, [along]) if call.get("reverse", 0) else x
    found = torch.cumsum(turned, along).to(x.dtype)
    if call.get("exclusive", 0):
        found = found - turned
    return torch.flip(found, [along]) if call.get("reverse", 0) else found


@operator("Det")
def det(call: Call, x: Tensor) -> Tensor:
    return torch.linalg.det(x)


@operator("Identity")
def identity(call: Call, x: Any) -> Any:
    return x


@operator("Dropout", constants=[1, 2])
def dropout(call: Call, x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    """As it is when a model is used."""
    return x, torch.ones_like(x, dtype=torch.bool)
