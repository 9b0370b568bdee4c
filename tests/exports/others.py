"""Sound, tables, state spaces, experts, operators of com.microsoft: `MODELS` by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from exports.builder import Architecture, Feed, Graph, floats, images, tokens
from exports.language import HEADS, SIZE, VOCABULARY, WIDTH, cached, llama, minilm, rotary_tables
from exports.vision import resnet
from onnx import TensorProto, helper, numpy_helper

INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def whisper_encoder(folder: Path) -> Path:
    """Two convolutions over time and a table of positions as large as the rest."""
    g = Graph(40)
    x = g.input("mel", FLOAT, "B", 16, 200)
    x = g.gelu(g.conv1d(g.gelu(g.conv1d(x, 16, WIDTH, 3)), WIDTH, WIDTH, 3, stride=2))
    place = np.outer(np.arange(100), 1e4 ** -(np.arange(WIDTH // 2) / 31))
    table = np.concatenate([np.sin(place), np.cos(place)], axis=1)
    x = g.Add(g.Transpose(x, perm=[0, 2, 1]), g.const(table, np.float32))
    for _ in range(2):
        x = g.block(x, WIDTH, HEADS)
    g.output(g.layer_norm(x, WIDTH), "hidden", "B", 100, WIDTH)
    return g.save(folder)


def whisper_decoder(folder: Path) -> Path:
    """Causal layers that look at an encoder's output; the head is the embedding, by Gemm."""
    g = Graph(41)
    ids, memory = g.input("input_ids", INT, "B", "S"), g.input("memory", FLOAT, "B", "E", WIDTH)
    table = g.weight(VOCABULARY, WIDTH, fan_in=WIDTH)
    x, bias = g.Add(g.Gather(table, ids), g.positions(ids, 64, WIDTH)), g.causal(ids)
    for _ in range(2):
        x = g.block(x, WIDTH, HEADS, bias, memory)
    flat = g.Gemm(g.Reshape(g.layer_norm(x, WIDTH), g.ints(-1, WIDTH)), table, transB=1)
    g.output(g.Reshape(flat, g.Concat(g.Shape(ids), g.ints(VOCABULARY), axis=0)), "logits", "B", "S", VOCABULARY)
    return g.save(folder)


def draw_decoder(rng: np.random.Generator, batch: int, length: int) -> Feed:
    memory = rng.standard_normal((batch, 6, WIDTH)).astype(np.float32)
    return {**tokens(VOCABULARY)(rng, batch, length), "memory": memory}


def wav2vec2(folder: Path) -> Path:
    """Strided convolutions over samples, a grouped one for positions, a transformer."""
    g = Graph(42)
    x = g.Unsqueeze(g.input("wave", FLOAT, "B", "T"), g.ints(1))
    for i, o, kernel, stride in ((1, 32, 10, 5), (32, 32, 5, 4), (32, WIDTH, 5, 4)):
        x = g.gelu(g.conv1d(x, i, o, kernel, stride=stride, pads=[0, 0]))
    x = g.Add(x, g.gelu(g.conv1d(x, WIDTH, WIDTH, 9, group=4)))
    x = g.Transpose(x, perm=[0, 2, 1])
    for _ in range(2):
        x = g.block(x, WIDTH, HEADS)
    g.output(g.linear(x, WIDTH, 32), "logits", "B", "F", 32)
    return g.save(folder)


def tcn(folder: Path) -> Path:
    """Dilated causal convolutions with residuals."""
    g = Graph(43)
    x = g.conv1d(g.input("x", FLOAT, "B", 8, "T"), 8, 32, 1)
    for dilation in (1, 2, 4):
        y = g.Relu(g.conv1d(x, 32, 32, 3, pads=[2 * dilation, 0], dilations=[dilation]))
        x = g.Relu(g.Add(x, g.conv1d(y, 32, 32, 1)))
    g.output(g.conv1d(x, 32, 4, 1), "y", "B", 4, "T")
    return g.save(folder)


def tabular(folder: Path) -> Path:
    """A scaler, products, batch norms behind them."""
    g = Graph(44)
    x = g.Div(g.Sub(g.input("x", FLOAT, "B", 24), g.vector(24)), g.vector(24, 2.0))
    for k, n in ((24, 64), (64, 64)):
        x = g.Relu(g.batch_norm(g.Gemm(x, g.weight(n, k, fan_in=k), g.vector(n), transB=1), n))
    g.output(g.Softmax(g.Gemm(x, g.weight(64, 8), g.vector(8)), axis=1), "probabilities", "B", 8)
    return g.save(folder)


