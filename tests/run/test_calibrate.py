"""Calibration sees every activation that was asked for, wherever it is, and numpy agrees on its range."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq import Recipe, collectors, quantize
from onnxq.calibration import calibrate, memory
from onnxq.calibration.observations import load_observations
from onnxq.cli import main
from onnxq.model import graph
from onnxq.runtime.session import Session
from onnxq.samples.prefetch import AHEAD
from onnxq.samples.source import Data, inputs_of, open_data
from onnxq.summaries.ranges import Range, Ranges

MLP = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N, 4] x, float[N, 3] b) => (float[N, 3] y)
<float[4, 3] w = {1, -2, 3, 0.5, 0.25, -1, 2, 2, -3, 1, 0, 4}>
{ h = MatMul(x, w)  r = Relu(h)  y = Add(r, b) }"""
IF = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N] x) => (float[N] y) {
  zero = Constant<value_float = 0.0>()
  sum = ReduceSum<keepdims = 0>(x)
  positive = Greater(sum, zero)
  y = If(positive) <
    then_branch = t () => (float[N] a) { doubled = Add(x, x)  a = Neg(doubled) },
    else_branch = e () => (float[N] c) { halved = Mul(x, x)  c = Neg(halved) }>
}"""
LOOP = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N] x) => (float[N] y) {
  three = Constant<value_int = 3>()
  true = Constant<value = bool {1}>()
  y = Loop(three, true, x) <
    body = b (int64 turn, bool go, float[N] state) => (bool on, float[N] next) {
      on = Identity(go)  grown = Add(state, state)  next = Neg(grown) }>
}"""
SCAN = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N] start, float[T, N] x) => (float[N] last, float[T, N] y) {
  last, y = Scan<num_scan_inputs = 1, body = b (float[N] state, float[N] one) => (float[N] next, float[N] out) {
      total = Add(state, one)  next = Identity(total)  out = Neg(total) }>(start, x)
}"""


def model_of(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def data_of(model: ir.Model, *samples: dict[str, NDArray]) -> Data:
    return open_data(list(samples), inputs_of(model))


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def seen(text: str, names: list[str], *samples: dict[str, NDArray], method: str = "minmax") -> Ranges:
    model = model_of(text)
    return calibrate.calibrate(model, names, data_of(model, *samples), method)


def range_of(*arrays: NDArray) -> Range:
    return Range(float(min(x.min() for x in arrays)), float(max(x.max() for x in arrays)))


@pytest.mark.parametrize("method", collectors.names())
def test_every_method_equals_its_collector_on_numpys_activations(method: str) -> None:
    w = np.array([1, -2, 3, 0.5, 0.25, -1, 2, 2, -3, 1, 0, 4], np.float32).reshape(4, 3)
    samples = [{"x": np.round(8 * normal(n, 4, seed=n)), "b": normal(n, 3)} for n in (5, 1, 7)]
    wanted = collectors.get(method)()
    for sample in samples:  # small whole numbers: every sum is exact
        wanted.update(sample["x"] @ w)
    assert seen(MLP, ["h"], *samples, method=method).values == {"h": wanted.range()}


def test_inputs_outputs_and_values_between_are_seen_over_samples_of_several_shapes() -> None:
    samples = [{"x": normal(n, 4, seed=n), "b": 10 * normal(n, 3, seed=n)} for n in (1, 6, 2)]
    ranges = seen(MLP, ["x", "r", "b"], *samples)
    assert ranges.values["x"] == range_of(*(s["x"] for s in samples))
    assert ranges.values["b"] == range_of(*(s["b"] for s in samples))
    assert ranges.values["r"].low == 0
    assert ranges.ranks == {"x": 2, "r": 2, "b": 2}
    assert ranges.problems == {}


def test_each_branch_of_an_if_is_seen_when_it_runs() -> None:
    up, down = np.float32([1, 5]), np.float32([-3, 2])
    ranges = seen(IF, ["doubled", "halved", "y"], {"x": up}, {"x": down})
    assert ranges.values == {"doubled": Range(2, 10), "halved": Range(4, 9), "y": Range(-10, -2)}


def test_a_branch_that_never_runs_has_a_problem_and_no_range() -> None:
    ranges = seen(IF, ["doubled", "halved"], {"x": np.float32([1, 5])})
    assert set(ranges.values) == {"doubled"}
    assert ranges.problems == {"halved": "never computed, or empty, on the calibration data"}


def test_every_turn_of_a_loop_is_seen() -> None:
    ranges = seen(LOOP, ["grown", "next"], {"x": np.float32([1, -3])})
    # 1, -3 → -2, 6 → 4, -12 → -8, 24
    assert ranges.values == {"grown": Range(-24, 12), "next": Range(-12, 24)}


def test_every_turn_of_a_scan_is_seen() -> None:
    x = np.float32([[1, 2], [3, -4], [-9, 1]])
    ranges = seen(SCAN, ["total"], {"start": np.float32([0, 0]), "x": x})
    assert ranges.values == {"total": range_of(np.cumsum(x, axis=0))}


@pytest.mark.parametrize(("word", "dtype"), [("float16", np.float16), ("double", np.float64)])
def test_bodies_in_other_float_types(word: str, dtype: type) -> None:
    up, down = np.array([1, 5], dtype), np.array([-3, 2], dtype)
    branches = IF.replace("float[N]", f"{word}[N]").replace("zero =", "plain =")
    branches = branches.replace("sum =", "zero = CastLike(plain, x)  sum =")
    ranges = seen(branches, ["doubled", "halved"], {"x": up}, {"x": down})
    assert ranges.values == {"doubled": Range(2, 10), "halved": Range(4, 9)}
    assert seen(LOOP.replace("float[N]", f"{word}[N]"), ["grown"], {"x": up}).values == {"grown": Range(-20, 40)}


@pytest.mark.parametrize("text", [IF, LOOP], ids=["if", "loop"])
def test_no_rank_is_claimed_of_values_in_bodies(text: str) -> None:
    ranges = seen(text, ["doubled" if text is IF else "grown", "y"], {"x": np.float32([1, 5])})
    assert ranges.ranks == {"y": 1}


def test_a_product_of_more_than_matrices_in_a_loop_stays_one(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        LOOP.replace("float[N]", "float[1, 5, 32]").replace("grown = Add(state, state)", "grown = MatMul(state, w)")
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(normal(32, 32) / 5, "w"))
    onnx.save(proto, tmp_path / "loop.onnx")
    samples = [{"x": normal(1, 5, 32, seed=n)} for n in range(4)]
    recipe = Recipe("w8a8", keep_slow=True)
    quantize(tmp_path / "loop.onnx", tmp_path / "small.onnx", recipe, data=samples, check=False)
    assert "QuantizeLinear" in {node.op_type for node in graph.nodes(ir.load(tmp_path / "small.onnx"))}
    feed = samples[0]
    (wanted,), (got,) = (Session(tmp_path / name).run(feed) for name in ("loop.onnx", "small.onnx"))
    assert np.square(wanted - got).sum() < np.square(wanted).sum() / 100


def test_not_a_number_is_left_out_and_nothing_but_it_is_a_problem() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y) { some = Log(x)  zero = Sub(x, x)  none = Div(zero, zero)  y = Add(some, none) }"""
    ranges = seen(text, ["some", "none"], {"x": np.float32([1, -1, 0])}, {"x": np.float32([np.e, -2, 1])})
    assert ranges.values == {"some": Range(0, pytest.approx(1))}
    assert ranges.problems == {"none": "not finite on the calibration data (6 NaN, 0 infinite)"}


