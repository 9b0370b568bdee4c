"""Models for OpenVINO: its rules, and where it is installed what it makes of them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from tiny import normal

from onnxq import Recipe, pipeline, quantize
from onnxq.checking import saved, verdict
from onnxq.checking.elsewhere import Elsewhere
from onnxq.checking.rules import check_rules
from onnxq.cli import main
from onnxq.conversion.convert import convert
from onnxq.drafts import budgeted
from onnxq.errors import CheckFailed
from onnxq.pipeline import Result
from onnxq.plan import Choice, Method, Plan
from onnxq.progress import QUIET
from onnxq.runtime.consumers import open_in
from onnxq.runtime.profile import PlanTime
from onnxq.runtime.session import Session
from onnxq.samples.trials import Trials
from onnxq.tuning.plan_bench import PlanBench
from onnxq.tuning.there import There
from onnxq.tuning.tune import Terms

pytestmark = pytest.mark.usefixtures("quick")
#: Two residual blocks; what is added to the second one comes from a Pad, which no int8 kernel makes.
NET = """g (float[n, 8, 12, 12] x) => (float[n, 10] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k)  r = Relu (a)
    b = Conv <pads = [1, 1, 1, 1]> (r, l)  s = Add (b, r)  t = Relu (s)
    c = Conv <pads = [1, 1, 1, 1]> (t, m)  p = Tanh (x)  u = Add (p, c)  v = Relu (u)
    d = Conv <pads = [1, 1, 1, 1]> (v, k)  e = GlobalAveragePool (d)  f = Flatten (e)  y = Gemm <transB = 1> (f, w)
}"""
KERNELS = {
    "k": normal(8, 8, 3, 3),
    "l": normal(8, 8, 3, 3, seed=1),
    "m": normal(8, 8, 3, 3, seed=2),
    "w": normal(10, 8, seed=3),
}
PRODUCTS = "g (float[n, 128] x) => (float[n, 64] y) { h = MatMul (x, a)  r = Relu (h)  y = MatMul (r, b) }"


@pytest.fixture(autouse=True)
def by_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are those of the rules, and not of the times of so small a model, nor of its saved file."""
    monkeypatch.setattr(There, "ratios", lambda self, plans, feed: None)
    monkeypatch.setattr(There, "kernels", lambda self, plan, feed: None)
    monkeypatch.setattr(verdict, "SLOWER", float("inf"))


def net(folder: Path) -> tuple[Path, Result]:
    model = tiny.save(tiny.model(NET, KERNELS), folder)
    x = np.random.default_rng(0).standard_normal((8, 1, 8, 12, 12)).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    recipe = Recipe("w8a8", min_sqnr=-np.inf)
    return model, quantize(model, folder / "net.onnx", recipe, target="openvino", data=folder / "data.npz")


def test_no_pair_stands_between_a_convolution_and_its_sum(tmp_path: Path) -> None:
    _, done = net(tmp_path)
    proto = onnx.load(done.output)
    made = {name: node.op_type for node in proto.graph.node for name in node.output}
    sums = [sorted(made[name] for name in node.input) for node in proto.graph.node if node.op_type == "Add"]
    # One operand each comes straight from a convolution, the other one is int8, from a Pad too.
    assert sums == [["Conv", "DequantizeLinear"]] * 2
    assert {choice.label for choice in done.plan if choice.op in ("Conv", "Add")} == {"int8"}
    assert done.check is not None and done.check.sqnr > 20


def test_plans_do_not_follow_the_times_of_another_runtime(tmp_path: Path) -> None:
    """Small products are slower in int8 and 4 bits than in float there."""
    model = tiny.save(tiny.model(PRODUCTS, {"a": normal(128, 128), "b": normal(128, 64, seed=1)}), tmp_path)
    for scheme, op in (("w4a16", "MatMulNBits"), ("int8", "MatMulNBits"), ("nf4", "Gather"), ("w8a8-dynamic", "Cast")):
        recipe = Recipe(scheme, min_sqnr=-np.inf)
        done = quantize(model, tmp_path / f"{scheme}.onnx", recipe, target="openvino")
        assert op in {node.op_type for node in onnx.load(done.output).graph.node}, scheme


