"""Normalizations, as they are when a model is used."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from onnxq.training.graph.operators import Call, operator


def _channels(parameter: Tensor, x: Tensor) -> Tensor:
    """[channels] against axis 1 of `x`."""
    return parameter.reshape(1, -1, *[1] * (x.ndim - 2))


@operator("BatchNormalization")
def batch_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> tuple[Tensor, ...]:
    if call.get("training_mode", 0) or call.outputs > 1:
        raise call.refuse("its statistics are those of the batch; export the model for inference")
    factor = scale / torch.sqrt(variance + call.get("epsilon", 1e-5))
    return ((x - _channels(mean, x)) * _channels(factor, x) + _channels(bias, x),)


@operator("InstanceNormalization")
def instance_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axes, keepdim=True)
    variance = (centred * centred).mean(axes, keepdim=True)
    centred = centred * torch.rsqrt(variance + call.get("epsilon", 1e-5))
    return centred * _channels(scale, x) + _channels(bias, x)


@operator("LayerNormalization")
def layer_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    axes = tuple(range(call.get("axis", -1) % x.ndim, x.ndim))
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + call.get("epsilon", 1e-5))
    found = centred * inverse * scale
    return (found if bias is None else found + bias), mean, inverse


@operator("RMSNormalization")
@operator("SimplifiedLayerNormalization")
def rms_normalization(call: Call, x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    axes = tuple(range(call.get("axis", -1) % x.ndim, x.ndim))
    inverse = torch.rsqrt((x * x).mean(axes, keepdim=True) + call.get("epsilon", 1e-5))
    return x * inverse * scale, inverse


@operator("GroupNormalization")
def group_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, epsilon = call.get("num_groups"), call.get("epsilon", 1e-5)
    if scale.numel() == groups != x.shape[1]:  # before opset 21
        scale, bias = (each.repeat_interleave(x.shape[1] // groups) for each in (scale, bias))
    return functional.group_norm(x, groups, scale, bias, epsilon)


@operator("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, call.get("p", 2), call.get("axis", -1), keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm))


@operator("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Tensor) -> Tensor:
    axes = tuple(call.get("axes") or [0, 2, 3])
    centred = x - x.mean(axes, keepdim=True)
    return centred / (torch.sqrt((centred * centred).mean(axes, keepdim=True)) + 1e-9)


@operator("LRN")
def lrn(call: Call, x: Tensor) -> Tensor:
    size = call.get("size")
    before, behind = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = functional.pad((x * x).movedim(1, -1), (before, behind)).unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (call.get("bias", 1.0) + call.get("alpha", 1e-4) / size * squares) ** call.get("beta", 0.75)


@operator("SkipLayerNormalization", domain="com.microsoft")
def skip_layer_normalization(
    call: Call, x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    total = x + skip if bias is None else x + skip + bias
    found = functional.layer_norm(total, total.shape[-1:], gamma, beta, call.get("epsilon", 1e-12))
    return found, _not_offered(total), _not_offered(total), total


@operator("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_simplified_layer_normalization(
    call: Call, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    total = x + skip if bias is None else x + skip + bias
    inverse = torch.rsqrt((total * total).mean(-1, keepdim=True) + call.get("epsilon", 1e-5))
    return total * inverse * gamma, _not_offered(total), inverse, total


def _not_offered(x: Tensor) -> Tensor:
    """Outputs that nobody reads and onnxruntime does not make on processors either."""
    return x.new_zeros(0)


@operator("EmbedLayerNormalization", domain="com.microsoft", constants=[0, 1, 7, 8])
def embed_layer_normalization(call: Call, ids: Tensor, segments: Tensor | None, *tables: Tensor) -> tuple[Tensor, ...]:
    words, positions, kinds, gamma, beta, mask, given = (*tables, *[None] * 7)[:7]
    assert words is not None and positions is not None
    ids = ids.to(torch.int64)
    steps = torch.arange(ids.shape[1], device=ids.device).expand_as(ids) if given is None else given.to(torch.int64)
    total = functional.embedding(ids, words) + functional.embedding(steps, positions)
    if segments is not None and kinds is not None:
        total = total + functional.embedding(segments.to(torch.int64), kinds)
    found = functional.layer_norm(total, total.shape[-1:], gamma, beta, call.get("epsilon", 1e-12))
    filled = ids.new_zeros(len(ids)) if mask is None else mask.sum(1)
    return found, filled.to(torch.int32), total