def test_groups_change_nothing_but_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"x": normal(n, 4, seed=n), "b": normal(n, 3)} for n in (4, 2)]
    names = ["x", "h", "r", "b", "y"]
    whole = seen(MLP, names, *samples)
    runs: list[int] = []
    monkeypatch.setattr(memory, "GROUP_BYTES", 1)
    model = model_of(MLP)
    apart = calibrate.calibrate(model, names, data_of(model, *samples), "minmax", progress=runs.append)
    assert apart == whole
    assert sum(runs) == len(names) * len(samples)


def test_few_samples_are_in_memory_at_a_time() -> None:
    alive: list[int] = []

    class Counted(np.ndarray):
        def __del__(self) -> None:
            alive.pop()

    most = 0

    def samples() -> Iterator[dict[str, NDArray]]:
        nonlocal most
        for _ in range(40):
            x = normal(2, 4).view(Counted)
            alive.append(1)
            most = max(most, len(alive))
            yield {"x": x, "b": normal(2, 3)}
            del x

    model = model_of(MLP)
    calibrate.calibrate(model, ["h"], open_data(samples, inputs_of(model)), "percentile")
    assert most <= AHEAD + 2  # those that wait, the one in use and the one being made


def test_the_model_is_not_changed() -> None:
    model = model_of(IF)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    calibrate.calibrate(model, ["doubled", "y"], data_of(model, {"x": np.float32([1, 5])}), "minmax")
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_ranges_are_bound_to_model_data_and_method() -> None:
    a, b = ({"x": normal(2, 4, seed=n), "b": normal(2, 3)} for n in (1, 2))
    first = seen(MLP, ["h"], a)
    assert seen(MLP, ["h"], a) == first
    assert seen(MLP, ["h"], b).data != first.data
    assert seen(MLP, ["h"], a, method="percentile").method != first.method
    assert seen(MLP.replace("Relu", "Tanh"), ["h"], a).model != first.model
    assert seen(MLP.replace("0.25", "0.26"), ["h"], a).model != first.model
    assert first.data == data_of(model_of(MLP), a).hash()


