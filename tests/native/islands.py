"""Small graphs of int8 operators between QuantizeLinear and DequantizeLinear, as `insert_qdq` writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxq.model.graph import nodes as nodes_of
from onnxq.model.types import infer_types
from onnxq.passes.regions.make_regions import MakeRegions

FLOAT = TensorProto.FLOAT
Function = Callable[["Net", str], str]


@dataclass
class Net:
    """Scales are powers of two, so that float32 computes sums and products of codes exactly, in any order."""

    seed: int
    x_shape: tuple[int, ...]
    #: Of the model's input, where it is not that of x: names of sizes that are not fixed.
    declared: tuple[str | int, ...] = ()
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, NDArray] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.shapes["x"] = self.x_shape
        self.x = self.quantized("x", 2.0**-4)

    def constant(self, array: NDArray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def rescale(self, factor: float) -> None:
        """Make scales of activations, and so the steps of sums that biases count in, no powers of two."""
        for name, array in self.constants.items():
            if array.dtype == np.float32 and array.ndim == 0:
                self.constants[name] = array * np.float32(factor)
        for node in self.nodes:
            codes = self.constants.get(node.input[0])
            if codes is not None and codes.dtype == np.int32:
                self.constants[node.input[1]] = self.constants[node.input[1]] * np.float32(factor)

    def node(self, op: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"n{len(self.nodes)}", **attributes))
        return output

    def quantized(self, value: str, scale: float | None = None, zero: int | None = None, like: str = "") -> str:
        """`value` behind its QuantizeLinear and DequantizeLinear."""
        if like:
            parameters = next(list(n.input[1:]) for n in self.nodes if n.output[0] == like)
        else:
            zero = int(self.rng.integers(0, 256)) if zero is None else zero
            scale = 2.0 ** float(self.rng.integers(-3, 3)) if scale is None else scale
            parameters = [self.constant(np.float32(scale)), self.constant(np.uint8(zero))]
        codes = self.node("QuantizeLinear", [value, *parameters])
        made = self.node("DequantizeLinear", [codes, *parameters])
        if value in self.shapes:
            self.shapes[made] = self.shapes[value]
        return made

    def weight(self, codes: NDArray, channel: int) -> tuple[str, NDArray]:
        scales = 2.0 ** self.rng.integers(-8, -4, codes.shape[channel]).astype(np.float32)
        zeros = np.zeros(len(scales), np.int8)
        inputs = [self.constant(array) for array in (codes, scales, zeros)]
        return self.node("DequantizeLinear", inputs, axis=channel), scales

    def bias(self, x: str, scales: NDArray) -> str:
        given = next(n.input[1] for n in self.nodes if n.output[0] == x)
        codes = self.rng.integers(-2000, 2000, len(scales)).astype(np.int32)
        inputs = [self.constant(codes), self.constant(scales * self.constants[given])]
        return self.node("DequantizeLinear", inputs, axis=0)

    def conv(
        self, x: str, outputs: int, kernel: tuple[int, ...], act: str = "", bias: bool = True, **attributes: Any
    ) -> str:
        channels = self.shapes[x][1] // attributes.get("group", 1)
        codes = self.rng.integers(-127, 128, (outputs, channels, *kernel)).astype(np.int8)
        weight, scales = self.weight(codes, 0)
        inputs = [x, weight, *([self.bias(x, scales)] if bias else [])]
        y = self.node("Conv", inputs, kernel_shape=list(kernel), **attributes)
        rest = len(kernel)
        pads = attributes.get("pads", [0] * 2 * rest)
        sizes = [
            (size + pads[i] + pads[rest + i] - (k - 1) * attributes.get("dilations", [1] * rest)[i] - 1)
            // attributes.get("strides", [1] * rest)[i]
            + 1
            for i, (size, k) in enumerate(zip(self.shapes[x][2:], kernel, strict=True))
        ]
        self.shapes[y] = (self.shapes[x][0], outputs, *sizes)
        return self.activated(y, act, 2.0**-2)

    def conv_transpose(
        self, x: str, outputs: int, kernel: tuple[int, ...], act: str = "", bias: bool = True, **attributes: Any
    ) -> str:
        group, rest = attributes.get("group", 1), len(kernel)
        codes = self.rng.integers(-127, 128, (self.shapes[x][1], outputs // group, *kernel)).astype(np.int8)
        weight, scales = self.weight(codes, 1)
        inputs = [x, weight, *([self.bias(x, np.tile(scales, group))] if bias else [])]
        y = self.node("ConvTranspose", inputs, kernel_shape=list(kernel), **attributes)
        pads = attributes.get("pads", [0] * 2 * rest)
        sizes = [
            (size - 1) * attributes.get("strides", [1] * rest)[i]
            + attributes.get("output_padding", [0] * rest)[i]
            + (k - 1) * attributes.get("dilations", [1] * rest)[i]
            + 1
            - pads[i]
            - pads[rest + i]
            for i, (size, k) in enumerate(zip(self.shapes[x][2:], kernel, strict=True))
        ]
        self.shapes[y] = (self.shapes[x][0], outputs, *sizes)
        return self.activated(y, act, 2.0**-2)

    def between(self, x: str, sizes: tuple[int, ...], scale: float | None = None, **attributes: Any) -> str:
        """`x` resized to these pixels, between those that there are."""
        shape = (*self.shapes[x][:2], *sizes)
        given = self.constant(np.array(shape, np.int64))
        y = self.node("Resize", [x, "", "", given], mode="linear", **attributes)
        self.shapes[y] = shape
        return self.quantized(y, scale)

    def activated(self, y: str, act: str, scale: float | None = None) -> str:
        shape = self.shapes[y]
        if act == "Relu":
            y = self.node("Relu", [y])
        elif act == "Clip":
            y = self.node("Clip", [y, self.constant(np.float32(-3)), self.constant(np.float32(6))])
        self.shapes[y] = shape
        return self.quantized(y, scale)

    def function(self, x: str, word: str) -> str:
        """`x` behind one of FUNCTIONS, which may be a chain of nodes."""
        y = FUNCTIONS[word](self, x)
        self.shapes[y] = self.shapes[x]
        return self.quantized(y)

    def moved(
        self,
        op: str,
        x: str,
        shape: tuple[int, ...],
        inputs: list[str] | None = None,
        like: str = "",
        **attributes: Any,
    ) -> str:
        """`x` behind a node that leaves codes what they are: those of `like`, or x."""
        y = self.node(op, [x, *(inputs or [])], **attributes)
        self.shapes[y] = shape
        return self.quantized(y, like=like or x)

    def binary(self, op: str, a: str, b: str, act: str = "") -> str:
        y = self.node(op, [a, b])
        self.shapes[y] = self.shapes[a]
        return self.activated(y, act)

    def pool(self, op: str, x: str, **attributes: Any) -> str:
        y = self.node(op, [x], **attributes)
        if op == "MaxPool":
            made = self.quantized(y, like=x)
        else:
            made = self.quantized(y)
        if op == "GlobalAveragePool":
            self.shapes[made] = (*self.shapes[x][:2], *[1] * len(self.shapes[x][2:]))
        return made

    def concat(self, parts: list[str], axis: int = 1) -> str:
        y = self.node("Concat", parts, axis=axis)
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        self.shapes[y] = tuple(shape)
        return self.quantized(y)

    def split(self, x: str, sizes: list[int]) -> list[str]:
        """Along channels."""
        names = [f"{x}_{i}" for i in range(len(sizes))]
        given = self.constant(np.array(sizes, np.int64))
        self.nodes.append(helper.make_node("Split", [x, given], names, name=f"n{len(self.nodes)}", axis=1))
        for name, size in zip(names, sizes, strict=True):
            self.shapes[name] = (self.shapes[x][0], size, *self.shapes[x][2:])
        return [self.quantized(name, like=x) for name in names]

    def flatten(self, x: str) -> str:
        y = self.node("Flatten", [x])
        self.shapes[y] = (self.shapes[x][0], int(np.prod(self.shapes[x][1:])))
        return self.quantized(y, like=x)

    def gemm(self, x: str, outputs: int, turned: int) -> str:
        inputs = self.shapes[x][1]
        shape = (outputs, inputs) if turned else (inputs, outputs)
        weight, scales = self.weight(self.rng.integers(-127, 128, shape).astype(np.int8), 0 if turned else 1)
        return self.node("Gemm", [x, weight, self.bias(x, scales)], transB=turned)

    def matmul(self, x: str, outputs: int, bias: bool = True) -> str:
        """By a matrix, and what is added to each row in the place of a vector."""
        inputs = self.shapes[x][-1]
        weight, scales = self.weight(self.rng.integers(-127, 128, (inputs, outputs)).astype(np.int8), 1)
        y = self.node("MatMul", [x, weight])
        if bias:
            added = self.bias(x, scales)
            decoded = next(node for node in self.nodes if node.output[0] == added)
            rank = len(self.shapes[x])
            before = [1] * min(2, rank - 1)
            self.constants[decoded.input[0]] = self.constants[decoded.input[0]].reshape(*before, -1)
            decoded.attribute[0].i = len(before)
            y = self.node("Add", [y, added] if self.rng.integers(2) else [added, y])
        self.shapes[y] = (*self.shapes[x][:-1], outputs)
        return y

    def model(self) -> onnx.ModelProto:
        declared = self.declared or self.x_shape
        outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in self.outputs]
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", FLOAT, list(declared))],
            outputs,
            [numpy_helper.from_array(np.asarray(array), name) for name, array in self.constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return onnx.shape_inference.infer_shapes(made)


def _plain(op: str) -> Function:
    return lambda net, x: net.node(op, [x])


def _scalar(op: str, number: float) -> Function:
    return lambda net, x: net.node(op, [x, net.constant(np.float32(number))])


def _by_channel(net: Net, x: str) -> str:
    channels, rank = net.shapes[x][1], len(net.shapes[x])
    shape = [channels, *[1] * (rank - 2)]
    slopes = net.constant(2.0 ** net.rng.integers(-3, 2, shape).astype(np.float32))
    scaled = net.node("Mul", [x, net.constant(net.rng.normal(size=shape).astype(np.float32))])
    return net.node("PRelu", [net.node("Add", [scaled, slopes]), slopes])


def _curve(net: Net, x: str) -> str:
    shape = [net.shapes[x][1], *[1] * (len(net.shapes[x]) - 2)]
    return net.node("Tanh", [net.node("Mul", [x, net.constant(net.rng.normal(size=shape).astype(np.float32))])])


def _line(bounded: str) -> Callable[[Net, str], str]:
    """A factor and a summand for each channel, as of a normalization, and perhaps bounds."""

    def made(net: Net, x: str) -> str:
        shape = [net.shapes[x][1], *[1] * (len(net.shapes[x]) - 2)]
        factor, summand = (net.constant(net.rng.normal(size=shape).astype(np.float32)) for _ in range(2))
        y = net.node("Add", [net.node("Mul", [x, factor]), summand])
        if bounded == "Clip":
            return net.node("Clip", [y, net.constant(np.float32(-0.25)), net.constant(np.float32(0.5))])
        return net.node(bounded, [y]) if bounded else y

    return made


def _hard_swish(net: Net, x: str) -> str:
    shifted = net.node("Add", [x, net.constant(np.float32(3))])
    bounded = net.node("Clip", [shifted, net.constant(np.float32(0)), net.constant(np.float32(6))])
    return net.node("Div", [net.node("Mul", [x, bounded]), net.constant(np.float32(6))])


def _relu_of_sum(net: Net, x: str) -> str:
    return net.node("Relu", [net.node("Add", [net.constant(np.float32(-1)), x])])


#: By word, what adds the nodes of a function of each element to a net.
FUNCTIONS: dict[str, Function] = {
    **{op: _plain(op) for op in ("Sigmoid", "HardSwish", "Tanh", "LeakyRelu", "Elu", "Abs", "Gelu")},
    "Pow": _scalar("Pow", 2.0),
    "Mul": _scalar("Mul", -0.37),
    "Max": _scalar("Max", 0.5),
    "swish": lambda net, x: net.node("Mul", [x, net.node("Sigmoid", [x])]),
    "hard swish": _hard_swish,
    "by channel": _by_channel,
    "curve by channel": _curve,
    "line": _line(""),
    "line from 0 on": _line("Relu"),
    "line between bounds": _line("Clip"),
    "relu of sum": _relu_of_sum,
}


def with_regions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with regions."""
    found = ir.serde.deserialize_model(model)
    MakeRegions({}, infer_types(found))(found)
    return ir.serde.serialize_model(found)


def operators(model: onnx.ModelProto) -> list[str]:
    """What its graph consists of."""
    return [node.op_type for node in nodes_of(ir.serde.deserialize_model(model))]
