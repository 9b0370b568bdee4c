"""Float models of quantized ones: the weights are what the codes stand for, by an independent reckoning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from tiny import normal

from onnxq import quantize, targets
from onnxq.cli import main
from onnxq.conversion.convert import convert
from onnxq.conversion.dequantize import dequantize
from onnxq.errors import BadModel, BadOutput, BadRecipe, NothingToDo
from onnxq.model.load import is_quantized, load_model
from onnxq.recipe import Recipe

pytestmark = pytest.mark.usefixtures("quick")
#: Products with a bias and a Relu, a product that shares a weight with another one, a lookup.
TEXT = """g (int64[n] ids, float[n, 96] x) => (float[n, 40] y, float[n, 96] t) {
    t = Gather (table, ids)
    s = Add (x, t)
    h = MatMul (s, w)  b = Add (h, bias)  r = Relu (b)
    y = Gemm <transB = 1> (r, v, c)
}"""
CONSTANTS = {
    "table": normal(50, 96, seed=4),
    "w": normal(96, 64),
    "bias": normal(64, seed=1),
    "v": normal(40, 64, seed=2),
    "c": normal(40, seed=3),
}
NET = """g (float[n, 3, 12, 12] x) => (float[n, 10] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k, kb)  r = Relu (a)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    d = Conv <pads = [1, 1, 1, 1], group = 8> (p, m)  q = Relu (d)  s = Add (q, p)
    f = Flatten (s)  y = Gemm <transB = 1> (f, v)
}"""
KERNELS = {
    "k": normal(8, 3, 3, 3),
    "kb": normal(8, seed=1),
    "m": normal(8, 1, 3, 3, seed=2),
    "v": normal(10, 288, seed=3),
}


def feed() -> dict[str, NDArray]:
    rng = np.random.default_rng(0)
    return {"ids": np.array([1, 49, 0]), "x": rng.standard_normal((3, 96)).astype(np.float32)}


def run(path: Path, feed: dict[str, NDArray]) -> list[NDArray]:
    """By the definitions of the operators, nothing fused."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options).run(None, feed)