def mamba(folder: Path) -> Path:
    """A state space: a gate, a short convolution over time, and a Scan whose body has weights."""
    g = Graph(45)
    ids = g.input("input_ids", INT, "B", "S")
    x = g.embed(ids, VOCABULARY, WIDTH)
    h = g.rms_norm(x, WIDTH)
    z, u = g.silu(g.linear(h, WIDTH, 64, False)), g.linear(h, WIDTH, 64, False)
    u = g.conv1d(g.Transpose(u, perm=[0, 2, 1]), 64, 64, 4, group=64, pads=[3, 0])
    u = g.silu(g.Transpose(u, perm=[2, 0, 1]))
    b = g.inner()
    state, step = b.name("state"), b.name("step")
    decay = b.Sigmoid(b.MatMul(step, b.weight(64, 64)))
    new = b.Add(b.Mul(state, decay), b.MatMul(step, b.weight(64, 64)))
    out = b.MatMul(b.Tanh(new), b.weight(64, 64))
    for name in (state, step):
        b.inputs.append(helper.make_tensor_value_info(name, FLOAT, None))
    b.output(new, b.name("new"))
    b.output(out, b.name("out"))
    for value in b.outputs:
        value.type.tensor_type.ClearField("shape")
    zeros = g.Expand(g.scalar(0.0), g.Concat(g.length(ids, 0), g.ints(64), axis=0))
    _, y = g.add("Scan", zeros, u, outputs=2, body=b.body("turn"), num_scan_inputs=1)
    y = g.Mul(g.Transpose(y, perm=[1, 0, 2]), z)
    g.output(g.linear(g.Add(x, g.linear(y, 64, WIDTH, False)), WIDTH, 16), "y", "B", "S", 16)
    return g.save(folder)


EXPERTS = 4


def moe_contrib(folder: Path) -> Path:
    """com.microsoft.MoE: experts in two three-dimensional weights, two of four for each token."""
    g = Graph(46)
    x = g.embed(g.input("input_ids", INT, "B", "S"), VOCABULARY, WIDTH)
    flat = g.Reshape(g.layer_norm(x, WIDTH), g.ints(-1, WIDTH))
    router = g.linear(flat, WIDTH, EXPERTS)
    up, down = g.weight(EXPERTS, 128, WIDTH, fan_in=WIDTH), g.weight(EXPERTS, WIDTH, 128, fan_in=128)
    biases = [g.const(0.1 * g.rng.standard_normal((EXPERTS, n)), np.float32) for n in (128, WIDTH)]
    y = g.ms("MoE", flat, router, up, biases[0], down, biases[1], k=2, activation_type="relu")
    y = g.Add(x, g.Reshape(y, g.Shape(x)))
    g.output(g.linear(y, WIDTH, 32), "y", "B", "S", 32)
    return g.save(folder)


def moe_loop(folder: Path) -> Path:
    """A Loop over experts, whose turn takes its matrices from stacked ones by Gather."""
    g = Graph(47)
    x = g.Reshape(g.embed(g.input("input_ids", INT, "B", "S"), VOCABULARY, WIDTH), g.ints(-1, WIDTH))
    share = g.Softmax(g.linear(x, WIDTH, EXPERTS), axis=-1)
    up, down = g.weight(EXPERTS, WIDTH, 128, fan_in=WIDTH), g.weight(EXPERTS, 128, WIDTH, fan_in=128)
    b = g.inner()
    turn, go, total = (b.name(n) for n in ("turn", "go", "total"))
    h = b.MatMul(b.Relu(b.MatMul(x, b.Gather(up, turn, axis=0))), b.Gather(down, turn, axis=0))
    part = b.Mul(h, b.Unsqueeze(b.Gather(share, turn, axis=1), b.ints(1)))
    on, new = b.Identity(go), b.Add(total, part)
    b.inputs += [helper.make_tensor_value_info(turn, INT, []), helper.make_tensor_value_info(go, TensorProto.BOOL, [])]
    b.inputs.append(helper.make_tensor_value_info(total, FLOAT, [None, WIDTH]))
    b.output(on, b.name("on"), dtype=TensorProto.BOOL)
    b.output(new, b.name("new"), None, WIDTH)
    zeros = g.Mul(x, g.scalar(0.0))
    y = g.Loop(g.const(EXPERTS, np.int64), g.const(True, np.bool_), zeros, body=b.body("expert"))
    g.output(g.linear(g.Add(x, y), WIDTH, 32), "y", "T", 32)
    return g.save(folder)


