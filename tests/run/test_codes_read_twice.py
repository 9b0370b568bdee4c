"""The same codes read in several ways, by several nodes, and by the caller; codes that lie as no kernel reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq import quantize
from onnxq.checkpoints.import_weights import import_weights
from onnxq.conversion.convert import convert
from onnxq.conversion.dequantize import dequantize
from onnxq.conversion.export_weights import export_weights
from onnxq.errors import BadModel
from onnxq.recipe import Recipe

pytestmark = pytest.mark.usefixtures("quick")
CODES = np.random.default_rng(3).integers(-127, 127, (16, 16)).astype(np.int8)
X = {"x": normal(3, 16, seed=1)}
STEP = np.float32(0.01)


def run(path: Path, feed: dict[str, NDArray]) -> list[NDArray]:
    """By the definitions of the operators, nothing fused."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options).run(None, feed)


def both(
    text: str, constants: dict[str, NDArray], feed: dict[str, NDArray], folder: Path
) -> tuple[list[NDArray], list[NDArray], set[str]]:
    """What a model and the float model of it give, and the operators of that."""
    model, out = tiny.save(tiny.model(text, constants, opset=21), folder), folder / "float.onnx"
    dequantize(model, out)
    return run(model, feed), run(out, feed), {node.op_type for node in onnx.load(out).graph.node}


def test_square_codes_as_they_are_and_turned(tmp_path: Path) -> None:
    text = """g (float[3, 16] x) => (float[3, 16] y, float[3, 16] z) {
        a = DequantizeLinear (w, s)  y = MatMul (x, a)
        b = DequantizeLinear (w, s)  t = Transpose <perm = [1, 0]> (b)  z = MatMul (x, t)
    }"""
    wanted, got, ops = both(text, {"w": CODES, "s": STEP}, X, tmp_path)
    assert ops == {"MatMul", "Transpose"}  # of the matrix, which is written once
    assert all(np.array_equal(a, b) for a, b in zip(wanted, got, strict=True))


