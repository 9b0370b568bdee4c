"""Llamas of any spelling: in standard operators or onnxruntime's own, products apart or joined, heads of both kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from exports.builder import Graph
from onnx import TensorProto

WORDS, WIDTH, HEADS, PAIRS, SIZE, HIDDEN, PLACES = 96, 64, 4, 2, 16, 128, 64


@dataclass(frozen=True)
class Spelling:
    """How a Llama of two layers is written down.

    Attributes:
        fused: com.microsoft's GroupQueryAttention, SkipSimplifiedLayerNormalization; else standard operators.
        joined: one product for queries, keys and values, and one for gate and up.
        by_halves: which numbers of a head turn together.
        slowed: low frequencies are divided by 4.
        scale: by which scores are multiplied; None: as Llama does.
        norm: how far norms are from what Llama has: a number that is subtracted first.
    """

    fused: bool = False
    joined: bool = False
    by_halves: bool = True
    slowed: bool = False
    biased: bool = False
    tied: bool = False
    scale: float | None = None
    seed: int = 4


def write(folder: Path, how: Spelling) -> Path:
    """`folder`/model.onnx: ids int64 [1, S] to logits."""
    g = Graph(how.seed)
    ids = g.input("tokens", TensorProto.INT64, 1, "S")
    frequencies = 10000.0 ** -(np.arange(0, SIZE, 2) / SIZE)
    frequencies[5:] /= 4 if how.slowed else 1
    turns = np.outer(np.arange(PLACES), frequencies)
    table = g.weight(WORDS, WIDTH, fan_in=1)
    x, skip = g.Gather(table, ids), None
    for _ in range(2):
        x, h = _norm(g, how, x, skip)
        q, k, v = _rows(g, how, h, WIDTH, PAIRS * SIZE, PAIRS * SIZE, biased=how.biased)
        mixed = _attention(g, how, turns, q, k, v)
        o = g.linear(mixed, WIDTH, WIDTH, how.biased)
        x, h = _norm(g, how, x, o)
        gate, up = _rows(g, how, h, HIDDEN, HIDDEN)
        skip = g.linear(g.Mul(g.silu(gate), up), HIDDEN, WIDTH, False)
    _, h = _norm(g, how, x, skip)
    logits = g.MatMul(h, g.Transpose(table, perm=[1, 0])) if how.tied else g.linear(h, WIDTH, WORDS, False)
    g.output(logits, "scores", 1, "S", WORDS)
    return g.save(folder)


def _norm(g: Graph, how: Spelling, x: str, skip: str | None) -> tuple[str, str]:
    """(what goes on, its norm)."""
    scale = g.vector(WIDTH, 1.0)
    if how.fused and skip is not None:
        made = g.add(
            "SkipSimplifiedLayerNormalization", x, skip, scale, outputs=4, domain="com.microsoft", epsilon=1e-6
        )
        return made[3], made[0]
    x = x if skip is None else g.Add(x, skip)
    if how.fused:
        return x, g.SimplifiedLayerNormalization(x, scale, axis=-1, epsilon=1e-6)
    mean = g.ReduceMean(g.Pow(x, g.scalar(2.0)), axes=[-1])
    return x, g.Mul(scale, g.Div(x, g.Sqrt(g.Add(mean, g.scalar(1e-6)))))


def _rows(g: Graph, how: Spelling, x: str, *sizes: int, biased: bool = False) -> list[str]:
    """Products of x, each of so many outputs."""
    if not how.joined:
        return [g.linear(x, WIDTH, size, biased) for size in sizes]
    whole = g.linear(x, WIDTH, sum(sizes), biased)
    return list(g.add("Split", whole, g.ints(*sizes), outputs=len(sizes), axis=-1))


def _attention(g: Graph, how: Spelling, turns: np.ndarray, *parts: str) -> str:
    cos, sin = (function(turns).astype(np.float32) for function in (np.cos, np.sin))
    q, k, v = parts
    if how.fused:
        total = g.Cast(g.Add(g.Shape(q, start=1, end=2), g.ints(0)), to=TensorProto.INT32)
        last = g.Unsqueeze(g.Sub(total, g.const([1], np.int32)), g.ints(0))
        empty = g.const(np.zeros((1, PAIRS, 0, SIZE)), np.float32)
        more = {"do_rotary": 1, "rotary_interleaved": int(not how.by_halves), "num_heads": HEADS, "kv_num_heads": PAIRS}
        more |= {} if how.scale is None else {"scale": how.scale}
        places = (g.const(cos), g.const(sin))
        made = g.add("GroupQueryAttention", q, k, v, empty, empty, last, g.Squeeze(total, g.ints(0)), *places,
                     outputs=3, domain="com.microsoft", **more)  # fmt: skip
        return made[0]
    size = g.Shape(q, start=1, end=2)
    angles = [g.Slice(g.const(x), g.ints(0), size, g.ints(0)) for x in (cos, sin)]
    q, k = (_turned(g, how, g.heads(x, n, SIZE), *angles) for x, n in ((q, HEADS), (k, PAIRS)))
    v = g.heads(v, PAIRS, SIZE)
    times, wide = g.ints(1, 1, HEADS // PAIRS, 1, 1), g.ints(1, HEADS, -1, SIZE)
    k, v = (g.Reshape(g.Expand(g.Unsqueeze(x, g.ints(2)), times), wide) for x in (k, v))
    table = g.const(np.triu(np.full((PLACES, PLACES), -1e4), 1), np.float32)
    mask = g.Slice(table, g.ints(0, 0), g.Concat(size, size, axis=0))
    scores = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), g.scalar(how.scale or SIZE**-0.5))
    mixed = g.MatMul(g.Softmax(g.Add(scores, mask), axis=-1), v)
    return g.Reshape(g.Transpose(mixed, perm=[0, 2, 1, 3]), g.ints(0, 0, WIDTH))


def _turned(g: Graph, how: Spelling, x: str, cos: str, sin: str) -> str:
    half = SIZE // 2
    if how.by_halves:
        a, b = (g.Slice(x, g.ints(i * half), g.ints((i + 1) * half), g.ints(3)) for i in range(2))
    else:
        a, b = (g.Slice(x, g.ints(i), g.ints(SIZE), g.ints(3), g.ints(2)) for i in range(2))
    low, high = g.Sub(g.Mul(a, cos), g.Mul(b, sin)), g.Add(g.Mul(a, sin), g.Mul(b, cos))
    if how.by_halves:
        return g.Concat(low, high, axis=3)
    pairs = g.Concat(g.Unsqueeze(low, g.ints(4)), g.Unsqueeze(high, g.ints(4)), axis=4)
    return g.Reshape(pairs, g.ints(0, 0, 0, SIZE))
