"""Functions that stand behind layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from onnxq.training.graph.operators import Call, operator


@operator("Relu")
def relu(call: Call, x: Tensor) -> Tensor:
    return torch.relu(x)


@operator("Sigmoid")
def sigmoid(call: Call, x: Tensor) -> Tensor:
    return torch.sigmoid(x)


@operator("Tanh")
def tanh(call: Call, x: Tensor) -> Tensor:
    return torch.tanh(x)


@operator("LeakyRelu")
def leaky_relu(call: Call, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, call.get("alpha", 0.01))


@operator("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@operator("Elu")
def elu(call: Call, x: Tensor) -> Tensor:
    return functional.elu(x, call.get("alpha", 1.0))


@operator("Celu")
def celu(call: Call, x: Tensor) -> Tensor:
    return functional.celu(x, call.get("alpha", 1.0))


@operator("Selu")
def selu(call: Call, x: Tensor) -> Tensor:
    alpha, gamma = call.get("alpha", 1.67326319217681884765625), call.get("gamma", 1.05070102214813232421875)
    return gamma * functional.elu(x, alpha)


@operator("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return functional.threshold(x, call.get("alpha", 1.0), 0.0)


@operator("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    return torch.clamp(x * call.get("alpha", 0.2) + call.get("beta", 0.5), 0, 1)


@operator("HardSwish")
def hard_swish(call: Call, x: Tensor) -> Tensor:
    return x * torch.clamp(x / 6 + 0.5, 0, 1)


@operator("Softplus")
def softplus(call: Call, x: Tensor) -> Tensor:
    return functional.softplus(x)


@operator("Softsign")
def softsign(call: Call, x: Tensor) -> Tensor:
    return functional.softsign(x)


@operator("Mish")
def mish(call: Call, x: Tensor) -> Tensor:
    return functional.mish(x)


@operator("Swish")
def swish(call: Call, x: Tensor) -> Tensor:
    return x * torch.sigmoid(call.get("alpha", 1.0) * x)


@operator("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    bias, at = call.get("bias", 0.0), call.get("lambd", 0.5)
    return torch.where(x < -at, x + bias, torch.where(x > at, x - bias, torch.zeros_like(x)))


@operator("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=call.get("approximate", "none"))


@operator("Gelu", domain="com.microsoft")
def contrib_gelu(call: Call, x: Tensor) -> Tensor:
    return functional.gelu(x)


@operator("BiasGelu", domain="com.microsoft")
def bias_gelu(call: Call, x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias)


@operator("FastGelu", domain="com.microsoft")
def fast_gelu(call: Call, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("QuickGelu", domain="com.microsoft")
def quick_gelu(call: Call, x: Tensor) -> Tensor:
    return x * torch.sigmoid(call.get("alpha", 1.702) * x)


def _over(call: Call, x: Tensor) -> tuple[Tensor, int]:
    """What is normalized along which axis: before opset 13 everything from the axis on."""
    axis = call.get("axis", -1 if call.opset >= 13 else 1)
    if call.opset >= 13:
        return x, axis
    return x.reshape(math.prod(x.shape[: axis % max(1, x.ndim)]), -1), 1


@operator("Softmax")
def softmax(call: Call, x: Tensor) -> Tensor:
    rows, axis = _over(call, x)
    return torch.softmax(rows, axis).reshape(x.shape)


@operator("LogSoftmax")
def log_softmax(call: Call, x: Tensor) -> Tensor:
    rows, axis = _over(call, x)
    return torch.log_softmax(rows, axis).reshape(x.shape)


@operator("Hardmax", gradient=False)
def hardmax(call: Call, x: Tensor) -> Tensor:
    rows, axis = _over(call, x)
    best = rows.argmax(axis, keepdim=True)
    return torch.zeros_like(rows).scatter(axis, best, 1).reshape(x.shape)