@pytest.mark.parametrize(("of_int8", "is_int8"), [(0.5, True), (1.5, False)])
def test_plans_follow_the_times_of_the_runtime_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_int8: float, is_int8: bool
) -> None:
    pytest.importorskip("openvino")
    timed: list[list[str]] = []

    def ratios(self: There, plans: list[Plan], feed: object) -> list[PlanTime]:
        timed.append([choice.label for plan in plans for choice in plan if choice.op == "Conv"])
        return [PlanTime(of_int8 if plan.those(Method.STATIC) else 1.0, 0.01) for plan in plans]

    monkeypatch.setattr(There, "ratios", ratios)
    _, done = net(tmp_path)
    assert len(timed) == 1 and {"int8", "int8 stored"} == set(timed[0])
    assert bool(done.plan.those(Method.STATIC)) == is_int8
    assert ("float is faster in openvino" in {choice.reason for choice in done.plan}) != is_int8


def test_plans_are_timed_as_they_would_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not run there ends it."""
    pytest.importorskip("openvino")
    monkeypatch.undo()
    texts = ["y = Relu (x)", "y = MatMul (x, x)", "y = local.What (x)"]
    models = [tiny.read(tiny.model(f"g (float[64, 64] x) => (float[64, 64] y) {{ {text} }}")) for text in texts]
    plans = [Plan("w8a8", "openvino", {"n": Choice("n", "MatMul", Method.KEEP, reason=str(i))}) for i in range(3)]
    path = tiny.save(tiny.model(f"g (float[64, 64] x) => (float[64, 64] y) {{ {texts[0]} }}"), tmp_path)
    in_float = open_in("openvino", path, 1)
    rewritten = lambda plan: models[int(plan.choices["n"].reason)]  # noqa: E731
    there_is = There("openvino", 1, rewritten, lambda feed: [], in_float)
    feed = {"x": normal(64, 64)}
    ratios = there_is.ratios(plans[:2], feed)
    assert ratios is not None and len(ratios) == 2 and min(found.ratio for found in ratios) > 0
    assert there_is.ratios(plans, feed) is None
    kernels = there_is.kernels(plans[1], feed)
    assert kernels and any("FullyConnected" in kernel.op or kernel.op == "MatMul" for kernel in kernels)
    assert there_is.kernels(plans[2], feed) is None


def test_noise_that_float_has_there_is_no_reason_to_stay_in_float(tmp_path: Path) -> None:
    """The bar of a plan falls to what the runtime leaves of the float model, and no lower."""
    model = tiny.read(tiny.model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }"))
    feeds = [{"x": np.random.default_rng(i).standard_normal((8, 4)).astype(np.float32)} for i in range(4)]

    def bar(noise: float) -> float:
        def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.maximum(feed["x"], 0) + np.float32(noise)]

        there_is = There("openvino", 1, lambda plan: model, run)
        bench = PlanBench(model, lambda plan: model, Trials.given(feeds, ""), there=there_is)
        return Terms.of(bench, Recipe("w8a8", prefer="accuracy"), QUIET).bar

    usual = bar(0.0)
    assert bar(0.01) == pytest.approx(usual) and bar(0.05) < usual - 1
    assert bar(3.0) == usual  # that is another model


def test_says_that_it_was_not_run_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    _, done = net(tmp_path)
    assert done.check is not None and done.check.elsewhere is not None and not done.check.elsewhere.was_run
    assert "rules only: not run in openvino, which is not installed here" in done.check.notes


@pytest.mark.parametrize(("here", "in_float", "code"), [(-120.0, 49.0, 3), (-120.0, -5.0, 0), (30.0, 49.0, 0)])
def test_a_file_that_its_runtime_breaks_is_not_called_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: float, in_float: float, code: int
) -> None:
    """Not so one of which it computes the float model otherwise, as of random numbers."""
    found = Elsewhere("openvino 1", True, here, in_float)
    monkeypatch.setattr(saved, "run_elsewhere", lambda *of: found)
    net(tmp_path)
    words = ("quantize", "model.onnx", "-s", "w8a8", "-t", "openvino", "--data", "data.npz", "-o", "q.onnx")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    said = "openvino 1 makes something else of the model than onnxruntime: -120.0 dB"
    assert " ".join(result.output.split()).count(said) == (here < 0)
    assert (f"q.onnx was written, but {said}" in result.output) == (code == 3)


def test_openvino_computes_what_onnxruntime_does(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model, done = net(tmp_path)
    there = done.check and done.check.elsewhere
    assert there and there.was_run and there.sqnr > 20 and there.float_ms > 0
    assert there.types.get("u8", 0) + there.types.get("i8", 0) >= 4 and sum(there.types.values()) == 5
    opened = open_in("openvino", done.output, 1)
    assert opened is not None
    feed = {"x": np.random.default_rng(5).standard_normal((2, 8, 12, 12)).astype(np.float32)}
    assert tiny.sqnr(Session(model).run(feed)[0], opened.run(feed)[0]) > 20


def test_a_float_model_that_openvino_refuses_is_run_as_it_was_prepared(tmp_path: Path) -> None:
    """It has no functions with attributes of their own; what is written for it has none."""
    pytest.importorskip("openvino")
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[n, 8, 12, 12] x) => (float[n, 8, h, v] y) {
            a = own.block <pads = [1, 1, 1, 1]> (x, k)  y = own.block <pads = [0, 0, 0, 0]> (a, l)
        }
        <opset_import: ["" : 17], domain: "own">
        block <pads> (x, w) => (y) { c = Conv <pads : ints = @pads> (x, w)  y = Relu (c) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(KERNELS[word], word) for word in "kl")
    path = tiny.save(proto, tmp_path)
    x = np.random.default_rng(0).standard_normal((8, 1, 8, 12, 12)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    done = quantize(path, tmp_path / "q.onnx", Recipe("w8a8"), target="openvino", data=tmp_path / "data.npz")
    there = done.check and done.check.elsewhere
    assert there and there.was_run and there.sqnr > 20 and there.float_sqnr > 20


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_recurrent_layers_beside_int8_ones(tmp_path: Path, op: str, gates: int) -> None:
    """OpenVINO refuses codes there as soon as something else computes in int8."""
    text = f"""g (float[9, 1, 64] x) => (float[T, D, 1, 64] y) {{
        h = MatMul (x, a)  y = {op} <hidden_size = 64> (h, w, r, b)
    }}"""
    weights = {"a": normal(64, 64), "w": normal(1, gates * 64, 64, seed=1), "r": normal(1, gates * 64, 64, seed=2)}
    model = tiny.save(tiny.model(text, weights | {"b": normal(1, 2 * gates * 64, seed=3)}), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((8, 9, 1, 64)).astype(np.float32))
    recipe = Recipe("w8a8", min_sqnr=-np.inf)
    done = quantize(model, tmp_path / "q.onnx", recipe, target="openvino", data=tmp_path / "data.npz")
    assert [choice.label for choice in done.plan] == ["int8", "float16 stored"]
    there = done.check and done.check.elsewhere
    assert there and (there.sqnr > 25 or not there.was_run)


def test_openvino_keeps_blocks_compressed(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = tiny.save(tiny.model(PRODUCTS, {"a": normal(128, 128), "b": normal(128, 64, seed=1)}), tmp_path)
    for scheme, least in (("w4a16", 10), ("int8", 30), ("w8a8-dynamic", 30)):
        recipe = Recipe(scheme, min_sqnr=-np.inf)
        done = quantize(model, tmp_path / f"{scheme}.onnx", recipe, target="openvino")
        there = done.check and done.check.elsewhere
        assert there and there.was_run and there.sqnr > least, scheme


def test_a_table_that_is_also_the_head(tmp_path: Path) -> None:
    """As small decoders have it: elsewhere one of the two is made of the codes of the other, which OpenVINO refuses."""
    text = """g (int64[n, s] ids) => (float[n, s, 320] y) {
        x = Gather (table, ids)  h = MatMul (x, a)  t = Transpose <perm = [1, 0]> (table)  y = MatMul (h, t)
    }"""
    model = tiny.save(tiny.model(text, {"table": normal(320, 128), "a": normal(128, 128, seed=1)}), tmp_path)
    recipe = Recipe("w4a16", min_sqnr=-np.inf, accuracy_level=0)
    elsewhere = quantize(model, tmp_path / "other.onnx", recipe, target="webgpu").output
    (found,) = check_rules(elsewhere, "openvino")
    assert found.refuses and "OpenVINO reads constants only" in found.says
    converted = convert(elsewhere, "openvino", tmp_path / "converted.onnx", accuracy_level=0)
    assert len(converted.kept) == 3 and not converted.again
    done = quantize(model, tmp_path / "q.onnx", recipe, target="openvino")
    for path in (converted.output, done.output):
        assert check_rules(path, "openvino") == []
        assert "GatherBlockQuantized" in {node.op_type for node in onnx.load(path).graph.node}
    pytest.importorskip("openvino")
    feed = {"ids": np.random.default_rng(0).integers(0, 320, (2, 7))}
    for path in (converted.output, done.output):
        opened = open_in("openvino", path, 1)
        assert opened is not None
        assert tiny.sqnr(Session(path).run(feed)[0], opened.run(feed)[0]) > 25  # computes in bf16 where it has that


JOINED = """g (float[n, 48] x) => (float[n, 96] y, float[n, 48] z) {
    z = MatMul (x, w)  s = SplitToSequence <axis = 1> (z, half)  e = ConcatFromSequence <axis = 0> (s)
    y = MatMul (e, v)
}"""
DOUBLE = """g (double[n, 48] x) => (double[n, 96] y, float[n, 48] z) {
    f = Cast <to = 1> (x)  z = MatMul (f, w)  t = Tanh (f)  h = MatMul (t, u)  r = Relu (h)
    d = Cast <to = 11> (r)  y = MatMul (d, wide)
}"""


def joined_or_double(folder: Path, body: str) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """The model, and eight samples."""
    constants = {"w": normal(48, 48), "u": normal(48, 24, seed=1), "v": normal(24, 96, seed=2)}
    constants |= {"wide": normal(24, 96, seed=3).astype(np.float64), "half": np.array(24)}
    model = tiny.model(body, {name: x for name, x in constants.items() if name in body})
    rng, kind = np.random.default_rng(0), np.float64 if "double" in body else np.float32
    return tiny.save(model, folder), [{"x": rng.standard_normal((4, 48)).astype(kind)} for _ in range(8)]


@pytest.mark.parametrize(("body", "left"), [(JOINED, {"y"}), (DOUBLE, {"z", "y"})], ids=["joined", "double"])
def test_what_openvino_reads_in_float_alone_stays_there(tmp_path: Path, body: str, left: set[str]) -> None:
    """It refused the whole file."""
    pytest.importorskip("openvino")
    model, data = joined_or_double(tmp_path, body)
    done = quantize(model, tmp_path / "q.onnx", Recipe("w8a8", keep_slow=True), target="openvino", data=data)
    assert {choice.node for choice in done.plan if choice.method is not Method.STATIC} == left
    assert any(choice.reason.startswith("else OpenVINO refuses the model: ") for choice in done.plan)
    found = done.check
    assert found is not None and found.elsewhere is not None and found.elsewhere.was_run
    assert min(found.sqnr, found.elsewhere.sqnr) > 30


@pytest.mark.parametrize(("body", "left"), [(JOINED, {"y"}), (DOUBLE, {"z", "y"})], ids=["joined", "double"])
def test_a_search_does_not_try_what_openvino_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, left: set[str]
) -> None:
    """Whatever it finds in the end: none of these is faster than float."""
    pytest.importorskip("openvino")
    model, data = joined_or_double(tmp_path, body)
    tried: list[Plan] = []

    def candidates(*arguments: Any) -> list[Plan]:
        tried.extend(budgeted.candidates_of(*arguments))
        return tried

    monkeypatch.setattr(pipeline, "candidates_of", candidates)
    with contextlib.suppress(CheckFailed):
        quantize(
            model, tmp_path / "q.onnx", target="openvino", data=data * 4, budget="latency=0.9", formats=["int8", "w8a8"]
        )
    static = {choice.node for plan in tried for choice in plan.those(Method.STATIC)}
    assert static and not static & left
