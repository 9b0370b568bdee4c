"""Target onnxq writes regions, and what is written computes the same with and without the library."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from onnx import TensorProto, helper, numpy_helper
from tiny import sqnr

import onnxq
from onnxq.drafts.tuned import Drafts
from onnxq.model.types import Types
from onnxq.passes.regions.make_regions import MakeRegions
from onnxq.passes.regions.step_names import names_of, with_names
from onnxq.plan import Choice, Method
from onnxq.runtime import native
from onnxq.runtime.session import Session

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("quick")


def network(folder: Path) -> Path:
    """Convolutions around a residual that comes from outside, and a product at the end."""
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.standard_normal((24, 3, 3, 3)) / 5,
        "w1": rng.standard_normal((24, 1, 3, 3)) / 3,
        "w2": rng.standard_normal((24, 24, 1, 1)) / 5,
        "g": rng.standard_normal((24, 10)) / 5,
    }
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w0"], ["a0"], pads=[1, 1, 1, 1]),
        make("Relu", ["a0"], ["a"]),
        make("Conv", ["a", "w1"], ["b0"], pads=[1, 1, 1, 1], group=24),
        make("Clip", ["b0", "low", "high"], ["b"]),
        make("Conv", ["b", "w2"], ["c"]),
        make("Softsign", ["a"], ["d"]),
        make("Add", ["c", "d"], ["e"]),
        make("GlobalAveragePool", ["e"], ["p"]),
        make("Flatten", ["p"], ["f"]),
        make("Gemm", ["f", "g"], ["y"]),
    ]
    constants = {name: np.asarray(w, np.float32) for name, w in weights.items()}
    constants |= {"low": np.float32(0), "high": np.float32(6)}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("target", ["onnxq", "ort-cpu", "onnx"])
def test_only_target_onnxq_writes_regions(tmp_path: Path, target: str) -> None:
    path, out = network(tmp_path), tmp_path / "out.onnx"
    x = np.random.default_rng(1).standard_normal((4, 3, 16, 16)).astype(np.float32)
    data = [{"x": x[i : i + 1]} for i in range(4)]
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target=target, data=data, check=False)
    assert ("Region" in operators(out)) == (target == "onnxq")
    wanted = ort.InferenceSession(str(path)).run(None, {"x": x})[0]
    bare = ort.InferenceSession(str(out)).run(None, {"x": x})[0]
    assert sqnr(wanted, bare) > 20
    if native.path() is not None:
        assert sqnr(bare, onnxq.session(out).run(None, {"x": x})[0]) > 30  # a tie here and there


def test_means_and_a_head_of_products_stay_in_the_region(tmp_path: Path) -> None:
    """As exporters write squeeze-and-excitation, a mean at the end, and a head of two layers."""
    rng = np.random.default_rng(0)
    sizes = {"w0": (24, 3, 3, 3), "s0": (16, 24, 1, 1), "s1": (24, 16, 1, 1), "g0": (24, 32), "g1": (32, 10)}
    constants = {name: rng.standard_normal(size).astype(np.float32) / 5 for name, size in sizes.items()}
    constants |= {"axes": np.array([2, 3], np.int64)}
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w0"], ["a0"], pads=[1, 1, 1, 1]),
        make("Relu", ["a0"], ["a"]),
        make("ReduceMean", ["a", "axes"], ["m"], keepdims=1),
        make("Conv", ["m", "s0"], ["e0"]),
        make("Relu", ["e0"], ["e"]),
        make("Conv", ["e", "s1"], ["f"]),
        make("Sigmoid", ["f"], ["h"]),
        make("Mul", ["a", "h"], ["b"]),
        make("Conv", ["b", "w1"], ["c"]),
        make("ReduceMean", ["c", "axes"], ["p"], keepdims=0),
        make("Gemm", ["p", "g0"], ["q0"]),
        make("Relu", ["q0"], ["q"]),
        make("Gemm", ["q", "g1"], ["y"]),
    ]
    constants["w1"] = rng.standard_normal((24, 24, 1, 1)).astype(np.float32) / 5
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    x = rng.standard_normal((4, 3, 16, 16)).astype(np.float32)
    onnxq.quantize(path, out, "w8a8", target="onnxq", data=[{"x": each[None]} for each in x], check=False)
    assert operators(out) == ["Region"]
    wanted = ort.InferenceSession(str(path)).run(None, {"x": x})[0]
    assert sqnr(wanted, ort.InferenceSession(str(out)).run(None, {"x": x})[0]) > 20


def test_a_checked_file_has_its_regions_and_says_so(tmp_path: Path) -> None:
    path, out = network(tmp_path), tmp_path / "out.onnx"
    data = [{"x": np.random.default_rng(i).standard_normal((1, 3, 16, 16)).astype(np.float32)} for i in range(4)]
    result = onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data)
    assert result.check is not None and result.check.sqnr > 20
    assert "Region" in operators(out)
    # Without the library bodies are inlined, and onnxruntime's kernels run.
    ran = "Region" if native.path() is not None else "QLinearConv"
    assert ran in result.check.kernels
    if native.path() is not None:
        region = result.check.regions[0]
        assert region.steps[0].does == "quantize" and "conv" in {step.does for step in region.steps}
        assert region.ms == sum(step.ms for step in region.steps) and "longest: " in str(region)
        assert {step.node for step in region.steps if step.does == "conv"} <= {choice.node for choice in result.plan}


def test_what_has_no_known_rank_stays_outside(tmp_path: Path) -> None:
    """A pool may read volumes, which regions do not have, and an operand may have fewer dimensions than the other."""
    path, out = network(tmp_path), tmp_path / "out.onnx"
    data = [{"x": np.zeros((1, 3, 16, 16), np.float32)}]
    onnxq.quantize(path, out, "w8a8", target="ort-cpu", data=data, check=False)
    model = ir.load(out)
    MakeRegions({}, Types())(model)
    left = [node.op_type for node in model.graph]
    assert "Region" in left and {"Add", "GlobalAveragePool"} <= set(left)


@pytest.mark.parametrize("target", ["onnxq", "ort-cpu", "onnx"])
def test_bf16_without_data_writes_regions(tmp_path: Path, target: str) -> None:
    """One region around all that is float, whose body is as near to float as rounded weights are."""
    path, out = network(tmp_path), tmp_path / "out.onnx"
    x = np.random.default_rng(1).standard_normal((4, 3, 16, 16)).astype(np.float32)
    onnxq.quantize(path, out, "bf16", target=target, check=False)
    assert ("Bf16Region" in operators(out)) == (target == "onnxq")
    if target == "onnxq":  # small weights are computed with in bfloat16 too
        assert "Conv" not in operators(out)
    types = {i.name: i.data_type for i in onnx.load(out).graph.initializer}
    assert TensorProto.BFLOAT16 in types.values()
    wanted = ort.InferenceSession(str(path)).run(None, {"x": x})[0]
    assert sqnr(wanted, ort.InferenceSession(str(out)).run(None, {"x": x})[0]) > 40
    if native.path() is not None:
        assert sqnr(wanted, onnxq.session(out).run(None, {"x": x})[0]) > 35


DECODER = """g (float[n, 8, 6, 6] x) => (float[n, 8, 12, 12] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = ConvTranspose<strides = [2, 2]MORE>(a, k)  c = Relu(b)
    d = Conv(c, u)  e = Resize<mode = "linear">(a, , twice)  f = Add(d, e)  y = Conv<pads = [1, 1, 1, 1]>(f, v) }"""


def _decoder(folder: Path, more: str = "") -> Path:
    constants = {
        name: tiny.normal(8, 8, size, size, seed=size) / 9 for name, size in zip("wvk", (3, 3, 2), strict=True)
    }
    constants |= {"u": tiny.normal(8, 8, 1, 1) / 3, "twice": np.array([1, 1, 2, 2], np.float32)}
    return tiny.save(tiny.model(DECODER.replace("MORE", more), constants), folder)


@pytest.mark.parametrize("scheme", ["w8a8", "bf16"])
def test_decoders_are_one_region(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "scalar")  # bf16 regions run by name anywhere
    path, out = _decoder(tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 6, 6, seed=i)} for i in range(4)]
    recipe = onnxq.Recipe(scheme, keep_slow=True)
    onnxq.quantize(path, out, recipe, target="onnxq", data=data if scheme == "w8a8" else None, check=False)
    assert operators(out) == ["Region" if scheme == "w8a8" else "Bf16Region"]
    wanted = ort.InferenceSession(str(path)).run(None, data[0])[0]
    for session in (ort.InferenceSession(str(out)), onnxq.session(out)):
        assert sqnr(wanted, session.run(None, data[0])[0]) > 25


def test_transposed_convolutions_that_regions_do_not_have_stay_float(tmp_path: Path) -> None:
    path, out = _decoder(tmp_path, ', auto_pad = "SAME_UPPER"'), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 6, 6, seed=i)} for i in range(4)]
    made = onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False)
    (choice,) = (choice for choice in made.plan if choice.op == "ConvTranspose")
    assert choice.method is Method.STORED and "no step for its attributes" in choice.reason
    assert "ConvTranspose" in operators(out)


def test_transposed_convolutions_with_few_outputs_stay_float(tmp_path: Path) -> None:
    text = """g (float[n, 8, 6, 6] x) => (float[n, 3, 24, 24] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = ConvTranspose<strides = [2, 2]>(a, k)  c = Conv(b, u)
        y = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(c, few) }"""
    sizes = {"w": (8, 8, 3, 3), "k": (8, 8, 2, 2), "u": (24, 8, 1, 1), "few": (24, 3, 4, 4)}
    constants = {name: tiny.normal(*size, seed=i) / 9 for i, (name, size) in enumerate(sizes.items())}
    path, out = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 6, 6, seed=i)} for i in range(4)]
    made = onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False)
    first, last = (choice for choice in made.plan if choice.op == "ConvTranspose")
    assert first.method is Method.STATIC
    assert last.method is Method.STORED and "no faster in int8 with 3 outputs" in last.reason


def test_bf16_constants_that_add_channels_stay_outside(tmp_path: Path) -> None:
    text = """g (float[n, 16, h, w] x) => (float[n, 16, h, w] y) {
        a = Conv(x, one)  b = Add(a, k)  c = Relu(b)  y = Conv(c, u) }"""
    constants = {"one": tiny.normal(1, 16, 5, 5), "k": tiny.normal(16, 1, 1), "u": tiny.normal(16, 16, 1, 1, seed=1)}
    path, out = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "q.onnx"
    onnxq.quantize(path, out, "bf16", target="onnxq", check=False)
    assert operators(out).count("Bf16Region") == 2 and "Add" in operators(out)
    x = {"x": tiny.normal(2, 16, 9, 9, seed=2)}
    wanted = ort.InferenceSession(str(path)).run(None, x)[0]
    assert sqnr(wanted, onnxq.session(out).run(None, x)[0]) > 35


@pytest.mark.parametrize("is_slow", [False, True])
def test_bf16_regions_stay_where_they_are_not_slower_than_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    path, out, again = network(tmp_path), tmp_path / "out.onnx", tmp_path / "again.onnx"
    monkeypatch.setattr(Drafts, "_is_slow", lambda self, plan, proof: is_slow)
    result = onnxq.quantize(path, out, "bf16", target="onnxq")
    assert ("Bf16Region" in operators(out)) == (not is_slow)
    assert any("slower than float" in choice.reason for choice in result.plan) == is_slow
    monkeypatch.setattr(Drafts, "_is_slow", lambda self, plan, proof: not is_slow)
    onnxq.quantize(path, again, "bf16", target="onnxq", plan=result.plan)  # a plan that is given is carried out
    assert operators(again) == operators(out)


STEP = "c = Conv<pads = [1, 1, 1, 1]>(s, w)  d = Relu(c)  e = Conv<pads = [1, 1, 1, 1]>(d, v)  z = Add(e, i)"
SCAN = f"""g (float[T, 1, 8, 6, 6] x, float[1, 8, 6, 6] start) => (float[1, 8, 6, 6] last, float[T, 1, 8, 6, 6] y) {{
    last, y = Scan<num_scan_inputs = 1, body = b (float[1, 8, 6, 6] s, float[1, 8, 6, 6] i)
        => (float[] z, float[] o) {{ {STEP}  o = Tanh(z) }}>(start, x) }}"""
LOOP = f"""g (int64 n, float[1, 8, 6, 6] start, float[1, 8, 6, 6] i) => (float[1, 8, 6, 6] last) {{
    go = Constant<value = bool {{1}}>()
    last = Loop<body = b (int64 k, bool more, float[1, 8, 6, 6] s) => (bool on, float[1, 8, 6, 6] z) {{
        {STEP}  on = Identity(more) }}>(n, go, start) }}"""


@pytest.mark.parametrize("text", [SCAN, LOOP], ids=["Scan", "Loop"])
def test_bodies_that_are_run_again_and_again(tmp_path: Path, text: str) -> None:
    """onnxruntime wants to know the shapes of a Scan's outputs, which a region does not tell: it has none."""
    weights = {"w": tiny.normal(8, 8, 3, 3) / 16, "v": tiny.normal(8, 8, 3, 3, seed=1) / 16}
    path, out = tiny.save(tiny.model(text, weights), tmp_path), tmp_path / "q.onnx"
    start = tiny.normal(1, 8, 6, 6, seed=2)
    scans = text is SCAN
    data = [
        {"start": start, **({"x": tiny.normal(3, 1, 8, 6, 6, seed=i)} if scans else {"n": np.array(3), "i": start})}
        for i in range(8)
    ]
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True, min_sqnr=10), target="onnxq", data=data)
    wanted = ort.InferenceSession(str(path)).run(None, data[0])
    for made in (ort.InferenceSession(str(out)), onnxq.session(out)):
        assert min(sqnr(a, b) for a, b in zip(wanted, made.run(None, data[0]), strict=True)) > 15


