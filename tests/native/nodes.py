"""Models of one node of the onnxq domain, and of its function body."""

from __future__ import annotations

from typing import Any

import kernels
import numpy as np
import onnx
from kernels import Weight
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def tensors(w: Weight) -> dict[str, NDArray]:
    """The node's constant inputs by name."""
    made = {"weight": w.tiles, "scales": w.by_tile(w.scales)}
    return made if w.zeros is None else {**made, "zero_points": w.by_tile(w.zeros)}


def matmul(
    w: Weight,
    *,
    type: int = FLOAT,
    bias: NDArray | None = None,
    x_shape: tuple[str | int, ...] | None = None,
    constants: dict[str, NDArray] | None = None,
    inputs: tuple[str, ...] = (),
    functions: tuple[onnx.FunctionProto, ...] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """y = MatMulNBits(x, …). `constants` replaces tensors; those named in `inputs` are inputs of the graph."""
    arrays = tensors(w) | ({} if bias is None else {"bias": bias}) | (constants or {})
    names = ["x", *(name if name in arrays else "" for name in ("weight", "scales", "zero_points", "bias"))]
    while not names[-1]:
        names.pop()
    given = {"K": w.K, "N": w.N, "block_size": w.block, "format": w.format} | attributes
    node = helper.make_node("MatMulNBits", names, ["y"], "the/node", domain="onnxq")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in given.items() if value is not None)
    shape = ("M", w.K) if x_shape is None else x_shape
    return _model(node, {"x": (type, shape)}, arrays, inputs, type, functions)


def dense(
    w: Weight,
    *,
    type: int = FLOAT,
    bias: NDArray | None = None,
    constants: dict[str, NDArray] | None = None,
    inputs: tuple[str, ...] = (),
    functions: tuple[onnx.FunctionProto, ...] = (),
    other: tuple[int, ...] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """y = DenseMatMul(x, weight, bias, other), the last an input of the graph of that many dimensions."""
    arrays = (
        {"weight": w.tiles.view(kernels.DENSE[w.format])} | ({} if bias is None else {"bias": bias}) | (constants or {})
    )
    names = ["x", *arrays]
    fed: dict[str, tuple[int, tuple[str | int, ...]]] = {"x": (type, ("M", w.K))}
    if other is not None:
        names += [*[""] * (3 - len(names)), "other"]
        fed["other"] = (type, tuple(f"other{axis}" for axis in range(len(other))))
    overload = functions[0].overload if functions else ""
    node = helper.make_node("DenseMatMul", names, ["y"], "the/node", domain="onnxq", overload=overload)
    given = {"K": w.K, "N": w.N} | attributes
    node.attribute.extend(helper.make_attribute(name, value) for name, value in given.items() if value is not None)
    return _model(node, fed, arrays, inputs, type, functions)


def gather(
    w: Weight,
    *,
    dtype: int | None = None,
    indices: int = TensorProto.INT64,
    shape: tuple[str | int, ...] = ("n",),
    constants: dict[str, NDArray] | None = None,
    inputs: tuple[str, ...] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """y = GatherNBits(…, i)."""
    arrays = tensors(w) | (constants or {})
    names = ["weight", "scales", "zero_points" if "zero_points" in arrays else "", "i"]
    given = {"K": w.K, "N": w.N, "block_size": w.block, "format": w.format, "dtype": dtype} | attributes
    node = helper.make_node("GatherNBits", names, ["y"], "the/node", domain="onnxq")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in given.items() if value is not None)
    return _model(node, {"i": (indices, shape)}, arrays, inputs, dtype or FLOAT, ())


def _model(
    node: onnx.NodeProto,
    fed: dict[str, tuple[int, tuple[str | int, ...]]],
    arrays: dict[str, NDArray],
    inputs: tuple[str, ...],
    output: int,
    functions: tuple[onnx.FunctionProto, ...],
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, *each) for name, each in fed.items()]
    values += [helper.make_tensor_value_info(name, _type(arrays[name]), arrays[name].shape) for name in inputs]
    made = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in inputs]
    y = helper.make_tensor_value_info("y", output, None)
    graph = helper.make_graph([node], "graph", values, [y], made)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("onnxq", 1)]
    return helper.make_model(graph, functions=list(functions), opset_imports=imports, ir_version=10)


def _type(array: NDArray) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def int8_body(w: Weight) -> onnx.FunctionProto:
    """What MatMulNBits computes in standard operators, for this int8 weight without zero points and with a bias."""
    blocks = w.K // w.block
    assert (w.format, w.zeros, w.K % w.block, w.N % 16) == ("int8", None, 0, 0)
    return onnx.parser.parse_function(f"""
        <domain: "onnxq", opset_import: ["": 21]>
        MatMulNBits <K, N, block_size, format> (x, weight, scales, zero_points, bias) => (y) {{
            code = Cast <to = 1> (weight)
            middle = Constant <value = float {{128}}> ()
            value = Sub (code, middle)
            rows = Transpose <perm = [0, 2, 1, 3]> (value)
            in_blocks = Constant <value_ints = [{w.N}, {blocks}, {w.block}]> ()
            value_in_blocks = Reshape (rows, in_blocks)
            scale = Cast <to = 1> (scales)
            scale_rows = Transpose <perm = [0, 2, 1]> (scale)
            of_blocks = Constant <value_ints = [{w.N}, {blocks}, 1]> ()
            scale_of_blocks = Reshape (scale_rows, of_blocks)
            scaled = Mul (value_in_blocks, scale_of_blocks)
            flat = Constant <value_ints = [{w.N}, {w.K}]> ()
            w = Reshape (scaled, flat)
            turned = Transpose <perm = [1, 0]> (w)
            product = MatMul (x, turned)
            y = Add (product, bias)
        }}""")


def activations(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
