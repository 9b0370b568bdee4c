"""Models that hold codes already, with odd scales, zero points, axes and blocks: a kind of case for `mutants.py`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
from attack.generated import commands, values
from attack.generated.forms import named
from attack.generated.growth import FLOAT, Growth
from attack.generated.operators import save_data, write
from attack.mutants_data import Case
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, helper, numpy_helper

INTEGER = (
    *("QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
    *("QGemm", "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QLinearAdd", "QLinearMul", "QLinearConcat"),
    *("QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QLinearGlobalAveragePool", "QAttention", "QMoE"),
    *("DynamicQuantizeLSTM", "DynamicQuantizeLinear"),
)
BETWEEN = (
    *("Relu", "Clip", "Add", "Mul", "Sigmoid", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Reshape"),
    *("Transpose", "Softmax", "LayerNormalization", "Flatten", "Split", "Resize", "Pad", "LeakyRelu", "HardSwish"),
    *("Gelu", "Squeeze", "Unsqueeze", "Slice"),
)
SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (64,), (64, 1), (1, 64), (2, 64), (64, 2), (0,), (4,), (32,), (64, 64), (1, 1), (4, 1, 1, 1)),
    *((64, 1, 1), (8,)),
)
_OF_VALUES = tuple(
    TensorProto.DataType.Value(name) for name in ("UINT8", "UINT8", "INT8", "INT16", "UINT16", "FLOAT8E4M3FN")
)
_OF_WEIGHTS = tuple(
    TensorProto.DataType.Value(name)
    for name in ("INT8", "INT8", "UINT8", "INT4", "UINT4", "UINT16", "INT16", "INT32", "FLOAT8E4M3FN", "FLOAT4E2M1")
)
#: Attributes of QuantizeLinear and DequantizeLinear: how often each is there, and what it may be.
ATTRIBUTES: dict[str, tuple[float, tuple[int, ...]]] = {
    "axis": (0.5, (0, 1, -1, 2, -2, 7, -(2**63))),
    "block_size": (0.25, (0, 1, 2, 16, 32, 64, -1, 2**62)),
    "output_dtype": (0.1, (0, 1, 2, 3, 4, 5, 10, 16, 21, 22, 99)),
    "saturate": (0.05, (0, 1, 5)),
    "precision": (0.05, (1, 10, 99)),
}


def codes(case: Case, folder: Path) -> list[str]:
    """A layer for each seed, whose weight and input are codes most often."""
    r = Random(case.command)
    of_images = r.random() < 0.4
    growth = Growth(GraphProto(name="g"), ["x"])
    growth.opset = r.choice([13, 17, 19, 21, 21, 23, 24, 25, 26])
    shape = (1, 4, 8, 8) if of_images else r.choice([("N", 64), (2, 64), (1, 4, 64)])
    growth.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    for i, seed in enumerate(case.seeds[:3]):
        inner = Random(seed)
        x = _pair(inner, growth, growth.pool[0], f"a{i}") if inner.random() < 0.8 else growth.pool[0]
        growth.pool.insert(0, x)
        _layer(inner, growth, f"h{i}", of_images)
    last = _pair(r, growth, growth.pool[0], "z") if r.random() < 0.7 else growth.pool[0]
    growth.graph.output.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, None))
    if r.random() < 0.1:
        _annotate(r, growth.graph)
    save_data(folder, growth.graph)
    write(folder, growth.graph, {"": growth.opset, "com.microsoft": 1})
    return commands.of(case.command, of_codes=True)


def _layer(r: Random, growth: Growth, tag: str, of_images: bool) -> None:
    kind = r.random()
    if kind < 0.6:
        _product(r, growth, tag, of_images)
    else:
        found = named(r.choice(INTEGER if kind < 0.75 else BETWEEN), growth.opset)
        growth.add(r, r.choice(found), tag)
    if r.random() < 0.3:
        _node(growth, r.choice(["Relu", "Clip", "Sigmoid"]), [growth.pool[0]], f"{tag}r")


def _product(r: Random, growth: Growth, tag: str, of_images: bool) -> None:
    x = growth.pool[0]
    if of_images:
        inputs = [x, _weight(r, growth, f"{tag}w", (4, 4, 3, 3))]
        inputs += [_weight(r, growth, f"{tag}b", (4,))] * (r.random() < 0.5)
        attributes = {"pads": [1] * 4} | ({"group": r.choice([1, 2, 4, 3])} if r.random() < 0.1 else {})
        _node(growth, r.choice(["Conv", "Conv", "ConvTranspose"]), inputs, tag, **attributes)
        return
    op, inputs = r.choice(["MatMul", "Gemm", "Gemm", "Gather"]), [x, _weight(r, growth, f"{tag}w", (64, 64))]
    if op == "Gather":
        inputs = [inputs[1], growth.constant(r, f"{tag}i", TensorProto.INT64, (4,))]
    elif op == "Gemm":
        inputs += [_weight(r, growth, f"{tag}b", (64,))] * (r.random() < 0.5)
    _node(growth, op, inputs, tag, **({"transB": r.randrange(2)} if op == "Gemm" else {}))


def _pair(r: Random, growth: Growth, x: str, tag: str) -> str:
    """A value as codes and back, by the same parameters most often; or left as codes."""
    domain, kind = r.choice([""] * 5 + ["com.microsoft"]), r.choice(_OF_VALUES)
    scale, zero = _scale(r, growth, f"{tag}s", ()), _zero(r, growth, f"{tag}z", kind, ())
    _node(growth, "QuantizeLinear", [x, scale, *[zero] * (r.random() < 0.85)], f"{tag}q", domain, **_attributes(r))
    if r.random() < 0.1:
        return f"{tag}q"
    if r.random() < 0.3:
        scale = _scale(r, growth, f"{tag}s2", ())
        zero = _zero(r, growth, f"{tag}z2", r.choice([kind, TensorProto.INT8]), ())
    inputs = [f"{tag}q", scale, *[zero] * (r.random() < 0.85)]
    return _node(growth, "DequantizeLinear", inputs, f"{tag}d", domain, **_attributes(r))


def _weight(r: Random, growth: Growth, tag: str, shape: tuple[int, ...]) -> str:
    """Codes of any type and what they mean, by tensor, channel or block."""
    kind, axis = r.choice(_OF_WEIGHTS), r.choice([0, 1]) if len(shape) > 1 else 0
    growth.constant(r, f"{tag}c", kind, shape if r.random() < 0.9 else r.choice(values.SHAPES))
    blocks = r.choice([(), (shape[axis],), (shape[0] // 2, *shape[1:]), shape])
    inputs = [f"{tag}c", _scale(r, growth, f"{tag}s", blocks)]
    if r.random() < 0.7:
        inputs.append(_zero(r, growth, f"{tag}z", kind if r.random() < 0.9 else TensorProto.INT8, blocks))
    _node(growth, "DequantizeLinear", inputs, tag, r.choice([""] * 6 + ["com.microsoft"]), **_attributes(r))
    if r.random() < 0.15:
        order = {"perm": r.choice([[1, 0], [0, 1], [0, 0], [5, 6], [-1, 0]])} if r.random() < 0.7 else {}
        return _node(growth, "Transpose", [tag], f"{tag}t", **order)
    if r.random() < 0.05:
        sizes: NDArray = np.array(r.choice([[64, 64], [-1], [0, 64], [64, -1]]))
        growth.graph.initializer.append(numpy_helper.from_array(sizes, f"{tag}to"))
        return _node(growth, "Reshape", [tag, f"{tag}to"], f"{tag}r")
    return tag


def _scale(r: Random, growth: Growth, name: str, shape: tuple[int, ...]) -> str:
    """Positive ones, most often; a value of the run, now and then."""
    shape = shape if r.random() < 0.6 else r.choice(SHAPES)
    if r.random() < 0.05:
        growth.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    elif r.random() < 0.1:
        growth.constant(r, name, r.choice(values.FLOATS), shape)
    else:
        x = np.random.default_rng(r.randrange(1 << 30)).uniform(1e-3, 0.1, shape).astype(np.float32)
        if x.size and r.random() < 0.2:
            x.reshape(-1)[r.randrange(x.size)] = r.choice([0, -1, np.nan, np.inf, 1e-45, 3e38])
        growth.graph.initializer.append(numpy_helper.from_array(np.asarray(x), name))
    return name


def _zero(r: Random, growth: Growth, name: str, kind: int, shape: tuple[int, ...]) -> str:
    shape = shape if r.random() < 0.6 else r.choice(SHAPES)
    if r.random() < 0.05:
        growth.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        return name
    made = values.tensor(r, name, kind, shape)
    if r.random() < 0.5:
        made.raw_data = bytes(len(made.raw_data))
    growth.graph.initializer.append(made)
    return name


def _attributes(r: Random) -> dict[str, int]:
    return {name: r.choice(found) for name, (share, found) in ATTRIBUTES.items() if r.random() < share}


def _annotate(r: Random, graph: GraphProto) -> None:
    made = graph.quantization_annotation.add(tensor_name=r.choice(["x", "h0", "", "z"]))
    names = ["a0s", "a0z", "", "x"]
    made.quant_parameter_tensor_names.add(key=r.choice(["SCALE_TENSOR", "ZERO_POINT_TENSOR"]), value=r.choice(names))


def _node(growth: Growth, op: str, inputs: list[str], tag: str, domain: str = "", **attributes: object) -> str:
    """A node called as what it gives, which the next ones read."""
    growth.take(helper.make_node(op, inputs, [tag], name=f"{tag}_node", domain=domain, **attributes), [(tag, FLOAT)])
    return tag
