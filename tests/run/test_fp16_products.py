"""Scheme fp16 on target onnxq: products by large weights read float16 and sum in float32; all else is as ever."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray

import onnxq
from onnxq.conversion.dequantize import dequantize
from onnxq.runtime import native

target = importlib.import_module("onnxq.targets.onnxq")

pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.usefixtures("quick"),
]
LARGE = 1 << 14
TEXT = """g (float[n, 128] x) => (float[n, 40] y) {
    a = MatMul (x, u)  b = Add (a, c)  d = Relu (b)  e = MatMul (d, v)  f = Tanh (e)  y = Gemm <transB = 1> (f, w)
}"""


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two products by weights that count as large, the second of them with an odd K, and a small one."""
    monkeypatch.setattr(target, "LARGE", LARGE)
    shapes = {"u": (128, 129), "v": (129, 128), "w": (40, 128), "c": (129,)}
    weights = {name: tiny.normal(*shape, seed=i) / 11 for i, (name, shape) in enumerate(shapes.items())}
    return tiny.save(tiny.model(TEXT, weights), tmp_path)


def dense_nodes(path: Path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.op_type == "DenseMatMul"]


def test_large_products_read_float16(mixed: Path, tmp_path: Path) -> None:
    result = onnxq.quantize(mixed, tmp_path / "out.onnx", "fp16", target="onnxq")
    assert [(choice.op, choice.label) for choice in result.plan] == [
        ("MatMul", "float16"),
        ("MatMul", "float16"),
        ("Gemm", "float16"),
    ]
    nodes = dense_nodes(result.output)
    assert [len(node.input) for node in nodes] == [3, 2]  # the Add became the bias
    types = {t.name: t.data_type for t in onnx.load(result.output).graph.initializer}
    assert {types[node.input[1]] for node in nodes} == {onnx.TensorProto.FLOAT16}
    assert result.check is not None and result.check.sqnr > 55


def test_what_is_computed_is_what_the_numbers_say(mixed: Path, tmp_path: Path) -> None:
    """Nothing but weights is rounded in front of the small product: against float64."""
    output = onnxq.quantize(mixed, tmp_path / "out.onnx", "fp16", target="onnxq").output
    w = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(mixed).graph.initializer}
    x = tiny.normal(5, 128, seed=9)
    half = {name: array.astype(np.float16).astype(np.float64) for name, array in w.items()}
    h = np.maximum(x @ half["u"] + w["c"], 0)
    wanted = np.tanh(h @ half["v"]) @ half["w"].T
    (y,) = onnxq.session(output).run(None, {"x": x})
    assert np.linalg.norm(y - wanted) < 2e-3 * np.linalg.norm(wanted)
    # Without the library the bodies compute the same.
    import onnxruntime

    (body,) = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert np.linalg.norm(y - body) < 1e-3 * np.linalg.norm(wanted)


def test_small_products_are_as_before(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "LARGE", 1 << 22)
    output = onnxq.quantize(mixed, tmp_path / "out.onnx", "fp16", target="onnxq").output
    assert not dense_nodes(output)


def test_the_numbers_come_back(mixed: Path, tmp_path: Path) -> None:
    output = onnxq.quantize(mixed, tmp_path / "out.onnx", "fp16", target="onnxq").output
    dequantize(output, tmp_path / "back.onnx")

    def weights(path: Path) -> dict[tuple[int, ...], NDArray]:
        tensors = [value.const_value for value in ir.load(path).graph.initializers.values()]
        return {tuple(tensor.shape.numpy()): tensor.numpy() for tensor in tensors if tensor is not None}

    given, back = weights(mixed)[128, 129], weights(tmp_path / "back.onnx")[128, 129]
    np.testing.assert_array_equal(back, given.astype(np.float16).astype(np.float32))
