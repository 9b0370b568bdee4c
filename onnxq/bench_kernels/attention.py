"""Attention: ours, the nodes in whose place it stands, and com.microsoft's MultiHeadAttention; checked, then timed.

MultiHeadAttention reads q, k and v before heads are split, and is given them so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxq.bench_kernels.contenders import MOST, session_of
from onnxq.runtime.session import Feed

#: Heads, rows, tokens, numbers in a row: encoders, prompts, and one new token.
SHAPES = ((12, 128, 128, 64), (12, 512, 512, 64), (8, 1024, 1024, 128), (12, 1, 512, 64), (32, 1, 1024, 128))
QUICK = ((2, 24, 40, 16), (2, 1, 40, 16))
HEAD: tuple[str, ...] = ("heads × rows × tokens × numbers", "mask", "kernel", "ms", "times as fast as nodes")


@dataclass
class Contender:
    name: str
    accuracy: str  # a key of MOST
    model: onnx.ModelProto
    feed: Feed
    seconds: list[float] = field(default_factory=list)


def lines(shapes: Sequence[tuple[int, int, int, int]], seconds: float, threads: int) -> Iterator[tuple[str, ...]]:
    """The cells of a table, a row for each kernel.

    Raises:
        SystemExit: one of them computes something else.
    """
    for shape in shapes:
        for causal in (False, True):
            contenders = list(_contenders(shape, causal=causal))
            sessions = [session_of(each.model, threads, "") for each in contenders]
            wanted = _wanted(contenders[0].feed, shape)
            for each, session in zip(contenders, sessions, strict=True):
                (y,) = session.run(None, each.feed)
                y = _split(y, shape[0]) if y.ndim < wanted.ndim else y
                error = np.linalg.norm(y - wanted) / np.linalg.norm(wanted)
                if not error <= MOST[each.accuracy]:
                    raise SystemExit(f"{each.name} {shape}: relative error {error:.2g}")
            end, order, clock = time.perf_counter() + seconds, np.random.default_rng(0), _clock(threads)
            while len(contenders[0].seconds) < 5 or (time.perf_counter() < end and len(contenders[0].seconds) < 100):
                for index in order.permutation(len(contenders)):
                    begin = clock()
                    sessions[index].run(None, contenders[index].feed)
                    contenders[index].seconds.append(clock() - begin)
            medians = {each.name: float(np.median(each.seconds)) for each in contenders}
            for name, median in medians.items():
                times = f"{medians['nodes'] / median:.2f}"
                yield "×".join(map(str, shape)), "causal" if causal else "none", name, f"{median * 1e3:.3f}", times


def _clock(threads: int) -> Callable[[], float]:
    return time.thread_time if threads == 1 else time.perf_counter


def _contenders(shape: tuple[int, int, int, int], *, causal: bool) -> Iterator[Contender]:
    heads, rows, tokens, numbers = shape
    rng = np.random.default_rng(shape)
    sizes = {"q": rows, "k": tokens, "v": tokens}
    feed: dict[str, NDArray] = {
        name: rng.standard_normal((1, heads, size, numbers), np.float32) for name, size in sizes.items()
    }
    if causal:
        seen = np.arange(tokens) <= np.arange(rows)[:, None] + tokens - rows
        feed["mask"] = np.where(seen, np.float32(0), np.float32(-np.inf))[None, None]
    scale = numbers**-0.5
    for activations in ("fast", "exact"):
        attributes = {"scale": scale, "transK": 1, "activations": activations}
        node = helper.make_node("Attention", list(feed), ["y"], domain="onnxq", **attributes)
        yield Contender(f"ours {activations}", activations, _model([node], feed), feed)
    yield Contender("nodes", "exact", _model(_nodes(scale, masked=causal), feed), feed)
    flat = {name: _joined(x) if x.shape[1] == heads else np.repeat(x, heads, axis=1) for name, x in feed.items()}
    inputs = ["q", "k", "v", *(["", "", "mask"] if causal else [])]
    node = helper.make_node("MultiHeadAttention", inputs, ["y"], domain="com.microsoft", num_heads=heads, scale=scale)
    yield Contender("MultiHeadAttention", "exact", _model([node], flat), flat)


def _nodes(scale: float, *, masked: bool) -> list[onnx.NodeProto]:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[a] q, float[b] k, float[c] v, float[d] mask) => (float[e] y) {{
        scale = Constant <value = float {{{scale}}}> ()
        t = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, t)  s = Mul (p, scale)
        {"a = Add (s, mask)" if masked else ""}  w = Softmax <axis = -1> ({"a" if masked else "s"})
        y = MatMul (w, v) }}"""
    return list(onnx.parser.parse_model(text).graph.node)


def _model(nodes: list[onnx.NodeProto], feed: Mapping[str, NDArray]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in feed.items()]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    domains = {"": 21, "onnxq": 1, "com.microsoft": 1}
    opsets = [helper.make_opsetid(*each) for each in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _joined(x: NDArray) -> NDArray:
    """[1, size, heads · numbers] of [1, heads, size, numbers]."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(1, x.shape[2], -1)


def _split(y: NDArray, heads: int) -> NDArray:
    return y.reshape(1, y.shape[1], heads, -1).transpose(0, 2, 1, 3)


def _wanted(feed: Mapping[str, NDArray], shape: tuple[int, int, int, int]) -> NDArray[np.float64]:
    q, k, v = (feed[name].astype(np.float64) for name in ("q", "k", "v"))
    scores = q @ k.swapaxes(2, 3) * shape[3] ** -0.5 + feed.get("mask", 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    made: NDArray[np.float64] = weights / weights.sum(-1, keepdims=True) @ v
    return made
