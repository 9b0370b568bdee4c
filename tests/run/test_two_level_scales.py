"""Weights whose scales are codes themselves, as qnn, tensorrt and onnx-25 have them: read back without loss."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from test_import_schemes import foreign
from tiny import normal

from onnxq import OnnxqError, Recipe, layouts, quantize
from onnxq.checking.rules import check_rules
from onnxq.checkpoints.encode_arrays import decode_file
from onnxq.checkpoints.import_weights import import_weights
from onnxq.conversion.convert import convert
from onnxq.conversion.dequantize import dequantize
from onnxq.conversion.export_weights import export_weights
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
#: A product by a matrix that lies either way, and a lookup.
TEXT = """g (float[2, 128] x, int64[2] ids) => (float[2, 64] y, float[2, 64] t) {
    h = MatMul (x, a)  r = Relu (h)  y = Gemm <transB = 1, alpha = 0.3> (r, b, bias)  t = Gather (table, ids)
}"""
WEIGHTS = {
    "a": normal(128, 96),
    "b": normal(64, 96, seed=1),
    "bias": normal(64, seed=2),
    "table": normal(40, 64, seed=3),
}
FEED = {"x": normal(2, 128, seed=4), "ids": np.array([39, 0])}


def run(path: Path, **feed: NDArray) -> list[NDArray]:
    """By the definitions of the operators: nothing is fused, so that no kernel rounds activations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options).run(None, feed)


def made(folder: Path, word: str, target: str, dtype: type = np.float32) -> Path:
    text = TEXT.replace("float[", "float16[") if dtype is np.float16 else TEXT
    model = tiny.save(tiny.model(text, {name: array.astype(dtype) for name, array in WEIGHTS.items()}), folder)
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True)
    return quantize(model, folder / "q.onnx", recipe, target=target, check=False).output


def low_power(folder: Path) -> Path:
    """LPBQ of matrices between integers of 16 bits."""
    text = "g (float[2, 8, 128] x) => (float[2, 8, 64] y) { h = MatMul (x, a)  r = Relu (h)  y = MatMul (r, b) }"
    model = tiny.save(tiny.model(text, {"a": WEIGHTS["a"], "b": WEIGHTS["b"].T.copy()}), folder)
    np.savez(folder / "data.npz", x=normal(8, 2, 8, 128, seed=9))
    recipe = Recipe("w4a16", min_sqnr=-np.inf)
    return quantize(model, folder / "q.onnx", recipe, target="qnn", data=folder / "data.npz", check=False).output


