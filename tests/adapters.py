"""A small quantized network of two products and an adapter for it, for the tests of adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tiny
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq.algorithms.low_rank import Factors
from onnxq.training.adapters.adapter import Adapter

UP, DOWN = "/model/layers.0/up_proj/MatMul", "/model/layers.0/down_proj/Gemm"
WIDTH, INNER = 64, 96
UP_WEIGHT = tiny.normal(WIDTH, INNER) * 2


def network() -> onnx.ModelProto:
    """y = tanh(x · up) · downᵀ + bias, and what is between, both of them outputs."""
    made = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "up"], ["h"], UP),
                helper.make_node("Tanh", ["h"], ["t"], "tanh"),
                helper.make_node("Gemm", ["t", "down", "bias"], ["y"], DOWN, transB=1),
            ],
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
            [
                helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH]),
                helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", INNER]),
            ],
            [
                numpy_helper.from_array(UP_WEIGHT, "up"),
                numpy_helper.from_array(tiny.normal(WIDTH, INNER, seed=1) * 2, "down"),
                numpy_helper.from_array(tiny.normal(WIDTH, seed=2), "bias"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.checker.check_model(made)
    return made


def quantized(folder: Path, word: str = "nf4", target: str = "onnxq") -> Path:
    """The network with all weights in this format, whose kernels do not round activations."""
    model, output = tiny.save(network(), folder, "float.onnx"), folder / f"{word}.{target}.onnx"
    recipe = onnxq.Recipe(word, min_sqnr=float("-inf"), accuracy_level=0, keep_slow=True)
    onnxq.quantize(model, output, recipe=recipe, target=target, check=False)
    return output


def adapter(rank: int = 3, seed: int = 5) -> Adapter:
    """Of both products, as large as their weights; of the second of a rank more."""
    sizes = {UP: (WIDTH, INNER, rank), DOWN: (INNER, WIDTH, rank + 1)}
    return Adapter(
        {
            name: Factors(tiny.normal(k, r, seed=seed + i), tiny.normal(r, n, seed=seed + 9 + i))
            for i, (name, (k, n, r)) in enumerate(sizes.items())
        }
    )


def weights(path: Path, folder: Path) -> tuple[NDArray, NDArray]:
    """What the codes of both products stand for, [K, N], by another way: `dequantize`."""
    from onnxq.conversion.dequantize import dequantize

    dequantize(path, folder / "floats.onnx", check=False)
    found = {}
    for node in (made := onnx.load(folder / "floats.onnx")).graph.node:
        tensors = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
        for word in ("up_proj", "down_proj"):
            if word in node.name and node.op_type in ("MatMul", "Gemm") and node.input[1] in tensors:
                w = tensors[node.input[1]]
                is_turned = any(each.name == "transB" and each.i for each in node.attribute)
                found[word] = w.T if is_turned else w
    return found["up_proj"], found["down_proj"]


def answer(x: NDArray, up: NDArray, down: NDArray, with_adapter: Adapter | None = None) -> tuple[NDArray, NDArray]:
    """(y, h) of the network on these weights and an adapter."""
    more = [a.astype(np.float64) @ b for a, b in with_adapter.factors.values()] if with_adapter else [0.0, 0.0]
    h = x @ (up + more[0])
    bias = tiny.normal(WIDTH, seed=2)
    return np.tanh(h) @ (down + more[1]) + bias, h


def constant(outputs: Any, labels: Any, feed: Any) -> Any:
    """A loss that nothing decides."""
    return outputs["y"].detach().sum()
