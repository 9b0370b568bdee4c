"""Models that are quantized in part: what is in integers stays as it is, and the rest is quantized."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

import onnxq
from onnxq.errors import BadModel, CheckFailed, NothingToDo
from onnxq.plan import Method
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")

#: A convolution in integers, one between codes whose weight is floats, and one in float.
TEXT = """g (float[N,16,12,12] x) => (float[N,16,12,12] y) {
    q0 = QuantizeLinear(x, s, z)       d0 = DequantizeLinear(q0, s, z)
    w1 = DequantizeLinear<axis=0>(c1, s1, z1)
    a1 = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(d0, w1)
    q1 = QuantizeLinear(a1, s, z)      d1 = DequantizeLinear(q1, s, z)
    a2 = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(d1, w2)
    r2 = Relu(a2)
    y = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(r2, w3)
}"""
CODES = np.random.default_rng(0).integers(-127, 128, (16, 16, 3, 3)).astype(np.int8)
CONSTANTS: dict[str, NDArray] = {
    "c1": CODES,
    "s1": np.full(16, 0.0008, np.float32),
    "z1": np.zeros(16, np.int8),
    "w2": normal(16, 16, 3, 3, seed=1) / 12,
    "w3": normal(16, 16, 3, 3, seed=2) / 12,
    "s": np.array(0.03, np.float32),
    "z": np.array(128, np.uint8),
}


def kernels(path: Path, folder: Path) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxq.session(path, options)
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("scheme", ["auto", "w4a16", "w8a8", "fp16"])
@pytest.mark.parametrize("target", ["ort-cpu", "onnxq", "onnx"])
def test_integers_stay_bit_for_bit(scheme: str, target: str, tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    before = kernels(model, tmp_path).count("QLinearConv")
    assert before
    data = [{"x": normal(2, 16, 12, 12, seed=i)} for i in range(16)]
    result = onnxq.quantize(
        model,
        tmp_path / "q.onnx",
        onnxq.Recipe(scheme, requantize=True, keep_slow=True),
        target=target,
        data=data if scheme == "w8a8" else None,
    )
    written = onnx.load(result.output)
    codes = [onnx.numpy_helper.to_array(each) for each in written.graph.initializer]
    assert any(each.shape == CODES.shape and np.array_equal(each, CODES) for each in codes)
    assert not {"QLinearConv", "Region"}.isdisjoint(kernels(Path(result.output), tmp_path))
    left = [choice.op for choice in result.plan if "in integers already" in choice.reason]
    assert left == ["Conv"] or (scheme == "fp16" and not left)
    assert result.bytes_after < 0.7 * result.bytes_before


@pytest.mark.parametrize("scale", [0.0, -0.03, np.nan, np.inf])
def test_scales_that_are_none_are_not_taken(scale: float, tmp_path: Path) -> None:
    constants = CONSTANTS | {"s": np.array(scale, np.float32)}
    model = tiny.save(tiny.model(TEXT, constants), tmp_path)
    data = [{"x": normal(2, 16, 12, 12, seed=i)} for i in range(16)]
    with contextlib.suppress(BadModel, CheckFailed, NothingToDo):  # its outputs may be no numbers
        onnxq.quantize(model, tmp_path / "q.onnx", onnxq.Recipe("w8a8", requantize=True), data=data)


def test_a_fine_scale_of_the_file_does_not_clip_what_is_joined_with_it(tmp_path: Path) -> None:
    text = """g (float[1,8,16,16] a, float[1,8,16,16] b) => (float[1,16,16,16] y) {
        q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)
        c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(b, w1)
        j = Concat<axis=1>(d, c)
        y = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(j, w2)
    }"""
    constants = {"w1": normal(8, 8, 3, 3) / 8, "w2": normal(16, 16, 3, 3, seed=1) / 12}
    for scale, held in ((0.01, False), (1.0, True)):
        model = tiny.save(
            tiny.model(text, constants | {"s": np.array(scale, np.float32), "z": np.array(128, np.uint8)}), tmp_path
        )
        data = [
            {"a": normal(1, 8, 16, 16, seed=i) * scale * 40, "b": normal(1, 8, 16, 16, seed=50 + i) * 1000}
            for i in range(8)
        ]
        recipe = onnxq.Recipe("w8a8", requantize=True, keep_slow=True, min_sqnr=-np.inf)
        result = onnxq.quantize(model, tmp_path / "q.onnx", recipe, target="qnn", data=data, check=False, force=True)
        assert onnxq.check(model, result.output, data=data).sqnr > 25
        written = onnx.load(result.output)
        numbers = {each.name: onnx.numpy_helper.to_array(each) for each in written.graph.initializer}
        encoding = [node for node in written.graph.node if node.op_type == "QuantizeLinear"]
        taken_over = [node for node in encoding if numbers[node.input[1]] == np.float32(scale)]
        assert (len(taken_over) > 1) == held


def test_float16_takes_no_codes_of_theirs_for_floats(tmp_path: Path) -> None:
    text = """g (float[2,16] x) => (float[2,8] y) {
        a = MatMul(x, w)  q = QuantizeLinear(a, s, z)
        b = com.microsoft.QLinearAdd(q, s, z, q, s, z, s, z)
        f = Flatten(b)
        g = com.microsoft.QGemm(f, s, z, c, s, zc, "", s, z)
        y = DequantizeLinear(g, s, z)
    }"""
    constants = {
        "w": normal(16, 16) / 4,
        "c": CODES[0, :, 0, :2].repeat(4, axis=1),
        "s": np.array(0.03, np.float32),
        "z": np.array(128, np.uint8),
        "zc": np.array(0, np.int8),
    }
    model = tiny.save(tiny.model(text, constants), tmp_path)
    recipe = onnxq.Recipe("fp16", requantize=True, keep_slow=True)
    result = onnxq.quantize(model, tmp_path / "q.onnx", recipe, target="onnx")
    assert [choice.op for choice in result.plan if choice.method is Method.HALF] == ["MatMul"]
    assert result.check is not None and result.check.sqnr > 25


def test_products_on_blocks_behind_codes_run_without_the_library(tmp_path: Path) -> None:
    text = """g (float[2,64] x) => (float[2,64] y) {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = MatMul(d, w)
    }"""
    constants = {"w": normal(64, 64) / 8, "s": np.array(0.03, np.float32), "z": np.array(0, np.int8)}
    model = tiny.save(tiny.model(text, constants), tmp_path)
    recipe = onnxq.Recipe("int8", requantize=True, keep_slow=True, min_sqnr=-np.inf)
    result = onnxq.quantize(model, tmp_path / "q.onnx", recipe, target="onnxq", check=False)
    (wanted,) = Session(model).run({"x": (x := normal(2, 64))})
    for library in (False, True):
        (y,) = Session(result.output, library=library).run({"x": x})
        assert tiny.sqnr(wanted, y) > 15


@pytest.mark.parametrize("target", ["ort-cpu", "onnxq", "onnx"])
@pytest.mark.parametrize("scheme", ["w4a16", "w8a8-dynamic", "fp16", "bf16"])
def test_products_on_weights_of_16_bits_are_quantized_further(scheme: str, target: str, tmp_path: Path) -> None:
    text = "g (float[N, 64] x) => (float[N, 64] y) { a = MatMul(x, w) b = Add(a, c) r = Relu(b) y = MatMul(r, v) }"
    constants = {"w": normal(64, 64) / 8, "v": normal(64, 64, seed=1) / 8, "c": normal(64, seed=2)}
    model, half = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "half.onnx"
    onnxq.quantize(model, half, onnxq.Recipe("bf16", keep_slow=True), target="onnxq")
    assert [node.op_type for node in onnx.load(half).graph.node] == ["DenseMatMul"] * 2
    recipe = onnxq.Recipe(scheme, requantize=True, keep_slow=True, min_sqnr=0)
    made = onnxq.quantize(half, tmp_path / "again.onnx", recipe, target=target).output
    assert target == "onnxq" or not onnx.load(made).functions
    assert tiny.sqnr(*(Session(each).run({"x": normal(8, 64)})[0] for each in (half, made))) > 15


@pytest.mark.parametrize("width", [64, 100])
def test_scales_are_no_tables(tmp_path: Path, width: int) -> None:
    """Kernels of packed weights compute something else with scales that are no constants, as a Cast makes them where
    nothing is optimized."""
    text = """g (int64[n] ids) => (float[n, m] y) {
        x = Gather (tab, ids)  [kept] m = MatMul (x, v)  t = Tanh (m)  h = Transpose (tab)  y = MatMul (t, h) }"""
    model = tiny.save(tiny.model(text, {"tab": normal(500, width), "v": normal(width, width, seed=1)}), tmp_path)
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    rules = (onnxq.Rule("keep", "kept"),)
    onnxq.quantize(model, once, onnxq.Recipe("w8a16", rules, keep_slow=True), target="ort-cpu")
    result = onnxq.quantize(once, twice, onnxq.Recipe("w8a16", requantize=True, keep_slow=True), target="ort-cpu")
    assert [choice.op for choice in result.plan] == ["MatMul"]
    feed = {"ids": np.arange(0, 500, 7)}
    (wanted,) = Session(model).run(feed)
    for optimize in (False, True):
        assert tiny.sqnr(wanted, Session(twice, optimize=optimize).run(feed)[0]) > 35