def test_the_same_codes_with_scales_of_their_own(tmp_path: Path) -> None:
    text = """g (float[3, 16] x) => (float[3, 16] y, float[3, 16] z) {
        q, step, zero = DynamicQuantizeLinear (x)
        a = MatMulInteger (q, w, zero)  af = Cast <to = 1> (a)  am = Mul (step, one)  y = Mul (af, am)
        b = MatMulInteger (q, w, zero)  bf = Cast <to = 1> (b)  bm = Mul (step, two)  z = Mul (bf, bm)
    }"""
    constants = {"w": CODES, "one": STEP, "two": np.float32(0.07)}
    _, (y, z), ops = both(text, constants, X, tmp_path)
    assert ops == {"MatMul"}
    np.testing.assert_allclose(y, X["x"] @ (CODES * STEP), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(z, X["x"] @ (CODES * np.float32(0.07)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("caller", ["a", "t"])
def test_the_caller_reads_the_weight_too(caller: str, tmp_path: Path) -> None:
    text = f"""g (float[3, 16] x) => (float[3, 16] y, float[16, 16] {caller}) {{
        a = DequantizeLinear (w, s)  t = Transpose <perm = [1, 0]> (a)  y = MatMul (x, t)
    }}"""
    wanted, got, ops = both(text, {"w": CODES, "s": STEP}, X, tmp_path)
    assert "DequantizeLinear" not in ops
    assert all(np.array_equal(a, b) for a, b in zip(wanted, got, strict=True))


def test_a_weight_that_the_file_has_in_floats_is_what_its_codes_stand_for(tmp_path: Path) -> None:
    text = """g (float[3, 16] x) => (float[3, 16] y) {
        q = QuantizeLinear <axis = 1> (w, s, z)  d = DequantizeLinear <axis = 1> (q, s, z)  y = MatMul (x, d)
    }"""
    constants = {"w": normal(16, 16), "s": np.full(16, 0.3, np.float32), "z": np.zeros(16, np.int8)}
    wanted, got, ops = both(text, constants, X, tmp_path)
    assert ops == {"MatMul"}
    assert np.array_equal(wanted[0], got[0])


def test_signed_codes_without_zero_point_cut_off_nothing_below_zero(tmp_path: Path) -> None:
    text = """g (float[3, 16] x) => (float[3, 16] y) {
        q = QuantizeLinear <output_dtype = 3> (x, s)  d = DequantizeLinear (q, s)  y = Identity (d)
    }"""
    _, got, _ = both(text, {"s": np.float32(0.03)}, X, tmp_path)
    assert np.array_equal(got[0], X["x"])


def test_alpha_is_a_factor_of_the_bias_in_counts(tmp_path: Path) -> None:
    text = """g (uint8[3, 16] x) => (float[3, 16] y) {
        y = com.microsoft.QGemm <alpha = 2.0, transB = 1> (x, sx, zx, w, sw, zw, c)
    }"""
    rng = np.random.default_rng(0)
    constants = {"sx": np.float32(0.1), "zx": np.uint8(128), "w": CODES, "sw": STEP, "zw": np.int8(0)}
    constants["c"] = rng.integers(-9000, 9000, 16).astype(np.int32)
    feed = {"x": rng.integers(0, 255, (3, 16)).astype(np.uint8)}
    wanted, got, ops = both(text, constants, feed, tmp_path)
    assert "QGemm" not in ops
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)


@pytest.mark.parametrize("opset", [11, 13])
def test_operators_on_codes_that_floats_have_no_word_for_stay(opset: int, tmp_path: Path) -> None:
    text = f"""g (uint8[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 8] z) {{
        a = com.microsoft.QLinearSoftmax <axis = 1, opset = {opset}> (x, s, m, r, o)  y = DequantizeLinear (a, r, o)
        b = QLinearMatMul (x, s, m, w, sw, zw, s, m)  z = DequantizeLinear (b, s, m)
    }}"""
    rng = np.random.default_rng(0)
    constants = {"s": np.float32(0.1), "m": np.uint8(128), "r": np.float32(1 / 256), "o": np.uint8(0)}
    constants |= {"w": rng.integers(90, 110, (2, 4, 8)).astype(np.uint8), "zw": np.full((2, 1, 8), 100, np.uint8)}
    constants["sw"] = np.abs(normal(2, 1, 8)) / 100
    feed = {"x": rng.integers(0, 255, (2, 3, 4)).astype(np.uint8)}
    if opset == 11:
        with pytest.raises(BadModel, match="has QLinearMatMul, QLinearSoftmax in a form that has none in floats"):
            both(text, constants, feed, tmp_path)
        text = text.replace(" z)", " z, float[2, 4, 8] c)").replace(
            "z = Deq", "c = DequantizeLinear (w, s, m)  z = Deq"
        )
    wanted, got, ops = both(text, constants, feed, tmp_path)
    assert "QLinearMatMul" in ops and ("Softmax" in ops) == (opset == 13)
    np.testing.assert_allclose(got[0], wanted[0], atol=0.01)
    np.testing.assert_allclose(got[1], wanted[1], atol=0.1)


def test_blocks_that_lie_along_another_axis_stay_standard_operators(tmp_path: Path) -> None:
    """A product that sums over blocks; a lookup, and products of several matrices, that read theirs the other way."""
    text = """g (float[2, 3, 32] x, int64[n] i) => (float[2, 3, 64] y, float[n, 64] z, float[2, 3, 32] p) {
        a = DequantizeLinear <axis = 0, block_size = 32> (w, s)  y = MatMul (x, a)
        b = DequantizeLinear <axis = 0, block_size = 32> (v, s)  z = Gather (b, i)
        c = DequantizeLinear <axis = 1, block_size = 32> (u, r)  t = Transpose <perm = [0, 2, 1]> (c)
        p = MatMul (x, t)
    }"""
    rng = np.random.default_rng(0)
    constants = {name: rng.integers(-8, 8, (32, 64)).astype(np.int8) for name in "wv"} | {"s": normal(1, 64, seed=2)}
    constants |= {"u": rng.integers(-8, 8, (2, 32, 32)).astype(np.int8), "r": normal(2, 1, 32, seed=3)}
    model = tiny.save(tiny.model(text, constants, opset=21), tmp_path)
    feed = {"x": normal(2, 3, 32, seed=5), "i": np.array([1, 31])}
    for target in ("onnx", "ort-cpu"):
        out = tmp_path / f"{target}.onnx"
        convert(model, target, out, accuracy_level=0)
        kept = {initializer.name for initializer in onnx.load(out).graph.initializer}
        assert {"v", "u"} <= kept and "w" not in kept
        for a, b in zip(run(model, feed), run(out, feed), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["onnx", "ort-cpu", "onnxq"])
def test_codes_of_2_bits_and_tables_of_halves(target: str, tmp_path: Path) -> None:
    """Where a target unpacks codes by a function of its own, or rounds what it has looked up."""
    text = """g (float[n, 64] x, int64[n] i) => (float[n, 24] y, float16[n, 32] t) {
        y = com.microsoft.MatMulNBits <bits = 2, block_size = 32, N = 24, K = 64> (x, w, s)
        t = com.microsoft.GatherBlockQuantized <bits = 4, block_size = 32, gather_axis = 0, quantize_axis = 1> (b, i, r)
    }"""
    rng = np.random.default_rng(0)
    constants = {"w": rng.integers(0, 255, (24, 2, 8)).astype(np.uint8), "s": np.abs(normal(48))}
    constants |= {"b": rng.integers(0, 255, (40, 16)).astype(np.uint8), "r": np.abs(normal(40, 1, dtype=np.float16))}
    model, out = tiny.save(tiny.model(text, constants, opset=21), tmp_path), tmp_path / f"{target}.onnx"
    done = convert(model, target, out, accuracy_level=0)
    assert len(done.kept) == 2 and not done.again
    back = tmp_path / "back.onnx"
    dequantize(out, back)
    feed = {"x": normal(3, 64), "i": np.array([0, 39, 7])}
    for a, b in zip(run(model, feed), run(back, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert np.array_equal(run(model, feed)[1], run(back, feed)[1])


def test_codes_whose_table_is_lost_are_not_left_out_in_silence(tmp_path: Path) -> None:
    text = "g (float[n, 64] x) => (float[n, 64] y) { h = MatMul (x, w)  y = Add (h, c) }"
    constants = {"w": normal(64, 64), "c": normal(8, 64)[0]}
    model = tiny.save(tiny.model(text, constants), tmp_path)
    small, apart = tmp_path / "small.onnx", tmp_path / "w.npz"
    quantize(model, small, Recipe("w4a16", min_sqnr=-np.inf, keep_slow=True), check=False)
    export_weights(small, apart)
    with np.load(apart) as stored:
        arrays = {name: stored[name] for name in stored if name != "onnxq.json"}
    np.savez(apart, **arrays)
    with pytest.raises(BadModel, match="the codes of w are as onnxq writes them"):
        import_weights(model, apart, tmp_path / "back.onnx")


def tied(folder: Path, dtype: str, opset: int = 21) -> Path:
    """A table that is the head, too, with rows that are no whole blocks."""
    text = f"""g (int64[n] ids) => ({dtype}[n, 400] y) {{
        x = Gather (table, ids)  [up] h = MatMul (x, w)  r = Relu (h)
        t = Transpose <perm = [1, 0]> (table)  [head] y = MatMul (r, t)
    }}"""
    own = {"table": normal(400, 100), "w": normal(100, 100, seed=1)}
    own = {name: w.astype(np.float16 if dtype == "float16" else np.float32) for name, w in own.items()}
    return tiny.save(tiny.model(text, own, opset=opset), folder)


@pytest.mark.parametrize(
    ("word", "target", "dtype"),
    [
        ("int4", "onnx", "float"),
        ("w8a16", "onnx", "float"),
        ("int4", "onnxq", "float"),
        ("int4", "onnxq", "float16"),
        ("int3", "onnxq", "float16"),
    ],
)
def test_a_tied_table_is_in_the_float_model_once(word: str, target: str, dtype: str, tmp_path: Path) -> None:
    """Though its codes had another name, or the rows that are looked up were rounded behind it."""
    small = tmp_path / "small.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(tied(tmp_path, dtype), small, recipe, target=target, check=False)
    for each, nbytes in (("float32", 4 if dtype == "float" else 2), ("float16", 2)):
        out = tmp_path / f"{each}.onnx"
        dequantize(small, out, dtype=each, check=each == "float32")
        assert out.stat().st_size < 1.1 * nbytes * (400 * 100 + 100 * 100), each


@pytest.mark.parametrize("word", ["int3", "int4"])
def test_a_tied_table_of_halves_has_codes_again(word: str, tmp_path: Path) -> None:
    """Its rows, or all of it, were rounded to float16 behind what unpacks them: it was written twice, as floats."""
    small, out = tmp_path / "small.onnx", tmp_path / "out.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(tied(tmp_path, "float16"), small, recipe, target="onnxq", check=False)
    for target in ("onnx", "ort-cpu"):
        assert not convert(small, target, out).again
        scales = [x for x in onnx.load(out).graph.initializer if "scale" in x.name and np.prod(x.dims) > 1000]
        assert [x.data_type for x in scales] == [onnx.TensorProto.FLOAT16]
        assert out.stat().st_size < (400 * 128 + 100 * 128) * (1.1 if target == "onnx" else 0.75)
        back = convert(out, "onnxq", tmp_path / f"{target}.onnx")
        assert len(back.kept) == 3 and not back.again
        out.unlink()


def test_codes_are_known_as_those_of_one_weight_in_a_newer_opset(tmp_path: Path) -> None:
    small, out = tmp_path / "small.onnx", tmp_path / "out.onnx"
    recipe = Recipe("w8a16", min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(tied(tmp_path, "float", opset=17), small, recipe, target="ort-cpu", check=False)
    convert(small, "onnx", out)
    assert out.stat().st_size < 1.1 * small.stat().st_size
