"""Networks written down node by node, small and with weights of a normal distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Feed = dict[str, NDArray]
#: A feed for a batch of so many items of such a length (tokens, frames, pixels along a side).
Draw = Callable[[np.random.Generator, int, int], Feed]


@dataclass(frozen=True)
class Architecture:
    """One network.

    Attributes:
        make: writes it to a folder.
        draw: legal inputs.
        sizes: of batch and length: the first is what onnxq sees, the others are what it is checked on.
    """

    make: Callable[[Path], Path]
    draw: Draw
    sizes: tuple[tuple[int, int], ...] = ((2, 9), (1, 1), (3, 14))


class Graph:
    """Collects nodes; values are their names. `g.Relu(x)` adds a node and gives the name of its output."""

    def __init__(self, seed: int = 0, opset: int = 17) -> None:
        self.rng, self.opset = np.random.default_rng(seed), opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if not op[:1].isupper():
            raise AttributeError(op)
        return lambda *inputs, **attributes: self.add(op, *inputs, **attributes)

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        made = [self.name(op) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, name=f"/{made[0]}", domain=domain, **attributes))
        return made[0] if outputs == 1 else made

    def ms(self, op: str, *inputs: str, **attributes: Any) -> Any:
        """A node of com.microsoft."""
        return self.add(op, *inputs, domain="com.microsoft", **attributes)

    def name(self, wish: str) -> str:
        self._count += 1
        return f"{wish}_{self._count}"

    def const(self, array: Any, dtype: Any = None) -> str:
        name = self.name("c")
        self.initializers.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.const(numbers, np.int64)

    def scalar(self, number: float) -> str:
        return self.const(number, np.float32)

    def weight(self, *shape: int, fan_in: int | None = None, name: str = "w") -> str:
        """Normal numbers, of such a size that sums over `fan_in` of them (the first axis) stay near 1."""
        name = self.name(name)
        w = self.rng.standard_normal(shape) / np.sqrt(fan_in or shape[0])
        self.initializers.append(numpy_helper.from_array(w.astype(np.float32), name))
        return name

    def vector(self, n: int, mean: float = 0.0) -> str:
        return self.const(mean + 0.1 * self.rng.standard_normal(n), np.float32)

    def input(self, name: str, dtype: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str, *shape: int | str | None, dtype: int = TensorProto.FLOAT) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"/{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def body(self, name: str) -> onnx.GraphProto:
        """What was collected, as the body of another node."""
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.initializers)

    def inner(self) -> Graph:
        """For the body of a node of this graph: same random numbers, names of its own."""
        made = Graph(opset=self.opset)
        made.rng, made._count = self.rng, 10_000 * (1 + self._count)
        return made

    def model(self, **domains: int) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(self.body("g"), opset_imports=imports, ir_version=9, producer_name="exports")

    def save(self, folder: Path) -> Path:
        path = folder / "model.onnx"
        onnx.save(self.model(), path)
        return path

    # What networks are made of.

    def linear(self, x: str, k: int, n: int, bias: bool = True) -> str:
        y = self.MatMul(x, self.weight(k, n))
        return self.Add(y, self.vector(n)) if bias else y

    def layer_norm(self, x: str, n: int) -> str:
        """As exporters below opset 17 write it."""
        centred = self.Sub(x, self.ReduceMean(x, axes=[-1]))
        variance = self.ReduceMean(self.Pow(centred, self.scalar(2.0)), axes=[-1])
        unit = self.Div(centred, self.Sqrt(self.Add(variance, self.scalar(1e-5))))
        return self.Add(self.Mul(unit, self.vector(n, 1.0)), self.vector(n))

    def rms_norm(self, x: str, n: int) -> str:
        mean = self.ReduceMean(self.Pow(x, self.scalar(2.0)), axes=[-1])
        inverse = self.Reciprocal(self.Sqrt(self.Add(mean, self.scalar(1e-6))))
        return self.Mul(self.vector(n, 1.0), self.Mul(x, inverse))

    def gelu(self, x: str) -> str:
        erf = self.Add(self.Erf(self.Div(x, self.scalar(2**0.5))), self.scalar(1.0))
        return self.Mul(self.Mul(x, erf), self.scalar(0.5))

    def silu(self, x: str) -> str:
        return self.Mul(x, self.Sigmoid(x))

    def heads(self, x: str, heads: int, size: int) -> str:
        return self.Transpose(self.Reshape(x, self.ints(0, 0, heads, size)), perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, width: int, size: int, bias: str | None = None) -> str:
        scores = self.Mul(self.MatMul(q, self.Transpose(k, perm=[0, 1, 3, 2])), self.scalar(size**-0.5))
        if bias is not None:
            scores = self.Add(scores, bias)
        mixed = self.Transpose(self.MatMul(self.Softmax(scores, axis=-1), v), perm=[0, 2, 1, 3])
        return self.Reshape(mixed, self.ints(0, 0, width))

    def attention(self, x: str, width: int, heads: int, bias: str | None = None, memory: str | None = None) -> str:
        size, other = width // heads, memory or x
        q, k, v = (self.heads(self.linear(y, width, width), heads, size) for y in (x, other, other))
        return self.linear(self.attend(q, k, v, width, size, bias), width, width)

    def block(self, x: str, width: int, heads: int, bias: str | None = None, memory: str | None = None) -> str:
        """A layer of a transformer, norms first."""
        x = self.Add(x, self.attention(self.layer_norm(x, width), width, heads, bias))
        if memory is not None:
            x = self.Add(x, self.attention(self.layer_norm(x, width), width, heads, None, memory))
        h = self.gelu(self.linear(self.layer_norm(x, width), width, 2 * width))
        return self.Add(x, self.linear(h, 2 * width, width))

    def conv(self, x: str, i: int, o: int, kernel: int = 3, *, group: int = 1, stride: int = 1, **more: Any) -> str:
        w = self.weight(o, i // group, kernel, kernel, fan_in=i // group * kernel**2)
        pads = more.pop("pads", [kernel // 2] * 4)
        b = self.vector(o)
        return self.Conv(x, w, b, strides=[stride] * 2, pads=pads, group=group, kernel_shape=[kernel] * 2, **more)

    def batch_norm(self, x: str, n: int) -> str:
        variance = self.const(1 + 0.1 * self.rng.random(n), np.float32)
        return self.BatchNormalization(x, self.vector(n, 1.0), self.vector(n), self.vector(n), variance)

    def conv1d(self, x: str, i: int, o: int, kernel: int, *, stride: int = 1, group: int = 1, **more: Any) -> str:
        w = self.weight(o, i // group, kernel, fan_in=i // group * kernel)
        pads = more.pop("pads", [kernel // 2, kernel // 2])
        return self.Conv(x, w, self.vector(o), strides=[stride], pads=pads, group=group, **more)

    def embed(self, ids: str, rows: int, width: int) -> str:
        return self.Gather(self.weight(rows, width, fan_in=1), ids)

    def length(self, x: str, axis: int = 1) -> str:
        """[n]: the size of an axis."""
        return self.Shape(x, start=axis, end=axis + 1)

    def positions(self, x: str, rows: int, width: int, axis: int = 1) -> str:
        """The first rows of a table of positions, as many as `x` is long."""
        return self.Slice(self.weight(rows, width, fan_in=4), self.ints(0), self.length(x, axis))

    def causal(self, x: str, most: int = 64) -> str:
        """[S, S] to be added to scores."""
        table = self.const(np.triu(np.full((most, most), -1e4), 1), np.float32)
        size = self.length(x)
        ends = self.Concat(size, size, axis=0)
        return self.Slice(table, self.ints(0, 0), ends)


def images(channels: int, name: str = "x", *, last: bool = False) -> Draw:
    """Smooth pictures with some noise, `size` pixels along a side."""

    def draw(rng: np.random.Generator, batch: int, size: int) -> Feed:
        coarse = rng.standard_normal((batch, channels, 4, 4))
        x = np.kron(coarse, np.ones((1, 1, -(-size // 4), -(-size // 4))))[..., :size, :size]
        x = (x + 0.3 * rng.standard_normal(x.shape)).astype(np.float32)
        return {name: np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x}

    return draw


def tokens(rows: int = 90, *, mask: bool = False, name: str = "input_ids") -> Draw:
    def draw(rng: np.random.Generator, batch: int, length: int) -> Feed:
        feed: Feed = {name: rng.integers(1, rows, (batch, length))}
        if mask:
            feed["attention_mask"] = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int64)
        return feed

    return draw


def floats(name: str, *shape: int | None) -> Draw:
    """[batch, *shape], None standing for the length."""

    def draw(rng: np.random.Generator, batch: int, length: int) -> Feed:
        return {name: rng.standard_normal((batch, *(n or length for n in shape))).astype(np.float32)}

    return draw