def ops(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("target", ["onnx", "ort-cpu", "onnxq"])
@pytest.mark.parametrize(
    "scheme", ["w4a16", "int8", "nf4", "mxfp4", "nvfp4", "bfloat16", "nf4_dq", "q4_k", "q6_k", "int3"]
)
def test_computes_what_the_codes_say(scheme: str, target: str, tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    small, back = tmp_path / "small.onnx", tmp_path / "back.onnx"
    if scheme != "w4a16" and targets.get(target).refusal(scheme):
        pytest.skip(f"{target} has no {scheme}")
    quantize(model, small, Recipe(scheme, min_sqnr=-np.inf, keep_slow=True), target=target, check=False)
    dequantize(small, back)
    assert ops(back) <= {"MatMul", "Gemm", "Gather", "Add", "Relu", "Max", "Transpose", "Identity"}
    wanted, got = run(small, feed()), run(back, feed())
    # Kernels that read 4 and 8 bits may round activations; bodies and chains of standard operators do not.
    least = 38 if target == "ort-cpu" and scheme in ("w4a16", "int8") else 110
    assert min(tiny.sqnr(a, b) for a, b in zip(wanted, got, strict=True)) > least
    names = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(back).graph.initializer}
    assert sum(array.size for array in names.values()) >= 96 * 64 + 50 * 96 + 40 * 64


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.feeds = iter([{"x": rng.standard_normal((4, 3, 12, 12)).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> dict[str, NDArray] | None:
        return next(self.feeds, None)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_static_models_of_onnxruntime(
    kind: QuantFormat, per_channel: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, small, back = tiny.save(tiny.model(NET, KERNELS), tmp_path), tmp_path / "s.onnx", tmp_path / "b.onnx"
    quantize_static(
        model, small, Reader(), kind, per_channel=per_channel, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )  # fmt: skip
    done = dequantize(small, back)
    assert done.check is not None and "rounds activations" in done.check.notes[-1]
    assert ops(back) <= {"Conv", "Relu", "Clip", "MaxPool", "Add", "Flatten", "Gemm", "Reshape"}
    x = {"x": np.random.default_rng(1).standard_normal((2, 3, 12, 12)).astype(np.float32)}
    in_float, rounded, restored = (run(path, x)[0] for path in (model, small, back))
    # Without the rounding of activations it is nearer to the float model than the quantized one is.
    assert tiny.sqnr(in_float, restored) > tiny.sqnr(in_float, rounded)
    assert tiny.sqnr(rounded, restored) > 25


def test_what_a_region_was_does_not_name_its_steps(tmp_path: Path) -> None:
    """Each node of its body would bear the names of all."""
    model, small = tiny.save(tiny.model(NET, KERNELS), tmp_path), tmp_path / "s.onnx"
    recipe = Recipe("w8a8", min_sqnr=-np.inf, keep_slow=True)
    quantize(model, small, recipe, target="onnxq", data=list(Reader().feeds), check=False)
    assert any(node.op_type == "Region" and node.metadata_props for node in onnx.load(small).graph.node)
    plain = dequantize(small, tmp_path / "f.onnx", check=False).output
    islands = convert(small, "onnx", tmp_path / "i.onnx", check=False).output
    for path in (plain, islands):
        assert not any(node.metadata_props for node in onnx.load(path).graph.node)


def test_relu_that_a_range_stood_for_is_kept(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 16] y) {
        h = MatMul (x, w)  q = QuantizeLinear (h, s, z)  d = DequantizeLinear (q, s, z)  y = MatMul (d, w)
    }"""
    constants = {"w": normal(16, 16), "s": np.float32(0.05), "z": np.uint8(0)}
    model = tiny.save(tiny.model(text, {k: np.asarray(v) for k, v in constants.items()}), tmp_path)
    dequantize(model, tmp_path / "b.onnx")
    x = {"x": np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)}
    assert tiny.sqnr(run(model, x)[0], run(tmp_path / "b.onnx", x)[0]) > 25


def test_codes_cut_off_what_a_clip_before_them_leaves_below_zero(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 16] y) {
        h = MatMul (x, w)  c = Clip (h, l, u)
        q = QuantizeLinear (c, s, z)  d = DequantizeLinear (q, s, z)  y = MatMul (d, w)
    }"""
    numbers = {"l": np.float32(-1), "u": np.float32(1), "s": np.float32(1 / 255), "z": np.uint8(0)}
    constants = {"w": normal(16, 16), **{name: np.asarray(x) for name, x in numbers.items()}}
    model = tiny.save(tiny.model(text, constants), tmp_path)
    done = dequantize(model, tmp_path / "b.onnx")
    assert done.check is not None and "a Clip that begins below zero" in done.check.notes[-1]
    x = {"x": np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)}
    assert tiny.sqnr(run(model, x)[0], run(tmp_path / "b.onnx", x)[0]) > 25


def test_dynamic_models_of_onnxruntime(tmp_path: Path) -> None:
    model, small, back = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path), tmp_path / "s.onnx", tmp_path / "b.onnx"
    quantize_dynamic(model, small, op_types_to_quantize=["MatMul", "Gemm"])
    assert "MatMulInteger" in ops(small)
    dequantize(small, back)
    assert not {"MatMulInteger", "DynamicQuantizeLinear"} & ops(back)
    assert tiny.sqnr(run(small, feed())[0], run(back, feed())[0]) > 30


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats(dtype: str, tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    quantize(model, tmp_path / "s.onnx", "w4a16", target="onnx", check=False)
    full, short = (dequantize(tmp_path / "s.onnx", tmp_path / f"{d}.onnx", dtype=d) for d in ("float32", dtype))
    assert short.bytes_after < 0.6 * full.bytes_after
    got, wanted = run(short.output, feed())[0], run(full.output, feed())[0]
    assert tiny.sqnr(wanted, got) > (60 if dtype == "float16" else 40)


def test_what_float16_does_not_hold_is_named_as_the_model_has_it(tmp_path: Path) -> None:
    w = CONSTANTS["w"] * np.float32(1e7)
    model = tiny.save(tiny.model(TEXT, CONSTANTS | {"w": w}), tmp_path)
    quantize(model, tmp_path / "s.onnx", "w8a16", target="onnx", check=False)
    assert "w_int8" in {constant.name for constant in onnx.load(tmp_path / "s.onnx").graph.initializer}
    message = "^weight 'w_int8' of '.+' is up to .*, and float16 up to 65504: choose --dtype bfloat16 or float32$"
    with pytest.raises(BadModel, match=message):
        dequantize(tmp_path / "s.onnx", tmp_path / "b.onnx", dtype="float16")
    dequantize(tmp_path / "s.onnx", tmp_path / "b.onnx", dtype="bfloat16")


def test_the_floats_are_a_float_model_and_what_is_made_of_them_is_none(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    quantize(model, tmp_path / "s.onnx", "fp16", check=False)
    assert is_quantized(load_model(tmp_path / "s.onnx")) == "by onnxq"
    floats = dequantize(tmp_path / "s.onnx", tmp_path / "floats.onnx").output
    assert is_quantized(load_model(floats)) is None
    quantize(floats, tmp_path / "again.onnx", "fp16", check=False)
    assert is_quantized(load_model(tmp_path / "again.onnx")) == "by onnxq"


def test_refusals(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    with pytest.raises(NothingToDo, match="nothing in it is quantized"):
        dequantize(model, tmp_path / "b.onnx")
    with pytest.raises(BadRecipe, match="unknown type 'int8'"):
        dequantize(model, tmp_path / "b.onnx", dtype="int8")
    quantize(model, tmp_path / "s.onnx", "w4a16", check=False)
    with pytest.raises(BadOutput, match="--force"):
        dequantize(tmp_path / "s.onnx", model)
    assert not (tmp_path / "b.onnx").exists()


def test_codes_that_do_not_fit_their_sizes(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    quantize(model, tmp_path / "s.onnx", "w4a16", check=False)
    proto = onnx.load(tmp_path / "s.onnx")
    product = next(node for node in proto.graph.node if node.op_type == "MatMulNBits")
    next(a for a in product.attribute if a.name == "N").i = 1000
    onnx.save(proto, tmp_path / "odd.onnx")
    with pytest.raises(BadModel, match="cannot be read"):
        dequantize(tmp_path / "odd.onnx", tmp_path / "b.onnx")
    assert not (tmp_path / "b.onnx").exists()


def test_command(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    quantize(model, tmp_path / "s.onnx", "w4a16", check=False)
    words = ["dequantize", str(tmp_path / "s.onnx"), "-o", str(tmp_path / "b.onnx")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0 and "weights in float32" in done.output, done.output
    said = json.loads(CliRunner().invoke(main, [*words, "--force", "--json"]).stdout)
    assert said["dtype"] == "float32" and said["check"]["sqnr"] > 35


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_may_lie_beside_the_model(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of every model of a few hundred megabytes do: what is compared then is what was written."""
    monkeypatch.chdir(tmp_path)
    tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    quantize("model.onnx", "q.onnx", Recipe("w8a16", keep_slow=True), check=False)
    done = CliRunner().invoke(main, ["dequantize", "q.onnx", "--dtype", dtype, "-o", "f.onnx", "--shard-size", "5kB"])
    assert done.exit_code == 0, done.stderr
    assert len([*tmp_path.glob("f.onnx.*.data")]) > 1
    wanted, got = (onnxruntime.InferenceSession(name).run(None, feed()) for name in ("q.onnx", "f.onnx"))
    for one, two in zip(wanted, got, strict=True):
        np.testing.assert_allclose(one, two, rtol=0.02, atol=0.02 * np.abs(one).max())


def test_weights_in_float64_are_called_that(tmp_path: Path) -> None:
    text = "g (double[1, 64] x) => (double[1, 64] y) { y = MatMul(x, w) }"
    model = tiny.save(tiny.model(text, {"w": tiny.normal(64, 64).astype(np.float64)}), tmp_path)
    quantize(model, tmp_path / "s.onnx", Recipe("w4a16", keep_slow=True), check=False)
    done = dequantize(tmp_path / "s.onnx", tmp_path / "b.onnx")
    assert done.dtype == "float64"
    (weight,) = onnx.load(done.output).graph.initializer
    assert weight.data_type == onnx.TensorProto.DOUBLE
    assert dequantize(tmp_path / "s.onnx", tmp_path / "c.onnx", dtype="float16").dtype == "float16"
