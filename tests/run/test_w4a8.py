"""w4a8: codes of 4 bits that int8 kernels read, because a Cast widens them when the model is loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto
from tiny import normal

import onnxq
from onnxq import Recipe, Rule
from onnxq.plan import Method, in_float, load_plan
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")

NET = """g (float[N,8,12,12] x) => (float[N,10] y) {
    [first] a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    b = Relu(a)
    [second] c = Conv<pads=[1,1,1,1]>(b, w2, b2)
    d = Add(c, b)
    e = MaxPool<kernel_shape=[4,4], strides=[4,4]>(d)
    f = Flatten(e)
    [head] y = Gemm<transB=1>(f, w3, b3)
}"""
WEIGHTS: dict[str, NDArray] = {
    "w1": normal(32, 8, 3, 3) / 8,
    "b1": normal(32, seed=1) / 8,
    "w2": normal(32, 32, 3, 3, seed=2) / 16,
    "b2": normal(32, seed=3) / 8,
    "w3": normal(10, 288, seed=4) / 4,
    "b3": normal(10, seed=5),
}
#: Nodes stay where they were asked to be, whatever that costs.
ALL = Recipe("w4a8", keep_slow=True, min_sqnr=-np.inf)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(NET, WEIGHTS, opset=17), tmp_path, "net.onnx")


@pytest.fixture
def data() -> list[dict[str, NDArray]]:
    return [{"x": 10 * normal(1, 8, 12, 12, seed=10 + i)} for i in range(24)]


def stored(path: Path) -> dict[str, int]:
    return {each.name: each.data_type for each in onnx.load(path).graph.initializer}


def test_int8_kernels_run_on_four_bits(tmp_path: Path, model: Path, data: list[dict[str, NDArray]]) -> None:
    short = onnxq.quantize(model, tmp_path / "4.onnx", ALL, data=data)
    long = onnxq.quantize(model, tmp_path / "8.onnx", dataclasses.replace(ALL, scheme="w8a8"), data=data)
    assert short.check is not None and long.check is not None
    assert short.check.kernels == long.check.kernels and {"QLinearConv", "QGemm"} <= set(short.check.kernels)
    codes = [name for name, kind in stored(short.output).items() if kind == TensorProto.INT4]
    assert len(codes) == 3 and not any(kind == TensorProto.INT8 for kind in [stored(short.output)[c] for c in codes])
    of_weights = sum(w.size for name, w in WEIGHTS.items() if name[0] == "w")
    assert long.bytes_after - short.bytes_after > 0.4 * of_weights
    assert onnx.load(short.output).opset_import[0].version >= 21
    assert short.check.sqnr > 15 and [c.label for c in short.plan if c.format] == ["int4"] * 3


def test_the_file_computes_what_its_codes_stand_for(
    tmp_path: Path, model: Path, data: list[dict[str, NDArray]]
) -> None:
    """Against a w8a8 file of weights that are on the grid of 4 bits already: the same codes, times what 8 bits add."""
    short = onnxq.quantize(model, tmp_path / "4.onnx", ALL, data=data)
    session, reference = Session(short.output), onnx.load(short.output)
    for feed in data[:3]:
        got = session.run(feed)[0]
        wanted = tiny.evaluate(reference, **feed)[0]  # ONNX's own reference, without any fusion
        assert np.abs(got - wanted).max() < 0.02 * np.abs(wanted).max()


def test_float_kernels_get_eight_bits(tmp_path: Path, model: Path, data: list[dict[str, NDArray]]) -> None:
    """One scale for 4 bits of a channel is for int8 kernels."""
    done = onnxq.quantize(model, tmp_path / "4.onnx", ALL, data=data)
    choice = done.plan.choices["second"]
    assert choice.method is Method.STATIC and choice.format == "int4"
    assert (in_float(choice, "").method, in_float(choice, "").format) == (Method.STORED, "int8")


def test_accuracy_is_met_by_eight_bits(tmp_path: Path, model: Path, data: list[dict[str, NDArray]]) -> None:
    """Not by giving kernels back to float: what int8 kernels lose is weighed before their weights get shorter."""
    recipe = dataclasses.replace(ALL, min_sqnr=38.0)
    done = onnxq.quantize(model, tmp_path / "4.onnx", recipe, data=data)
    assert done.check is not None and done.check.sqnr >= 38
    formats = {choice.format for choice in done.plan.those(Method.STATIC) if choice.format}
    assert "int8" in formats and len(done.plan.those(Method.STATIC)) >= 3


def test_a_plan_says_it_again(tmp_path: Path, model: Path, data: list[dict[str, NDArray]]) -> None:
    first = onnxq.quantize(model, tmp_path / "a.onnx", ALL, data=data)
    path = tmp_path / "plan.json"
    path.write_text(first.plan.to_json(), encoding="utf-8")
    again = onnxq.quantize(model, tmp_path / "b.onnx", ALL, data=data, plan=load_plan(path))
    assert again.plan.forms == first.plan.forms and stored(again.output) == stored(first.output)


@pytest.mark.parametrize("reduce_range", [False, True])
def test_weights_are_shared(tmp_path: Path, data: list[dict[str, NDArray]], reduce_range: bool) -> None:
    """Two readers, one of which was given 8 bits: both have them, in int8 kernels."""
    text = """g (float[N,8,12,12] x) => (float[N,8,12,12] y) {
        [one] a = Conv<pads=[1,1,1,1]>(x, w)
        b = Relu(a)
        [two] y = Conv<pads=[1,1,1,1]>(b, w)
    }"""
    path = tiny.save(tiny.model(text, {"w": normal(8, 8, 3, 3) / 8}, opset=21), tmp_path, "net.onnx")
    recipe = dataclasses.replace(ALL, rules=(Rule("w8a8", "two"),), reduce_range=reduce_range)
    done = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=data)
    assert done.check is not None and done.check.kernels.get("QLinearConv") == 2 and done.check.sqnr > 15


def test_what_other_targets_make_of_it(tmp_path: Path, model: Path, data: list[dict[str, NDArray]]) -> None:
    done = onnxq.quantize(model, tmp_path / "q.onnx", ALL, data=data, target="onnxq")
    reasons = {choice.reason for choice in done.plan.those(Method.STATIC) if choice.format}
    assert reasons == {"no int8 kernel of onnxq reads int4: 8 bits a channel"}
    assert TensorProto.INT4 not in stored(done.output).values()