def moe_batched(folder: Path) -> Path:
    """All experts at once by batched products on stacked weights, one of them sliced out and shared."""
    g = Graph(48)
    x = g.Reshape(g.embed(g.input("input_ids", INT, "B", "S"), VOCABULARY, WIDTH), g.ints(1, -1, WIDTH))
    up, down = g.weight(EXPERTS, WIDTH, 128, fan_in=WIDTH), g.weight(EXPERTS, 128, WIDTH, fan_in=128)
    y = g.MatMul(g.Relu(g.MatMul(x, up)), down)
    share = g.Softmax(g.linear(x, WIDTH, EXPERTS), axis=-1)
    y = g.ReduceSum(g.Mul(y, g.Transpose(share, perm=[2, 1, 0])), g.ints(0), keepdims=1)
    g.output(g.linear(g.Add(x, y), WIDTH, 32), "y", 1, "T", 32)
    return g.save(folder)


def fused(folder: Path) -> Path:
    """What onnxruntime's transformers optimizer makes of BERT."""
    g = Graph(49)
    ids = g.input("input_ids", TensorProto.INT32, "B", "S")
    mask = g.input("mask", TensorProto.INT32, "B", "S")
    tables = [g.weight(n, WIDTH, fan_in=1) for n in (VOCABULARY, 64)]
    gamma, beta = g.vector(WIDTH, 1.0), g.vector(WIDTH)
    x, index = g.ms("EmbedLayerNormalization", ids, "", *tables, "", gamma, beta, mask, outputs=2, epsilon=1e-5)
    for _ in range(2):
        qkv = g.weight(WIDTH, 3 * WIDTH)
        y = g.ms("Attention", x, qkv, g.vector(3 * WIDTH), mask, num_heads=HEADS)
        norm = (g.vector(WIDTH, 1.0), g.vector(WIDTH))
        x = g.ms("SkipLayerNormalization", g.MatMul(y, g.weight(WIDTH, WIDTH)), x, *norm, g.vector(WIDTH))
        h = g.ms("BiasGelu", g.MatMul(x, g.weight(WIDTH, 128)), g.vector(128))
        norm = (g.vector(WIDTH, 1.0), g.vector(WIDTH))
        x = g.ms("SkipLayerNormalization", g.MatMul(h, g.weight(128, WIDTH)), x, *norm, g.vector(WIDTH))
    g.output(x, "hidden", "B", "S", WIDTH)
    del index
    return g.save(folder)


def draw_fused(rng: np.random.Generator, batch: int, length: int) -> Feed:
    mask = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int32)
    return {"input_ids": rng.integers(0, VOCABULARY, (batch, length)).astype(np.int32), "mask": mask}


