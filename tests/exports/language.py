"""Language models, encoders and decoders: `MODELS` by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from exports.builder import Architecture, Feed, Graph, tokens
from onnx import TensorProto

INT, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
VOCABULARY, WIDTH, HEADS = 90, 64, 4
SIZE = WIDTH // HEADS


def bert(folder: Path) -> Path:
    """A classifier: three embeddings, norms behind each part, a mask of large negative numbers."""
    g = Graph(1)
    ids, mask = g.input("input_ids", INT, "B", "S"), g.input("attention_mask", INT, "B", "S")
    kinds = g.Expand(g.ints(0), g.Shape(ids))
    x = g.Add(g.embed(ids, VOCABULARY, WIDTH), g.embed(kinds, 8, WIDTH))
    x = g.layer_norm(g.Add(x, g.positions(ids, 64, WIDTH)), WIDTH)
    hidden = g.Sub(g.scalar(1.0), g.Cast(g.Unsqueeze(mask, g.ints(1, 2)), to=FLOAT))
    bias = g.Mul(hidden, g.scalar(-1e4))
    for _ in range(2):
        x = g.layer_norm(g.Add(x, g.attention(x, WIDTH, HEADS, bias)), WIDTH)
        x = g.layer_norm(g.Add(x, g.linear(g.gelu(g.linear(x, WIDTH, 128)), 128, WIDTH)), WIDTH)
    first = g.Gather(x, g.const(0, np.int64), axis=1)
    pooled = g.Tanh(g.Gemm(first, g.weight(WIDTH, WIDTH), g.vector(WIDTH), transB=1))
    g.output(g.Gemm(pooled, g.weight(8, WIDTH, fan_in=WIDTH), g.vector(8), transB=1), "logits", "B", 8)
    return g.save(folder)


def minilm(folder: Path) -> Path:
    """A sentence encoder: mean over what the mask shows, made a unit vector. LayerNormalization as one node."""
    g = Graph(2)
    ids, mask = g.input("input_ids", INT, "B", "S"), g.input("attention_mask", INT, "B", "S")
    norm = lambda x: g.LayerNormalization(x, g.vector(WIDTH, 1.0), g.vector(WIDTH))  # noqa: E731
    x = norm(g.Add(g.embed(ids, VOCABULARY, WIDTH), g.positions(ids, 64, WIDTH)))
    shown = g.Cast(mask, to=FLOAT)
    bias = g.Where(g.Cast(g.Unsqueeze(mask, g.ints(1, 2)), to=BOOL), g.scalar(0.0), g.scalar(-3e38))
    for _ in range(2):
        x = norm(g.Add(x, g.attention(x, WIDTH, HEADS, bias)))
        x = norm(g.Add(x, g.linear(g.gelu(g.linear(x, WIDTH, 128)), 128, WIDTH)))
    weights = g.Unsqueeze(shown, g.ints(2))
    mean = g.Div(g.ReduceSum(g.Mul(x, weights), g.ints(1), keepdims=0), g.ReduceSum(weights, g.ints(1), keepdims=0))
    g.output(g.Div(mean, g.ReduceL2(mean, axes=[-1])), "embedding", "B", WIDTH)
    return g.save(folder)


def gpt2(folder: Path) -> Path:
    """Conv1D as Gemm on flattened tokens, one product for q, k and v, the embedding tied to the head by a Transpose."""
    g = Graph(3)
    ids = g.input("input_ids", INT, "B", "S")
    table = g.weight(VOCABULARY, WIDTH, fan_in=WIDTH, name="wte")
    x = g.Add(g.Gather(table, ids), g.positions(ids, 64, WIDTH))
    bias = g.causal(ids)

    def conv1d(y: str, k: int, n: int) -> str:
        shape = g.Concat(g.Shape(y, end=2), g.ints(n), axis=0)
        flat = g.Gemm(g.Reshape(y, g.ints(-1, k)), g.weight(k, n), g.vector(n))
        return g.Reshape(flat, shape)

    for _ in range(2):
        q, k, v = g.add("Split", conv1d(g.layer_norm(x, WIDTH), WIDTH, 3 * WIDTH), outputs=3, axis=2)
        mixed = g.attend(*(g.heads(y, HEADS, SIZE) for y in (q, k, v)), WIDTH, SIZE, bias)
        x = g.Add(x, conv1d(mixed, WIDTH, WIDTH))
        h = conv1d(g.layer_norm(x, WIDTH), WIDTH, 128)
        cube = g.Mul(g.Add(h, g.Mul(g.Pow(h, g.scalar(3.0)), g.scalar(0.044715))), g.scalar(0.7978846))
        x = g.Add(x, conv1d(g.Mul(g.Mul(h, g.scalar(0.5)), g.Add(g.Tanh(cube), g.scalar(1.0))), 128, WIDTH))
    logits = g.MatMul(g.layer_norm(x, WIDTH), g.Transpose(table, perm=[1, 0]))
    g.output(logits, "logits", "B", "S", VOCABULARY)
    return g.save(folder)


def rotate(g: Graph, x: str, angles: tuple[str, str]) -> str:
    """Rotary embedding of [B, H, S, size]."""
    low = g.Slice(x, g.ints(0), g.ints(SIZE // 2), g.ints(3))
    high = g.Slice(x, g.ints(SIZE // 2), g.ints(SIZE), g.ints(3))
    turned = g.Concat(g.Neg(high), low, axis=3)
    return g.Add(g.Mul(x, angles[0]), g.Mul(turned, angles[1]))


def rotary_tables() -> tuple[np.ndarray, np.ndarray]:
    turns = np.outer(np.arange(64), 10000.0 ** -(np.arange(0, SIZE, 2) / SIZE))
    turns = np.concatenate([turns, turns], axis=1)
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


def llama(folder: Path, *, pairs: int = 2, bias: bool = False, seed: int = 4) -> Path:
    """Two key-value heads for four, rotary positions from tables, a gated network, a cache that goes in and out."""
    g = Graph(seed)
    ids = g.input("input_ids", INT, "B", "S")
    past = [
        [g.input(f"past_key_values.{i}.{n}", FLOAT, "B", pairs, "P", SIZE) for n in ("key", "value")] for i in range(2)
    ]
    total = g.Add(g.length(ids), g.length(past[0][0], 2))
    starts = g.length(past[0][0], 2)
    angles = tuple(g.Slice(g.const(table), starts, total, g.ints(0)) for table in rotary_tables())
    table = g.const(np.triu(np.full((64, 64), -1e4), 1), np.float32)
    mask = g.Slice(g.Slice(table, starts, total, g.ints(0)), g.ints(0), total, g.ints(1))
    x = g.embed(ids, VOCABULARY, WIDTH)
    for i in range(2):
        h = g.rms_norm(x, WIDTH)
        q = rotate(g, g.heads(g.linear(h, WIDTH, WIDTH, bias), HEADS, SIZE), angles)
        k = rotate(g, g.heads(g.linear(h, WIDTH, pairs * SIZE, bias), pairs, SIZE), angles)
        v = g.heads(g.linear(h, WIDTH, pairs * SIZE, bias), pairs, SIZE)
        k, v = (g.Concat(old, new, axis=2) for old, new in zip(past[i], (k, v), strict=True))
        for name, value in (("key", k), ("value", v)):
            g.output(value, f"present.{i}.{name}", "B", pairs, "T", SIZE)
        times = g.ints(1, 1, HEADS // pairs, 1, 1)
        wide = g.Concat(g.Shape(k, end=1), g.ints(HEADS, -1, SIZE), axis=0)
        k, v = (g.Reshape(g.Tile(g.Unsqueeze(y, g.ints(2)), times), wide) for y in (k, v))
        x = g.Add(x, g.linear(g.attend(q, k, v, WIDTH, SIZE, mask), WIDTH, WIDTH, False))
        h = g.rms_norm(x, WIDTH)
        gated = g.Mul(g.silu(g.linear(h, WIDTH, 128, False)), g.linear(h, WIDTH, 128, False))
        x = g.Add(x, g.linear(gated, 128, WIDTH, False))
    g.output(g.linear(g.rms_norm(x, WIDTH), WIDTH, VOCABULARY, False), "logits", "B", "S", VOCABULARY)
    return g.save(folder)


def qwen(folder: Path) -> Path:
    """As llama, with biases on q, k and v and a single key-value head."""
    return llama(folder, pairs=1, bias=True, seed=5)


def cached(pairs: int) -> object:
    def draw(rng: np.random.Generator, batch: int, length: int) -> Feed:
        feed = tokens(VOCABULARY)(rng, batch, length)
        past = (0, 3, 7)[length % 3]
        for i in range(2):
            for name in ("key", "value"):
                x = rng.standard_normal((batch, pairs, past, SIZE)).astype(np.float32)
                feed[f"past_key_values.{i}.{name}"] = x
        return feed

    return draw


def merged_decoder(folder: Path) -> Path:
    """An If with a branch for the prompt and one that goes on from a cache; both read the weights of the graph around
    them, and the embedding is the head too."""
    g = Graph(6)
    ids, memory = g.input("input_ids", INT, "B", "S"), g.input("encoder_hidden_states", FLOAT, "B", "E", WIDTH)
    use_cache = g.input("use_cache_branch", BOOL, 1)
    past = g.input("past", FLOAT, "B", "P", WIDTH)
    table = g.weight(VOCABULARY, WIDTH, fan_in=WIDTH, name="shared")
    names = {n: g.weight(WIDTH, WIDTH, name=n) for n in ("k", "v", "q", "o", "ck", "cv", "cq", "co")}
    up, down = g.weight(WIDTH, 128, name="up"), g.weight(128, WIDTH, name="down")
    x = g.Gather(table, ids)

    def branch(with_past: bool) -> onnx.GraphProto:
        b = g.inner()
        seen = b.Concat(past, x, axis=1) if with_past else b.Identity(x)
        q, k, v = (b.heads(b.MatMul(y, names[n]), HEADS, SIZE) for n, y in (("q", x), ("k", seen), ("v", seen)))
        y = b.Add(x, b.MatMul(b.attend(q, k, v, WIDTH, SIZE), names["o"]))
        read = (("cq", y), ("ck", memory), ("cv", memory))
        q, k, v = (b.heads(b.MatMul(z, names[n]), HEADS, SIZE) for n, z in read)
        y = b.rms_norm(b.Add(y, b.MatMul(b.attend(q, k, v, WIDTH, SIZE), names["co"])), WIDTH)
        y = b.Add(y, b.MatMul(b.Relu(b.MatMul(y, up)), down))
        b.output(b.MatMul(y, b.Transpose(table, perm=[1, 0])), b.name("logits"), None, None, VOCABULARY)
        b.output(seen, b.name("present"), None, None, WIDTH)
        return b.body("with_past" if with_past else "prompt")

    logits, present = g.add("If", use_cache, outputs=2, then_branch=branch(True), else_branch=branch(False))
    g.output(logits, "logits", "B", "S", VOCABULARY)
    g.output(present, "present", "B", "T", WIDTH)
    return g.save(folder)


def draw_merged(rng: np.random.Generator, batch: int, length: int) -> Feed:
    past = length % 2  # both branches
    return {
        **tokens(VOCABULARY)(rng, batch, length),
        "encoder_hidden_states": rng.standard_normal((batch, 5, WIDTH)).astype(np.float32),
        "use_cache_branch": np.array([bool(past)]),
        "past": rng.standard_normal((batch, 4 if past else 0, WIDTH)).astype(np.float32),
    }


def t5_encoder(folder: Path) -> Path:
    """Relative positions: buckets looked up in a table of one number a head, no biases, a gated network."""
    g = Graph(7)
    ids = g.input("input_ids", INT, "B", "S")
    place = g.Range(g.const(0, np.int64), g.Squeeze(g.length(ids)), g.const(1, np.int64))
    apart = g.Sub(g.Unsqueeze(place, g.ints(0)), g.Unsqueeze(place, g.ints(1)))
    bucket = g.Add(g.Min(g.Abs(apart), g.const(31, np.int64)), g.const(32, np.int64))
    bias = g.Unsqueeze(g.Transpose(g.embed(bucket, 64, HEADS), perm=[2, 0, 1]), g.ints(0))
    x = g.embed(ids, VOCABULARY, WIDTH)
    for _ in range(2):
        h = g.rms_norm(x, WIDTH)
        q, k, v = (g.heads(g.linear(h, WIDTH, WIDTH, False), HEADS, SIZE) for _ in range(3))
        x = g.Add(x, g.linear(g.attend(q, k, v, WIDTH, SIZE, bias), WIDTH, WIDTH, False))
        h = g.rms_norm(x, WIDTH)
        gated = g.Mul(g.gelu(g.linear(h, WIDTH, 128, False)), g.linear(h, WIDTH, 128, False))
        x = g.Add(x, g.linear(gated, 128, WIDTH, False))
    g.output(g.rms_norm(x, WIDTH), "hidden", "B", "S", WIDTH)
    return g.save(folder)


def clip_text(folder: Path) -> Path:
    """A causal encoder; the hidden state at the largest id is projected."""
    g = Graph(8)
    ids = g.input("input_ids", INT, "B", "S")
    x = g.Add(g.embed(ids, VOCABULARY, WIDTH), g.positions(ids, 64, WIDTH))
    bias = g.causal(ids)
    for _ in range(2):
        x = g.block(x, WIDTH, HEADS, bias)
    last = g.ArgMax(ids, axis=1, keepdims=0)
    where = g.OneHot(last, g.length(ids), g.const([0, 1], np.float32))
    pooled = g.ReduceSum(g.Mul(x, g.Unsqueeze(where, g.ints(2))), g.ints(1), keepdims=0)
    g.output(g.linear(g.layer_norm(pooled, WIDTH), WIDTH, 32, False), "embedding", "B", 32)
    return g.save(folder)


def siamese(folder: Path) -> Path:
    """Two texts through the same weights, and how alike they are."""
    g = Graph(9)
    table = g.weight(VOCABULARY, WIDTH, fan_in=1)
    up, down = g.weight(WIDTH, 128), g.weight(128, WIDTH)

    def tower(ids: str) -> str:
        x = g.Gather(table, ids)
        h = g.MatMul(g.Tanh(g.MatMul(x, up)), down)
        return g.ReduceMean(g.Add(x, h), axes=[1], keepdims=0)

    one, two = (tower(g.input(name, INT, "B", "S")) for name in ("one", "two"))
    g.output(g.Concat(one, two, g.Mul(one, two), axis=1), "pair", "B", 3 * WIDTH)
    return g.save(folder)


def draw_siamese(rng: np.random.Generator, batch: int, length: int) -> Feed:
    return {name: rng.integers(0, VOCABULARY, (batch, length)) for name in ("one", "two")}


def detector_of_tokens(folder: Path) -> Path:
    """An LSTM in both directions over embedded tokens, a tag for each; a GRU behind it."""
    g = Graph(10)
    ids = g.input("input_ids", INT, "B", "S")
    x = g.Transpose(g.embed(ids, VOCABULARY, WIDTH), perm=[1, 0, 2])
    w, r = (g.weight(2, 4 * 32, n, fan_in=n) for n in (WIDTH, 32))
    y, *_ = g.add("LSTM", x, w, r, outputs=3, direction="bidirectional", hidden_size=32)
    y = g.Reshape(g.Transpose(y, perm=[0, 2, 1, 3]), g.ints(0, 0, -1)) if False else g.Transpose(y, perm=[0, 2, 1, 3])
    y = g.Reshape(y, g.Concat(g.Shape(y, end=2), g.ints(2 * 32), axis=0))
    w, r = (g.weight(1, 3 * 32, n, fan_in=n) for n in (2 * 32, 32))
    y, _ = g.add("GRU", y, w, r, outputs=2, hidden_size=32)
    tags = g.linear(g.Transpose(g.Squeeze(y, g.ints(1)), perm=[1, 0, 2]), 32, 16)
    g.output(tags, "tags", "B", "S", 16)
    return g.save(folder)


MODELS = {
    "bert": Architecture(bert, tokens(VOCABULARY, mask=True)),
    "minilm": Architecture(minilm, tokens(VOCABULARY, mask=True)),
    "gpt2": Architecture(gpt2, tokens(VOCABULARY)),
    "llama": Architecture(llama, cached(2), ((2, 9), (1, 1), (3, 14), (2, 5))),  # type: ignore[arg-type]
    "qwen": Architecture(qwen, cached(1), ((2, 10), (1, 1), (3, 15))),  # type: ignore[arg-type]
    "merged-decoder": Architecture(merged_decoder, draw_merged, ((2, 8), (1, 1), (3, 7), (2, 6))),
    "t5-encoder": Architecture(t5_encoder, tokens(VOCABULARY)),
    "clip-text": Architecture(clip_text, tokens(VOCABULARY)),
    "siamese": Architecture(siamese, draw_siamese),
    "lstm-tagger": Architecture(detector_of_tokens, tokens(VOCABULARY)),
}
