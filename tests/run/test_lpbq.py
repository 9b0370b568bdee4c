"""LPBQ of Qualcomm's processors: int4 in blocks whose scales are integers times one float a channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from tiny import normal

from onnxq import OnnxqError, Recipe, formats, quantize
from onnxq.checking.rules import check_rules
from onnxq.conversion.convert import Converted, convert
from onnxq.formats import Granularity
from onnxq.formats.kinds.super_blocks import StoredScales
from onnxq.pipeline import Result
from onnxq.plan import load_plan
from onnxq.targets.rules import findings

pytestmark = pytest.mark.usefixtures("quick")
#: Rows of 128 and 96, and of 72, which are no whole blocks.
PRODUCTS = """g (float[2, 8, 128] x) => (float[2, 8, 64] y) {
    h = MatMul (x, a)  e = Add (h, b)  r = Relu (e)  m = MatMul (r, c)  t = Tanh (m)  y = MatMul (t, d)
}"""
WEIGHTS = {"a": normal(128, 96), "b": normal(96, seed=3), "c": normal(96, 72, seed=1), "d": normal(72, 64, seed=2)}


def made(folder: Path, scheme: str, text: str = PRODUCTS, **options: object) -> Result:
    weights = {name: array.copy() for name, array in WEIGHTS.items()}
    weights["a"][:, 5] = 0  # a channel without a scale of its own
    model = tiny.save(tiny.model(text, weights), folder)
    np.savez(folder / "data.npz", x=normal(8, 2, 8, 128, seed=9))
    recipe = Recipe(scheme, min_sqnr=-np.inf, **options)  # type: ignore[arg-type]
    return quantize(model, folder / f"{scheme}.onnx", recipe, target="qnn", data=folder / "data.npz", force=True)


def blocks(done: Result | Converted) -> dict[str, tuple[onnx.NodeProto, onnx.NodeProto, dict[str, NDArray]]]:
    """By product, what makes its weight and the scales of that; and the constants."""
    model = onnx.load(done.output)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    by = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for node in model.graph.node:
        weight = by.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and any(a.name == "block_size" for a in weight.attribute):
            found[node.name] = weight, by[weight.input[1]], arrays
    return found


@pytest.mark.parametrize(("scheme", "activations"), [("w4a16", np.uint16), ("w4a8", np.uint8)])
def test_scales_are_integers_times_one_float_a_channel(scheme: str, activations: type, tmp_path: Path) -> None:
    """The law, and the numbers of plain numpy: what onnxruntime makes of the file is what the format says."""
    done = made(tmp_path, scheme)
    labels = {choice.node: choice.label for choice in done.plan}
    assert (labels["h"], labels["m"], labels["y"]) == ("lpbq b64", "lpbq b32", "int8 tensor")  # 72 is no whole block
    found = blocks(done)
    assert set(found) == {"h", "m"}
    model = onnx.load(done.output)
    rounded = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    for name, (weight, scales, arrays) in found.items():
        codes, steps, factors = arrays[weight.input[0]].astype(int), arrays[scales.input[0]], arrays[scales.input[1]]
        assert {arrays[node.input[2]].dtype for node in rounded} == {np.dtype(activations)}
        assert steps.dtype == np.uint8 and steps.min() >= 1 and steps.max() == 15
        assert factors.shape == (codes.shape[1],) and (factors > 0).all()
        assert codes.min() >= -8 and codes.max() <= 7
        # In 8 bits of the channel's own float the codes are what an int8 kernel sums up.
        block = codes.shape[0] // steps.shape[0]
        wide = codes * np.repeat(steps.astype(int), block, axis=0)
        assert wide.min() >= -128 and wide.max() <= 127
        expected = codes.astype(np.float32) * np.repeat(steps.astype(np.float32) * factors, block, axis=0)
        source = WEIGHTS["a" if name == "h" else "c"].copy()
        if name == "h":
            source[:, 5] = 0
            assert not codes[:, 5].any()
        assert tiny.sqnr(source, expected) > 17
        model.graph.output.append(onnx.helper.make_tensor_value_info(weight.output[0], TensorProto.FLOAT, None))
        model.graph.output.append(onnx.helper.make_tensor_value_info(scales.output[0], TensorProto.FLOAT, None))
        onnx.save(model, tmp_path / "outputs.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "outputs.onnx", providers=["CPUExecutionProvider"])
        feed = {"x": normal(2, 8, 128, seed=1)}
        got, got_scales = session.run([weight.output[0], scales.output[0]], feed)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(got_scales, steps.astype(np.float32) * factors)
    assert check_rules(done.output, "qnn") == []
    assert done.check is not None and done.check.sqnr > 12


def test_the_whole_file_is_what_numpy_computes(tmp_path: Path) -> None:
    """Products of codes, summed up in integers by channel, as a kernel that widens them to 8 bits does."""
    done = made(tmp_path, "w4a16")
    weight, scales, arrays = blocks(done)["h"]
    model = onnx.load(done.output)
    x_scale, x_zero = (arrays[n] for n in next(n for n in model.graph.node if n.op_type == "QuantizeLinear").input[1:])
    x = normal(2, 8, 128, seed=4)
    q = np.clip(np.rint(x / x_scale) + int(x_zero), 0, 65535).astype(np.int64) - int(x_zero)
    steps = arrays[scales.input[0]].astype(np.int64)
    wide = arrays[weight.input[0]].astype(np.int64) * np.repeat(steps, 64, axis=0)
    expected = (q @ wide) * (float(x_scale) * arrays[scales.input[1]].astype(np.float64))
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "outputs.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "outputs.onnx", providers=["CPUExecutionProvider"])
    assert tiny.sqnr(expected, session.run(["h"], {"x": x})[0]) > 100


def test_a_gemm_has_eight_bits(tmp_path: Path) -> None:
    text = """g (float[2, 8, 128] x) => (float[16, 64] y) {
        h = MatMul (x, a)  s = Constant <value_ints = [16, 96]> ()  n = Reshape (h, s)
        m = Gemm (n, c)  y = MatMul (m, d)
    }"""
    done = made(tmp_path, "w4a16", text)
    assert {c.node: (c.label, c.reason) for c in done.plan}["m"] == (
        "int8 tensor",
        "QNN's provider has blocks for the matrix of a MatMul only: 8 bits",
    )
    assert check_rules(done.output, "qnn") == []


def test_blocks_are_those_that_the_user_names(tmp_path: Path) -> None:
    done = made(tmp_path, "w4a16", block_size=16)
    assert [c.label for c in done.plan if c.op == "MatMul"] == ["lpbq b16", "lpbq b16", "int8 tensor"]
    assert check_rules(done.output, "qnn") == []


def test_weights_alone_are_4_bits_and_4_for_each_scale() -> None:
    w = normal(48, 512)
    q = formats.quantize(w, "lpbq", Granularity(1, 64))
    assert isinstance(q.nested, StoredScales) and q.bits_per_weight == 4 + 4 / 64 + 32 / 512
    per_channel = formats.quantize(w, "int4", Granularity(0))
    assert tiny.sqnr(w, q.dequantize()) > tiny.sqnr(w, per_channel.dequantize()) + 2.5
    for magnitude in (0.0, 1e-30, 1e30):
        other = formats.quantize(w * np.float32(magnitude), "lpbq", Granularity(1, 64)).dequantize()
        assert np.isfinite(other).all() and (tiny.sqnr(w * magnitude, other) > 15 if magnitude else not other.any())


LPBQ = """g (float[2, 32] x) => (float[2, 4] y) {
    s = DequantizeLinear <axis = 1> (t, f, z)
    w = DequantizeLinear <axis = 0, block_size = 16> (c, s, o)  y = MatMul (x, w)
}"""


def change(name: str, array: NDArray) -> Callable[[dict[str, NDArray]], None]:
    return lambda constants: constants.update({name: array})


@pytest.mark.parametrize(
    ("spoil", "text", "says"),
    [
        (change("t", np.zeros((2, 4), np.uint8)), LPBQ, "integers from 1 to 16"),
        (change("t", np.full((2, 4), 17, np.uint8)), LPBQ, "integers from 1 to 16"),
        (change("z", np.ones(4, np.uint8)), LPBQ, "symmetric"),
        (change("x", np.ones(4, np.uint8)), LPBQ.replace("(c, s, o)", "(c, s)"), "no zero points"),
        (change("t", np.ones((4, 4), np.uint8)), LPBQ.replace("size = 16", "size = 8"), "whole blocks of 16"),
        (change("t", np.ones((2, 4), np.int8)), LPBQ, "codes of 8 bits with one scale a channel"),
        (change("b", np.ones(4, np.float32)), LPBQ.replace("MatMul (x, w)", "Gemm (x, w, b)"), "loses the bias"),
    ],
)
def test_rules_find_blocks_that_the_provider_does_not_read(
    spoil: Callable[[dict[str, NDArray]], None], text: str, says: str
) -> None:
    nibbles = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    constants = {
        "c": np.ones((32, 4), nibbles),
        "o": np.zeros((2, 4), nibbles),
        "t": np.full((2, 4), 3, np.uint8),
        "f": np.full(4, 0.1, np.float32),
        "z": np.zeros(4, np.uint8),
    }

    def found(text: str) -> list[str]:
        model = tiny.read(tiny.model(text, {n: a for n, a in constants.items() if n in text}, opset=21, ir_version=10))
        return [finding.says for finding in findings(model, "qnn") if finding.rule == "blocks_of_weights"]

    assert found(LPBQ) == []
    spoil(constants)
    if constants["t"].dtype == np.int8:
        constants["z"] = np.zeros(4, np.int8)
    if constants["t"].shape[0] == 4:
        constants["o"] = np.zeros((4, 4), nibbles)
    assert any(says in each for each in found(text)), found(text)


def test_codes_come_back_into_such_blocks(tmp_path: Path) -> None:
    """Of a product in integers; beside floats the provider has no such blocks, and the same codes are unpacked."""
    done = made(tmp_path, "w4a16")
    for to in ("qnn", "onnxq"):
        other = convert(done.output, to, tmp_path / f"{to}.onnx")
        assert set(other.kept) == {"h", "m"} and not other.again
    again = blocks(convert(tmp_path / "qnn.onnx", "qnn", tmp_path / "again.onnx"))
    back = blocks(convert(tmp_path / "onnxq.onnx", "qnn", tmp_path / "back.onnx"))
    assert set(again) == set(back) == {"h", "m"}
    for name, (weight, scales, arrays) in blocks(done).items():
        for found, found_scales, found_arrays in (again[name], back[name]):
            for one, other_one in ((weight, found), (scales, found_scales)):
                for a, b in zip(one.input[:2], other_one.input[:2], strict=True):
                    if a in arrays:
                        np.testing.assert_array_equal(arrays[a], found_arrays[b])
    assert check_rules(tmp_path / "back.onnx", "qnn") == []
    model = tmp_path / "model.onnx"
    quantize(model, tmp_path / "own.onnx", Recipe("lpbq", min_sqnr=-np.inf, keep_slow=True), target="onnxq")
    alone = convert(tmp_path / "own.onnx", "qnn", tmp_path / "alone.onnx")
    assert len(alone.kept) == 3 and {choice.format for choice in alone.plan} == {"int4"}


def test_a_plan_from_a_file_may_name_blocks(tmp_path: Path) -> None:
    done = made(tmp_path, "w4a8")
    path = tmp_path / "plan.json"
    path.write_text(done.plan.to_json(), encoding="utf-8")
    again = quantize(
        tmp_path / "model.onnx",
        tmp_path / "again.onnx",
        Recipe("w4a8", min_sqnr=-np.inf),
        target="qnn",
        data=tmp_path / "data.npz",
        plan=load_plan(path),
    )
    assert [choice.label for choice in again.plan] == [choice.label for choice in done.plan]
    with pytest.raises(OnnxqError, match="qnn cannot hold lpbq weights: its blocks are for integer activations"):
        quantize(tmp_path / "model.onnx", tmp_path / "other.onnx", "lpbq", target="qnn")