BRANCHES = """g (bool which, float[n, 8, 6, 6] x) => (float[n, 8, 6, 6] y) {
    y = If<then_branch = t () => (float[n, 8, 6, 6] p) { a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = Relu(a)
                                                         p = Conv<pads = [1, 1, 1, 1]>(b, v) },
           else_branch = e () => (float[n, 8, 6, 6] q) { c = Conv<pads = [1, 1, 1, 1]>(x, u)  d = Sigmoid(c)
                                                         q = Conv<pads = [1, 1, 1, 1]>(d, o) }>(which) }"""
STATE = """g (float[n, 8, 6, 6] x, float[n, 8, 6, 6] h) => (float[n, 8, 6, 6] y, float[n, 8, 6, 6] next) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = Conv<pads = [1, 1, 1, 1]>(h, v)  c = Add(a, b)
    d = Tanh(c)  next = Conv(d, k)  y = Conv<pads = [1, 1, 1, 1]>(next, u) }"""


def _weights(names: str) -> dict[str, np.ndarray]:
    sizes = {"k": 1}
    return {name: tiny.normal(8, 8, sizes.get(name, 3), sizes.get(name, 3), seed=ord(name)) / 9 for name in names}


@pytest.mark.usefixtures("twice_as_fast")
def test_a_region_in_each_branch(tmp_path: Path) -> None:
    """One that the timed sample does not take, too."""
    path, out = tiny.save(tiny.model(BRANCHES, _weights("wvuo")), tmp_path), tmp_path / "q.onnx"
    data = [{"which": np.array(i % 2 == 0), "x": tiny.normal(2, 8, 6, 6, seed=i)} for i in range(8)]
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True, min_sqnr=10), target="onnxq", data=data)
    (chosen,) = (node for node in onnx.load(out).graph.node if node.op_type == "If")
    for branch in chosen.attribute:
        assert "Region" in [node.op_type for node in branch.g.node]
    for made in (ort.InferenceSession(str(out)), onnxq.session(out)):
        for feed in data[:2]:
            wanted = ort.InferenceSession(str(path)).run(None, feed)[0]
            assert sqnr(wanted, made.run(None, feed)[0]) > 20