def by_numpy(path: Path) -> dict[str, NDArray]:
    """[inputs, outputs] of the products by a matrix, by node."""
    model = onnx.load(path)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    by, found = {name: node for node in model.graph.node for name in node.output}, {}
    for node in model.graph.node:
        weight = by.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and any(a.name == "block_size" for a in weight.attribute):
            codes, scales = arrays[weight.input[0]].astype(np.float32), by[weight.input[1]]
            steps = arrays[scales.input[0]].astype(np.float32) * arrays[scales.input[1]]
            found[node.name] = codes * np.repeat(steps, len(codes) // len(steps), axis=0)
    return found


def test_low_power_blocks_for_other_targets(tmp_path: Path) -> None:
    small = low_power(tmp_path)
    wanted, x = by_numpy(small), normal(2, 8, 128, seed=5)
    assert set(wanted) == {"h", "y"}
    for target, word in (("onnxq", "lpbq"), ("onnx", "int4"), ("ort-cpu", "int4")):
        done = convert(small, target, tmp_path / f"{target}.onnx", accuracy_level=0)
        assert set(done.kept) == {"h", "y"} and not done.again and {choice.format for choice in done.plan} == {word}
        assert tiny.sqnr(run(small, x=x)[0], run(done.output, x=x)[0]) > 70  # where a sum is rounded to 16 bits
    # And on from there: what onnxq wrote has the scales in 4 bits still.
    again = convert(tmp_path / "onnxq.onnx", "onnxq", tmp_path / "again.onnx")
    assert {choice.format for choice in again.plan} == {"lpbq"} and len(again.kept) == 2
    rows = {row.name: row for row in export_weights(small, tmp_path / "w.safetensors").rows}
    decoded = {name: make() for name, make in decode_file(tmp_path / "w.safetensors")}
    for name, node in (("a", "h"), ("b", "y")):
        assert (rows[name].format, rows[name].sqnr) == ("lpbq", None)
        np.testing.assert_array_equal(decoded[name].T, wanted[node])


def test_low_power_blocks_in_floats(tmp_path: Path) -> None:
    small = low_power(tmp_path)
    back = dequantize(small, tmp_path / "float.onnx").output
    model = onnx.load(back)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMul":
            np.testing.assert_array_equal(arrays[node.input[1]], by_numpy(small)[node.name])
    x = normal(2, 8, 128, seed=5) / 4  # within the ranges of the samples
    assert tiny.sqnr(run(back, x=x)[0], run(small, x=x)[0]) > 60


def test_a_scale_of_sixteen_steps_is_a_float(tmp_path: Path) -> None:
    """Which QNN's provider takes, and 4 bits do not hold."""
    text = """g (float[2, 64] x) => (float[2, 32] y) {
        s = DequantizeLinear <axis = 1> (t, f, z)  w = DequantizeLinear <axis = 0, block_size = 32> (c, s)
        y = MatMul (x, w)
    }"""
    rng = np.random.default_rng(0)
    nibbles = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    constants = {
        "c": rng.integers(-8, 8, (64, 32)).astype(nibbles),
        "t": rng.integers(1, 17, (2, 32)).astype(np.uint8),
        "f": np.abs(normal(32)) + np.float32(0.1),
        "z": np.zeros(32, np.uint8),
    }
    constants["t"][1, 3] = 16
    model = tiny.save(tiny.model(text, constants, opset=21, ir_version=10), tmp_path)
    done = convert(model, "onnxq", tmp_path / "q.onnx", accuracy_level=0)
    assert [choice.format for choice in done.plan] == ["int4"] and done.kept == ("y",)
    constants["t"][1, 3] = 15
    constants["t"] = np.minimum(constants["t"], 15)
    constants["z"][:] = 3  # scales that are differences
    model = tiny.save(tiny.model(text, constants, opset=21, ir_version=10), tmp_path)
    done = convert(model, "onnx", tmp_path / "r.onnx", accuracy_level=0)
    assert [choice.format for choice in done.plan] == ["int4"] and done.kept == ("y",)
    feed = {"x": normal(2, 64, seed=1)}
    assert tiny.sqnr(run(model, **feed)[0], run(done.output, **feed)[0]) > 120


def test_factors_along_the_blocks_are_no_channels(tmp_path: Path) -> None:
    """As many blocks as channels: which of the two a factor is for is told by the axis alone."""
    text = """g (float[2, 64] x) => (float[2, 4] y) {
        s = DequantizeLinear <axis = 0> (t, f)  w = DequantizeLinear <axis = 0, block_size = 16> (c, s)
        y = MatMul (x, w)
    }"""
    rng = np.random.default_rng(0)
    nibbles = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    constants = {
        "c": rng.integers(-8, 8, (64, 4)).astype(nibbles),
        "t": rng.integers(1, 16, (4, 4)).astype(np.uint8),
        "f": np.array([1, 10, 100, 1000], np.float32),
    }
    model = tiny.save(tiny.model(text, constants, opset=21, ir_version=10), tmp_path)
    done = convert(model, "onnx", tmp_path / "q.onnx", accuracy_level=0)
    assert done.kept == ("y",)
    feed = {"x": normal(2, 64, seed=1)}
    assert tiny.sqnr(run(model, **feed)[0], run(done.output, **feed)[0]) > 110


@pytest.mark.parametrize(
    ("word", "target", "dtype"),
    [
        ("nvfp4", "tensorrt", np.float32),
        ("nvfp4", "tensorrt", np.float16),
        ("nvfp4", "onnx-25", np.float32),
        ("mxfp4", "onnx-25", np.float32),
        ("e2m1", "onnx-25", np.float32),
    ],
)
def test_floats_of_4_bits_come_back(word: str, target: str, dtype: type, tmp_path: Path) -> None:
    """Of files that onnxruntime does not run: what ONNX's reference implementation computes is what comes out."""
    small = made(tmp_path, word, target, dtype)
    assert TensorProto.FLOAT4E2M1 in {tensor.data_type for tensor in onnx.load(small).graph.initializer}
    feed = {"x": FEED["x"].astype(dtype), "ids": FEED["ids"]}
    wanted = ReferenceEvaluator(onnx.load(small)).run(None, feed)
    least = 110 if dtype is np.float32 else 45
    for to in ("onnxq", "onnx", "ort-cpu"):
        done = convert(small, to, tmp_path / f"{to}.onnx", accuracy_level=0)
        assert done.check is not None and any("has no kernels for float4e2m1" in note for note in done.check.notes)
        assert {choice.format for choice in done.plan if choice.op != "Gather"} <= {word, "int8"}
        assert to != "onnxq" or {"h", "y"} <= {choice.node for choice in done.plan if choice.format == word}
        assert dtype is np.float16 or not done.again
        assert all(near > 60 and "float16" in why for why, near in done.again.values())
        for a, b in zip(wanted, run(done.output, **feed), strict=True):
            assert tiny.sqnr(a.astype(np.float32), b.astype(np.float32)) > least
    back = dequantize(small, tmp_path / "float.onnx")
    for a, b in zip(wanted, run(back.output, **feed), strict=True):
        assert tiny.sqnr(a.astype(np.float32), b.astype(np.float32)) > least
    formats = {row.name: row.format for row in export_weights(small, tmp_path / "w.safetensors").rows}
    assert formats["a"] == formats["b"] == word


def test_kernels_of_float4_are_rounded_again_and_told(tmp_path: Path) -> None:
    """No other target unpacks kernels of convolutions in blocks of channels."""
    text = """g (float[1, 32, 6, 6] p) => (float[1, 16, 6, 6] c) {
        s = DequantizeLinear (e, f)  k = DequantizeLinear <axis = 1, block_size = 16> (w, s)
        c = Conv <pads = [1, 1, 1, 1]> (p, k)
    }"""
    rng = np.random.default_rng(0)
    model = tiny.model(text, {"f": np.asarray(0.1, np.float32)}, opset=23, ir_version=11)
    codes = rng.integers(0, 16, (16, 32, 3, 3)).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    steps = (1 + rng.integers(0, 8, (16, 2, 3, 3)) / 8).astype(ml_dtypes.float8_e4m3fn)
    for name, array in (("w", codes), ("e", steps)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    small = tiny.save(model, tmp_path)
    done = convert(small, "ort-cpu", tmp_path / "q.onnx")
    (why, near) = done.again["c"]
    assert "blocks" in why and near > 35 and not done.kept
    feed = {"p": normal(1, 32, 6, 6)}
    wanted = ReferenceEvaluator(model).run(None, feed)[0]
    assert tiny.sqnr(wanted, run(done.output, **feed)[0]) > 35
    assert tiny.sqnr(wanted, run(dequantize(small, tmp_path / "float.onnx").output, **feed)[0]) > 110


@pytest.mark.parametrize(
    ("word", "target", "types"),
    [
        ("nvfp4", "tensorrt", {TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E4M3FN}),
        ("nvfp4", "onnx-25", {TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E4M3FN}),
        ("mxfp4", "onnx-25", {TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E8M0}),
        ("e2m1", "onnx-25", {TensorProto.FLOAT4E2M1}),
    ],
)
def test_codes_go_into_the_new_types(
    word: str, target: str, types: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = made(tmp_path, word, "onnxq")
    done = convert(small, target, tmp_path / "new.onnx")
    # In a file for onnxq scales of nvfp4 are floats of 16 bits as soon as they are read, in the others of 32.
    assert set(done.kept) == {"h", "y", "t"} and not done.again
    model = onnx.load(done.output)
    assert types <= {tensor.data_type for tensor in model.graph.initializer} and not model.functions
    onnx.checker.check_model(model, full_check=True)
    assert done.check is not None and any("has no kernels for float4e2m1" in note for note in done.check.notes)
    wanted = Session(small, library=False, optimize=False).run(FEED)
    for a, b in zip(wanted, ReferenceEvaluator(model).run(None, FEED), strict=True):
        assert tiny.sqnr(a, b) > 110
    assert target != "tensorrt" or check_rules(done.output, "tensorrt") == []
    honest = layouts.scales_by_row
    monkeypatch.setattr(layouts, "scales_by_row", layouts.Layout(lambda q: honest(q) * np.float32(2), honest.form))
    # What is compared first is what the file holds, then what was run in its place.
    says = "'t' of the saved file has another weight" if target == "tensorrt" else "reads other weights in the types"
    with pytest.raises(OnnxqError, match=says):
        convert(small, target, tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


def test_a_checkpoint_in_nvfp4_goes_into_the_new_types(tmp_path: Path) -> None:
    w = foreign("compressed_nvfp4", tmp_path).astype(np.float64)
    done = import_weights(None, tmp_path, tmp_path / "q.onnx", target="tensorrt")
    (choice,) = done.plan
    assert choice.label == "nvfp4 b16 stored" and not done.match.rounded
    model = onnx.load(done.output)
    assert TensorProto.FLOAT4E2M1 in {tensor.data_type for tensor in model.graph.initializer}
    assert done.check is not None and any("has no kernels for float4e2m1" in note for note in done.check.notes)
    run_ = ReferenceEvaluator(model)
    x, nothing = normal(5, 64), np.zeros((1, 64), np.float32)
    y = np.asarray(run_.run(None, {"x": x})[0]) - np.asarray(run_.run(None, {"x": nothing})[0])
    assert np.linalg.norm(y - x @ w.T) <= 2e-3 * np.linalg.norm(x @ w.T)  # as that package has w in bfloat16