def genai(folder: Path) -> Path:
    """What onnxruntime-genai's model builder writes: GroupQueryAttention with rotary tables, fused norms."""
    g, pairs = Graph(50), 2
    ids, mask = g.input("input_ids", INT, "B", "S"), g.input("attention_mask", INT, "B", "T")
    caches = [
        [g.input(f"past_key_values.{i}.{n}", FLOAT, "B", pairs, "P", SIZE) for n in ("key", "value")] for i in range(2)
    ]
    lengths = g.Cast(g.Sub(g.ReduceSum(mask, g.ints(1), keepdims=1), g.ints(1)), to=TensorProto.INT32)
    lengths = g.Squeeze(lengths, g.ints(1))
    total = g.Cast(g.Squeeze(g.length(mask)), to=TensorProto.INT32)
    cos, sin = (g.const(table[:, : SIZE // 2]) for table in rotary_tables())
    x = g.embed(ids, VOCABULARY, WIDTH)
    h = g.add("SimplifiedLayerNormalization", x, g.vector(WIDTH, 1.0), axis=-1, epsilon=1e-6, stash_type=1)
    for i in range(2):
        q, k, v = (g.linear(h, WIDTH, n, False) for n in (WIDTH, pairs * SIZE, pairs * SIZE))
        y, key, value = g.ms("GroupQueryAttention", q, k, v, *caches[i], lengths, total, cos, sin,
                             outputs=3, num_heads=HEADS, kv_num_heads=pairs, do_rotary=1, scale=SIZE**-0.5)  # fmt: skip
        g.output(key, f"present.{i}.key", "B", pairs, "T", SIZE)
        g.output(value, f"present.{i}.value", "B", pairs, "T", SIZE)
        y = g.linear(y, WIDTH, WIDTH, False)
        h, _, _, x = g.ms("SkipSimplifiedLayerNormalization", x, y, g.vector(WIDTH, 1.0), outputs=4, epsilon=1e-6)
        gate = g.linear(h, WIDTH, 128, False)
        y = g.linear(g.Mul(g.Mul(gate, g.Sigmoid(gate)), g.linear(h, WIDTH, 128, False)), 128, WIDTH, False)
        h, _, _, x = g.ms("SkipSimplifiedLayerNormalization", x, y, g.vector(WIDTH, 1.0), outputs=4, epsilon=1e-6)
    g.output(g.linear(h, WIDTH, VOCABULARY, False), "logits", "B", "S", VOCABULARY)
    return g.save(folder)


def draw_genai(rng: np.random.Generator, batch: int, length: int) -> Feed:
    feed = tokens(VOCABULARY)(rng, batch, length)
    past = 6 if length == 1 else 0  # all that GroupQueryAttention takes for batches
    for i in range(2):
        for name in ("key", "value"):
            feed[f"past_key_values.{i}.{name}"] = rng.standard_normal((batch, 2, past, SIZE)).astype(np.float32)
    return {**feed, "attention_mask": np.ones((batch, past + length), np.int64)}


def in_half(path: Path, *, interface: bool) -> Path:
    """The model with all floats in float16; those of its interface too, or behind a Cast."""
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if tensor.data_type == FLOAT:
            half = numpy_helper.to_array(tensor).clip(-6e4, 6e4).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = TensorProto.FLOAT16
    kept = {}
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
            kept[value.name] = value
    if not interface:
        inputs = {value.name for value in proto.graph.input}
        for name, value in kept.items():
            value.type.tensor_type.elem_type = FLOAT
            inner = f"{name}_half"
            for node in proto.graph.node:
                names = node.input if name in inputs else node.output
                for i, each in enumerate(names):
                    if each == name:
                        names[i] = inner
            if name in inputs:
                cast = helper.make_node("Cast", [name], [inner], to=TensorProto.FLOAT16)
                proto.graph.node.insert(0, cast)
            else:
                proto.graph.node.append(helper.make_node("Cast", [inner], [name], to=FLOAT))
    onnx.save(proto, path)
    return path


def halved(draw: object) -> object:
    def drawn(rng: np.random.Generator, batch: int, length: int) -> Feed:
        feed = draw(rng, batch, length)  # type: ignore[operator]
        return {name: x.astype(np.float16) if x.dtype == np.float32 else x for name, x in feed.items()}

    return drawn


MODELS = {
    "whisper-encoder": Architecture(whisper_encoder, lambda r, b, n: floats("mel", 16, 200)(r, b, n)),
    "whisper-decoder": Architecture(whisper_decoder, draw_decoder),
    "wav2vec2": Architecture(wav2vec2, floats("wave", None), ((2, 1600), (1, 700), (3, 2500))),
    "tcn": Architecture(tcn, floats("x", 8, None), ((2, 30), (1, 7), (3, 50))),
    "tabular": Architecture(tabular, floats("x", 24), ((16, 1), (1, 1), (40, 1))),
    "mamba": Architecture(mamba, tokens(VOCABULARY)),
    "moe-contrib": Architecture(moe_contrib, tokens(VOCABULARY)),
    "moe-loop": Architecture(moe_loop, tokens(VOCABULARY)),
    "moe-batched": Architecture(moe_batched, tokens(VOCABULARY)),
    "fused": Architecture(fused, draw_fused),
    "genai": Architecture(genai, draw_genai, ((2, 9), (1, 1), (3, 14))),
    "half-minilm": Architecture(lambda f: in_half(minilm(f), interface=False), tokens(VOCABULARY, mask=True)),
    "half-llama": Architecture(
        lambda f: in_half(llama(f), interface=True),
        halved(cached(2)),
        ((2, 9), (1, 1), (3, 14)),  # type: ignore[arg-type]
    ),
    "half-genai": Architecture(
        lambda f: in_half(genai(f), interface=True),
        halved(draw_genai),
        ((2, 9), (1, 1), (3, 14)),  # type: ignore[arg-type]
    ),
    "half-resnet": Architecture(lambda f: in_half(resnet(f), interface=False), images(3), ((2, 32), (1, 32), (3, 48))),
}