@pytest.mark.parametrize("scheme", ["w8a8", "bf16"])
def test_state_that_is_handed_on_from_run_to_run(tmp_path: Path, scheme: str) -> None:
    """Nothing is kept in a region: a sequence that is begun again gives the same again."""
    path, out = tiny.save(tiny.model(STATE, _weights("wvuk")), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(1, 8, 6, 6, seed=i), "h": tiny.normal(1, 8, 6, 6, seed=i + 9) / 3} for i in range(6)]
    samples = data if scheme == "w8a8" else None
    recipe = onnxq.Recipe(scheme, keep_slow=True)
    onnxq.quantize(path, out, recipe, target="onnxq", data=samples, check=False)
    assert set(operators(out)) == {"Region" if scheme == "w8a8" else "Bf16Region"}
    session, float_session = onnxq.session(out), ort.InferenceSession(str(path))
    runs = [_sequence(made, data) for made in (session, float_session, session)]
    assert sqnr(runs[1], runs[0]) > 20
    assert np.array_equal(runs[0], runs[2])


def _sequence(made: ort.InferenceSession, data: list[dict[str, np.ndarray]]) -> np.ndarray:
    state, found = np.zeros((1, 8, 6, 6), np.float32), []
    for feed in data:
        y, state = made.run(None, {"x": feed["x"], "h": state})
        found.append(y)
    return np.stack(found)


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.parametrize("scheme", ["w8a8", "bf16"])
def test_times_of_steps_bear_the_names_of_nodes(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the file read again, too; nothing is left in the environment."""
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "scalar")  # bf16 regions run by name anywhere
    monkeypatch.delenv("ONNXQ_PROFILE", raising=False)
    text = """g (float[n, 8, 6, 6] x) => (float[n, 8, 6, 6] y) {
        [first] a = Conv<pads = [1, 1, 1, 1]>(x, w)  [gate] b = Sigmoid(a)  [sum] c = Add(a, b)
        [last] y = Conv<pads = [1, 1, 1, 1]>(c, u) }"""
    path, out = tiny.save(tiny.model(text, _weights("wu")), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 6, 6, seed=i)} for i in range(4)]
    made = onnxq.quantize(path, out, scheme, target="onnxq", data=data if scheme == "w8a8" else None, check=False)
    if scheme == "w8a8":  # all of it, whatever is faster
        all_ = [("first", "Conv", "int8"), ("gate", "Sigmoid", None), ("sum", "Add", None), ("last", "Conv", "int8")]
        plan = made.plan.replacing(Choice(name, op, Method.STATIC, format) for name, op, format in all_)
        onnxq.quantize(path, out, scheme, target="onnxq", data=data, plan=plan, check=False, force=True)
    session = Session(out, profile=True)
    for feed in data[:2]:
        session.run(feed)
    steps = [kernel for kernel in with_names(session.kernels(), ir.load(out)) if kernel.step is not None]
    assert {"first", "sum", "last"} <= {kernel.name for kernel in steps}
    assert all(kernel.seconds >= 0 and kernel.runs == 2 for kernel in steps)
    assert {kernel.op.split(".")[1] for kernel in steps} >= {"conv", "add"}
    assert "ONNXQ_PROFILE" not in os.environ


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
def test_times_of_steps_are_added_to_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """To a model, a pipe or a folder they would do harm: they are written on standard error then."""
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "scalar")
    text = "g (float[n, 8, 6, 6] x) => (float[n, 8, 6, 6] y) { a = Conv<pads = [1, 1, 1, 1]>(x, w)  y = Relu(a) }"
    path, out = tiny.save(tiny.model(text, _weights("w")), tmp_path), tmp_path / "q.onnx"
    onnxq.quantize(path, out, "bf16", target="onnxq", check=False)
    os.mkfifo(tmp_path / "pipe")
    before, fresh, empty = out.read_bytes(), tmp_path / "times", tmp_path / "empty"
    empty.touch()
    for place in (out, tmp_path, tmp_path / "pipe", tmp_path / "no" / "such", fresh, fresh, empty):
        monkeypatch.setenv("ONNXQ_PROFILE", str(place))
        made = Session(out)
        made.run({"x": tiny.normal(2, 8, 6, 6)})
        del made
        said = capfd.readouterr().err
        is_kept = place in (fresh, empty)
        told = f"'{place}', which ONNXQ_PROFILE names: it is no file of them"
        assert is_kept or ("onnxq node" in said and told in said)
        assert is_kept == (said == "")
    assert out.read_bytes() == before
    assert [each.read_text().count("onnxq node '") for each in (fresh, empty)] == [2, 1]


def test_names_of_steps_that_a_file_says_are_looked_at() -> None:
    """Anything may be there: JSON that nests too deeply, or that is no list of names."""
    for said in ("[" * 100_000, "[1]", "{}", "null", ""):
        node = ir.Node("onnxq", "Region", [], name="r", metadata_props={"onnxq.steps": said})
        assert names_of(ir.Model(ir.Graph([], [], nodes=[node], name="g"), ir_version=10)) == {}


def test_a_file_may_have_regions_of_both_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in bfloat16 between others in int8, with a sum that one of either kind makes a part of."""
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "scalar")
    text = """g (float[n, 8, 6, 6] x) => (float[n, 8, 6, 6] y) {
        [a] a = Conv<pads = [1, 1, 1, 1]>(x, w)  [b] b = Conv<pads = [1, 1, 1, 1]>(a, v)  r = Relu(b)
        [c] c = Conv<pads = [1, 1, 1, 1]>(r, u)  [s] s = Add(c, a)  [d] y = Conv<pads = [1, 1, 1, 1]>(s, o) }"""
    path, out = tiny.save(tiny.model(text, _weights("wvuo")), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 6, 6, seed=i)} for i in range(4)]
    made = onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False)
    elements = made.plan.choices["a"].elements
    kinds = {"a": "int8", "b": "bfloat16", "c": "bfloat16", "d": "int8"}
    methods = {"int8": Method.STATIC, "bfloat16": Method.STORED}
    choices = [Choice(name, "Conv", methods[kind], kind, None, elements) for name, kind in kinds.items()]
    plan = made.plan.replacing([*choices, Choice("s", "Add", Method.KEEP)])
    onnxq.quantize(path, out, "w8a8", target="onnxq", data=data, plan=plan, check=False, force=True)
    assert sorted(operators(out)) == ["Bf16Region", "Region", "Region"]
    for session in (ort.InferenceSession(str(out)), onnxq.session(out)):
        for feed in data:
            wanted = ort.InferenceSession(str(path)).run(None, feed)[0]
            assert sqnr(wanted, session.run(None, feed)[0]) > 22
