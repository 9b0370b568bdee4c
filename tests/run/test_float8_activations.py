"""float8 (E4M3) activations and weights, each with one scale, as TensorRT reads them."""

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
from tiny import normal

from onnxq import OnnxqError, Recipe, quantize, session
from onnxq.checking.rules import check_rules
from onnxq.plan import load_plan
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
NET = """g (float[2, 16, 12, 12] x) => (float[2, 64] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k, b)  r = Relu (a)
    c = Conv <pads = [1, 1, 1, 1]> (r, l)  s = Add (c, r)  t = Relu (s)
    e = GlobalAveragePool (t)  f = Flatten (e)  m = MatMul (f, w)  n = Sigmoid (m)  y = Gemm (n, v, d)
}"""
WEIGHTS = {
    "k": normal(16, 16, 3, 3),
    "l": normal(16, 16, 3, 3, seed=1),
    "b": normal(16, seed=2),
    "w": normal(16, 128, seed=3),
    "v": normal(128, 64, seed=4),
    "d": normal(64, seed=5),
}
E4M3 = ml_dtypes.float8_e4m3fn


@pytest.mark.usefixtures("twice_as_fast")
def test_activations_and_weights_have_one_scale_each(tmp_path: Path) -> None:
    model, data = tiny.save(tiny.model(NET, WEIGHTS), tmp_path), tmp_path / "data.npz"
    np.savez(data, x=normal(8, 2, 16, 12, 12, seed=7))
    recipe = Recipe("float8_e4m3", min_sqnr=-np.inf)
    done = quantize(model, tmp_path / "q.onnx", recipe, target="tensorrt", data=data)
    labels = {choice.node: choice.label for choice in done.plan}
    assert {labels[name] for name in "acmy"} == {"float8_e4m3 tensor"}
    assert check_rules(done.output, "tensorrt") == []
    # Three bits behind the point: 31 dB for each rounding of normally distributed numbers.
    assert done.check is not None and done.check.sqnr_plain > 27
    written = onnx.load(done.output)
    assert written.opset_import[0].version >= 19
    arrays = {tensor.name: tensor for tensor in written.graph.initializer}
    pairs = [node for node in written.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert len([node for node in pairs if node.op_type == "QuantizeLinear"]) >= 4
    for node in pairs:
        assert arrays[node.input[2]].data_type == TensorProto.FLOAT8E4M3FN and not arrays[node.input[1]].dims
        assert not numpy_helper.to_array(arrays[node.input[2]]).astype(np.float32).any()
    convolutions = {node.name: node for node in written.graph.node if node.op_type == "Conv"}
    assert "b" in convolutions["a"].input  # a bias in floats
    # What onnxruntime makes of the first activation and weight is what numpy's types say.
    first = next(node for node in pairs if node.op_type == "QuantizeLinear" and node.input[0] == "x")
    rounded = next(node for node in pairs if node.op_type == "DequantizeLinear" and node.input[0] == first.output[0])
    weight = next(node for node in pairs if node.output[0] == convolutions["a"].input[1])
    for name in (rounded.output[0], weight.output[0]):
        written.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    onnx.save(written, tmp_path / "outputs.onnx")
    x = normal(2, 16, 12, 12, seed=8) * 2
    session = onnxruntime.InferenceSession(tmp_path / "outputs.onnx", providers=["CPUExecutionProvider"])
    got, got_weight = session.run([rounded.output[0], weight.output[0]], {"x": x})
    scale = numpy_helper.to_array(arrays[first.input[1]])
    expected = np.clip(x / scale, -448, 448).astype(E4M3).astype(np.float32) * scale
    np.testing.assert_array_equal(got, expected)
    assert tiny.sqnr(WEIGHTS["k"], got_weight) > 29
    scale = numpy_helper.to_array(arrays[weight.input[1]])
    assert scale == pytest.approx(np.abs(WEIGHTS["k"]).max() / 448)
    np.testing.assert_array_equal(got_weight, (WEIGHTS["k"] / scale).astype(E4M3).astype(np.float32) * scale)


def test_a_plan_from_a_file_and_data(tmp_path: Path) -> None:
    model, data, path = tiny.save(tiny.model(NET, WEIGHTS), tmp_path), tmp_path / "data.npz", tmp_path / "plan.json"
    np.savez(data, x=normal(8, 2, 16, 12, 12, seed=7))
    recipe = Recipe("float8_e4m3", min_sqnr=-np.inf)
    with pytest.raises(OnnxqError, match="float8_e4m3 on tensorrt rounds activations to 8 bits: give --data"):
        quantize(model, tmp_path / "q.onnx", recipe, target="tensorrt")
    done = quantize(model, tmp_path / "q.onnx", recipe, target="tensorrt", data=data)
    path.write_text(done.plan.to_json(), encoding="utf-8")
    again = quantize(model, tmp_path / "r.onnx", recipe, target="tensorrt", data=data, plan=load_plan(path))
    assert [choice.label for choice in again.plan] == [choice.label for choice in done.plan]


ROUNDED = "r = Relu(x)  q = QuantizeLinear(r, s, z)  y = DequantizeLinear(q, s, z)"
FUNCTION = f'<domain: "local", opset_import: ["" : 21]> f (x, s, z) => (y) {{ {ROUNDED} }}'


@pytest.mark.parametrize(
    ("body", "zero"),
    [
        (f"z = Cast <to = 17> (zero)  {ROUNDED}", np.float32),
        (f"c = Identity (zero)  z = Reshape (c, flat)  {ROUNDED}", ml_dtypes.float8_e4m3fn),
        ("y = local.f (x, s, zero)", ml_dtypes.float8_e4m3fn),
    ],
)
def test_a_zero_point_whose_type_nobody_says_may_be_of_float8(body: str, zero: type, tmp_path: Path) -> None:
    """Then too a Relu in front would be lost: a cast one, one that is computed, one in a function."""
    constants: dict[str, NDArray] = {"s": np.array(0.1, np.float32), "zero": np.array(0, zero)}
    if "flat" in body:
        constants["flat"] = np.zeros(0, np.int64)
    text = f"g (float[2, 16] x) => (float[2, 16] y) {{ {body} }}"
    model = tiny.save(tiny.model(text, constants, opset=21, functions=FUNCTION), tmp_path)
    feed = {"x": normal(2, 16)}
    for got in (Session(model).run(feed), *(session(each).run(None, feed) for each in (model, model.read_bytes()))):
        assert got[0].min() == 0


DEEP = """g (float[1, 8, 12, 12] x) => (float[1, 8, 12, 12] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k)  r = ACTIVATION
    c = Conv <pads = [1, 1, 1, 1]> (r, l)  y = Sub (c, x) }"""


@pytest.mark.parametrize("activation", ["Relu (a)", "Clip (a, low, high)"])
@pytest.mark.parametrize("half", [False, True])
def test_what_cuts_off_in_front_is_not_lost(activation: str, half: bool, tmp_path: Path) -> None:
    """onnxruntime 1.32 takes rounding to float8 for rounding to integers whose least code is zero: it would drop a Relu
    in front, and not open a model with a Clip there."""
    constants: dict[str, NDArray] = {"k": 2 * normal(8, 8, 3, 3), "l": normal(8, 8, 3, 3, seed=1)}
    if "Clip" in activation:
        constants |= {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    text = DEEP.replace("ACTIVATION", activation)
    if half:
        text, constants = text.replace("float[", "float16["), {n: x.astype(np.float16) for n, x in constants.items()}
    model, data = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "data.npz"
    samples = np.random.default_rng(0).normal(size=(12, 1, 8, 12, 12)).astype(np.float16 if half else np.float32)
    np.savez(data, x=samples)
    recipe = Recipe("float8_e4m3", min_sqnr=-np.inf, keep_slow=True)
    done = quantize(model, tmp_path / "q.onnx", recipe, target="tensorrt", data=data)
    assert done.check is not None and done.check.sqnr_plain > 20
    assert {"a", "c"} <= {choice.node for choice in done.plan if "float8" in choice.label}
    feed = {"x": samples[0]}
    (wanted,) = Session(model).run(feed)
    for got in (*Session(done.output).run(feed), *session(done.output).run(None, feed)):
        assert tiny.sqnr(wanted, got) > 20