@pytest.mark.parametrize("text", [MLP, IF, LOOP, SCAN], ids=["mlp", "if", "loop", "scan"])
def test_element_counts(text: str) -> None:
    names = {MLP: ["h", "y", "x"], IF: ["y", "doubled"], LOOP: ["y", "grown"], SCAN: ["y", "total"]}[text]
    sample = {"x": normal(5, 4), "b": normal(5, 3)} if text is MLP else {"x": normal(6)}
    if text is SCAN:
        sample = {"x": normal(5, 4), "start": normal(4)}
    wanted = {MLP: (15, 15, 20), IF: (6, 0), LOOP: (6, 0), SCAN: (20, 0)}[text]
    assert tuple(calibrate.element_counts(model_of(text), names, sample).values()) == wanted


def two_products(folder: Path) -> tuple[Path, Path]:
    """A model, and data for it."""
    text = "g (float[N, 32] x) => (float[N, 8] y) { h = MatMul(x, v)  y = MatMul(h, w) }"
    weights = {"v": normal(32, 64), "w": normal(64, 8, seed=1)}
    data = folder / "d.npz"
    np.savez(data, x=normal(8, 50, 32))
    return tiny.save(tiny.model(text, weights), folder), data


def test_percentiles_of_the_command_line(tmp_path: Path) -> None:
    """Each end has its own share, and results name them."""
    path, data = two_products(tmp_path)
    found: dict[str, Ranges] = {}
    for share in ("100", "90,100", "100,90"):
        output = tmp_path / "r.ranges"
        command = ["calibrate", path, "--data", data, "-s", "w8a8", "--percentile", share, "-f", "-o", output]
        done = CliRunner().invoke(main, [str(word) for word in command])
        assert done.exit_code == 0, done.output
        assert f"ranges by percentile:{share}" in done.output
        found[share] = load_observations(output).ranges(f"percentile:{share}")  # type: ignore[union-attr]
    name = "h"
    whole, low_cut, high_cut = (found[share].values[name] for share in found)
    assert low_cut.low > whole.low and low_cut.high == whole.high
    assert high_cut.low == whole.low and high_cut.high < whole.high
    for options, message in (
        (["--percentile", "9"], "no percentile"),
        (["--momentum", "2"], "no momentum"),
        (["--momentum", "0.3", "--calibration", "mse"], "--momentum belongs to --calibration moving-average, not mse"),
        (["--bins", "many", "--calibration", "mse"], "a histogram has 16 to 4096"),
        (["--bins", "64"], "--bins goes with one --calibration method"),
        (["--bins", "64", "--momentum", "0.3"], "moving-average:0.3 reads no histogram"),
    ):
        refused = CliRunner().invoke(main, ["calibrate", str(path), "--data", str(data), *options, "-o", "x"])
        assert refused.exit_code == 1 and message in refused.output


@pytest.mark.parametrize("options", [["--momentum", "0.3"], ["--calibration", "minmax"], ["--percentile", "99"], []])
def test_merged_shards_keep_their_method(options: list[str], tmp_path: Path) -> None:
    path, data = two_products(tmp_path)
    parts = [str(tmp_path / f"{number}.ranges") for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        command = ["calibrate", str(path), "--data", str(data), "-s", "w8a8", "--shard", f"{number}/2", *options]
        done = CliRunner().invoke(main, [*command, "-o", part])
        assert done.exit_code == 0, done.output
    method = done.output.split("ranges by ")[1].split(",")[0]
    merged = CliRunner().invoke(main, ["calibrate", "--merge", *parts, "-o", str(tmp_path / "m.ranges")])
    assert merged.exit_code == 0 and f"ranges by {method}," in merged.output, merged.output


def test_momentum_and_bins_of_the_command_line(tmp_path: Path) -> None:
    (path, data), output = two_products(tmp_path), tmp_path / "o.ranges"
    for options, method in (
        (["--momentum", "0.3"], "moving-average:0.3"),
        (["--bins", "64", "--calibration", "entropy"], "entropy@64"),
        (["--bins", "64", "--percentile", "99,99.9"], "percentile:99,99.9@64"),
    ):
        command = ["calibrate", str(path), "--data", str(data), "-s", "w8a8", *options]
        done = CliRunner().invoke(main, [*command, "-f", "-o", str(output)])
        assert done.exit_code == 0, done.output
        assert f"ranges by {method}" in done.output
        command = ["quantize", *command[1:], "--ranges", str(output), "-f", "-o", str(tmp_path / "q.onnx")]
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
