"""What llama.cpp computes of a decoder, in numpy: the proof that a graph is one, and is read right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.conversion.llama.decoder import Decoder, Part
from onnxq.conversion.llama.rope import Rope
from onnxq.encoding.lazy import GivenTensor
from onnxq.formats.kinds import arguments
from onnxq.model.weights import Weight

Floats = NDArray[np.float32]


def logits(decoder: Decoder, rope: Rope, ids: NDArray, *, by_halves: bool) -> Floats:
    """[len(ids), words] for one text from position 0 on.

    Args:
        by_halves: whether pair i of a head is its numbers i and i + size / 2; else 2i and 2i + 1.
    """
    x = matrix(decoder.embedding)[np.asarray(ids, np.int64)]
    angles = np.outer(np.arange(len(ids)), rope.frequencies)
    turns = np.cos(angles)[:, None].astype(np.float32), np.sin(angles)[:, None].astype(np.float32)
    for layer in decoder.layers:
        h = _norm(x, layer.attn_norm, decoder.epsilon)
        q, k, v = (_product(h, part).reshape(len(ids), -1, decoder.size) for part in (layer.q, layer.k, layer.v))
        q, k = (_turned(y, *turns, by_halves=by_halves) for y in (q, k))
        x = x + _product(_attention(q, k, v), layer.o)
        h = _norm(x, layer.ffn_norm, decoder.epsilon)
        gate = _product(h, layer.gate)
        x = x + _product(gate / (1 + np.exp(-gate)) * _product(h, layer.up), layer.down)
    return _product(_norm(x, decoder.norm, decoder.epsilon), decoder.head)


def matrix(weight: Weight) -> Floats:
    """A weight as floats [out, in], or a table as it is."""
    tensor, is_turned = weight.tensor, weight.role.contraction == 0
    w = tensor.given().dequantize() if isinstance(tensor, GivenTensor) else tensor.numpy()
    made = arguments.numbers(w).astype(np.float32)
    return made.T if is_turned else made


def _product(x: Floats, part: Part) -> Floats:
    y = x @ matrix(part.weight)[part.rows].T
    return y if part.bias is None else y + part.bias


def _norm(x: Floats, scale: Floats, epsilon: float) -> Floats:
    root = np.sqrt(np.square(x, dtype=np.float64).mean(-1, keepdims=True) + epsilon)
    return (x / root * scale).astype(np.float32)


def _turned(x: Floats, cos: Floats, sin: Floats, *, by_halves: bool) -> Floats:
    half = x.shape[-1] // 2
    a, b = (x[..., :half], x[..., half:]) if by_halves else (x[..., ::2], x[..., 1::2])
    low, high = a * cos - b * sin, a * sin + b * cos
    return np.concatenate([low, high], -1) if by_halves else np.stack([low, high], -1).reshape(x.shape)


def _attention(q: Floats, k: Floats, v: Floats) -> Floats:
    """[texts, heads · size] of [texts, heads, size] each, keys and values of as many heads or fewer."""
    count, heads, size = q.shape
    k, v = (np.repeat(y, heads // y.shape[1], axis=1) for y in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(np.sqrt(size))
    scores += np.triu(np.full((count, count), -np.inf, np.float32), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(count, heads * size)
