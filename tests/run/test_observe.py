"""Two ways to watch activations, inside the graph and in numpy, that see the same numbers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray

from onnxq.calibration import calibrate
from onnxq.calibration.observations import from_table
from onnxq.calibration.observers import NativeObserver, NumpyObserver, Observer
from onnxq.errors import BadRecipe
from onnxq.model import graph
from onnxq.runtime.session import Feed
from onnxq.samples.source import inputs_of, open_data
from onnxq.summaries import native
from onnxq.summaries.ranges import Range
from onnxq.summaries.summary import Summary

needs_library = pytest.mark.skipif(not native.available(), reason="the compiled library is not there")
OBSERVERS = [NumpyObserver, pytest.param(NativeObserver, marks=needs_library)]
every_observer = pytest.mark.parametrize("observer", OBSERVERS, ids=lambda o: o.__name__)
MLP = """g (float[N, 4] x) => (float[N, 3] y, float[N, 3] z)
{ h = MatMul(x, w)  r = Relu(h)  y = Add(r, r)  n = Neg(h)  z = Add(n, h) }"""
W = np.array([1, -2, 3, 0.5, 0.25, -1, 2, 2, -3, 1, 0, 4], np.float32).reshape(4, 3)
CONVS = """g (float[N, 16, H, W] x) => (float[N, 16, H, W] y) {
  a = Conv<pads = [1, 1, 1, 1]>(x, w)  ra = Relu(a)
  b = Conv<pads = [1, 1, 1, 1]>(ra, w)  s = Add(b, ra)  rs = Relu(s)
  c = Conv<pads = [1, 1, 1, 1]>(rs, v)  d = Conv<pads = [1, 1, 1, 1]>(c, u)  y = Sigmoid(d) }"""


def whole(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Small whole numbers: every sum of products is exact, in any order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def mlp() -> ir.Model:
    return tiny.read(tiny.model(MLP, {"w": W}))


def convs() -> ir.Model:
    weights = {"w": whole(16, 16, 3, 3), "v": whole(20, 16, 3, 3, seed=1), "u": whole(16, 20, 3, 3, seed=2)}
    return tiny.read(tiny.model(CONVS, weights))


def seen(
    observer: Callable[..., Observer], model: ir.Model, names: list[str], samples: list[Feed], **start: object
) -> dict[str, Summary]:
    made = observer(model, {name: Summary(**start) for name in names}, 2)  # type: ignore[arg-type]
    for sample in samples:
        made.run(sample)
    assert made.hidden == []
    return made.read()


@every_observer
def test_summaries_are_those_of_the_arrays(observer: Callable[..., Observer]) -> None:
    samples = [{"x": whole(n, 4, seed=n)} for n in (5, 1, 700, 20_000, 3)]
    found = seen(observer, mlp(), ["x", "h", "r", "y", "z"], samples)
    arrays: dict[str, Callable[[NDArray], NDArray]] = {
        "x": lambda x: x,
        "h": lambda x: x @ W,
        "r": lambda x: np.maximum(x @ W, 0),
        "y": lambda x: 2 * np.maximum(x @ W, 0),
        "z": lambda x: np.zeros((len(x), 3), np.float32),
    }
    for name, function in arrays.items():
        wanted = Summary()
        for sample in samples:
            wanted.update(function(sample["x"]))
        assert found[name].to_dict() == wanted.to_dict(), name


@needs_library
@pytest.mark.parametrize("size", [(1, 16, 24, 24), (3, 16, 7, 5), (1, 16, 90, 90)], ids=str)
def test_convolutions_are_seen_alike_in_whatever_order_their_channels_lie(size: tuple[int, ...]) -> None:
    samples = [{"x": whole(*size, seed=n)} for n in range(3)]
    names = ["ra", "b", "s", "rs", "c", "d", "x"]
    one, other = (seen(observer, convs(), names, samples) for observer in (NumpyObserver, NativeObserver))
    for name in names:
        wanted, got = one[name].to_dict(), other[name].to_dict()
        # Blocks of channels are added up in another order.
        for inexact in ("total", "squares"):
            assert got.pop(inexact) == pytest.approx(wanted.pop(inexact), rel=1e-12)
        assert got == wanted, name


@every_observer
def test_channels_keep_their_places(observer: Callable[..., Observer]) -> None:
    samples = [{"x": whole(2, 16, 8, 8, seed=n)} for n in range(2)]
    plain = seen(NumpyObserver, convs(), ["ra"], samples, axis=1)["ra"]
    found = seen(observer, convs(), ["ra"], samples, axis=1, histogram=None)["ra"]
    assert found.channel_high.tolist() == plain.channel_high.tolist()
    assert found.channel_low.size == 16 and len(set(found.channel_high.tolist())) > 4


@every_observer
@pytest.mark.parametrize("word", ["float16", "double", "bfloat16"])
def test_other_float_types(observer: Callable[..., Observer], word: str) -> None:
    dtype = {"float16": np.float16, "double": np.float64, "bfloat16": ir.DataType.BFLOAT16.numpy()}[word]
    text = f"g ({word}[N] x) => ({word}[N] y) {{ h = Identity(x)  y = Identity(h) }}"
    samples = [{"x": np.arange(-n, n).astype(dtype)} for n in (3, 30)]
    found = seen(observer, tiny.read(tiny.model(text)), ["x", "y"], samples)
    wanted = Summary()
    for sample in samples:
        wanted.update(sample["x"])
    assert {name: summary.to_dict() for name, summary in found.items()} == dict.fromkeys("xy", wanted.to_dict())


LOOP = """g (float[N] x) => (float[N] y) {
  three = Constant<value_int = 3>()
  true = Constant<value = bool {1}>()
  y = Loop(three, true, x) <
    body = b (int64 turn, bool go, float[N] state) => (bool on, float[N] next) {
      on = Identity(go)  grown = Add(state, state)  next = Neg(grown) }>
}"""


@needs_library
def test_inside_the_graph_every_number_of_a_loop_is_seen() -> None:
    found = seen(NativeObserver, tiny.read(tiny.model(LOOP)), ["grown"], [{"x": np.float32([1, -3, 0])}])["grown"]
    assert (found.count, found.zeros, found.total, found.batches) == (9, 3, -4 + 8 - 16, 1)


@needs_library
def test_sessions_in_several_threads_fill_summaries_of_their_own() -> None:
    samples = [{"x": whole(50, 4, seed=n)} for n in range(20)]
    wanted = seen(NumpyObserver, mlp(), ["h", "y"], samples)
    found: dict[int, dict[str, Summary]] = {}

    def run(number: int) -> None:
        found[number] = seen(NativeObserver, mlp(), ["h", "y"], samples)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert {n: s.to_dict() for n, s in found[number].items()} == {n: s.to_dict() for n, s in wanted.items()}


@needs_library
def test_a_model_with_observers_of_another_process_is_refused() -> None:
    from onnxq.errors import BadModel
    from onnxq.passes.observe.observe_values import ObserveValues
    from onnxq.runtime.session import Session

    model = mlp()
    ObserveValues({"h": 987_654_321})(model)
    with pytest.raises(BadModel, match="this process has no summary 987654321"):
        Session(model)


@needs_library
def test_a_value_inside_a_function_is_hidden() -> None:
    functions = """<domain: "local", opset_import: ["" : 17]> twice (a) => (c) { inner = Add(a, a)  c = Neg(inner) }"""
    text = "g (float[N] x) => (float[N] y) { y = local.twice(x) }"
    model = ir.from_proto(onnx.load_from_string(tiny.model(text, functions=functions).SerializeToString()))
    assert NativeObserver(model, {"inner": Summary(), "y": Summary()}, 1).hidden == ["inner"]


def test_without_the_library_calibration_gives_the_same_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    data = open_data([{"x": whole(n, 4, seed=n)} for n in (5, 100, 700)], inputs_of(model))
    names = ["x", "h", "r", "y", "z"]
    fast = calibrate.observe(model, names, data)
    monkeypatch.setattr(native, "available", lambda: False)
    slow = calibrate.observe(model, names, data)
    for method in ("minmax", "percentile", "mse", "entropy", "moving-average"):
        assert fast.ranges(method) == slow.ranges(method)
    assert fast.to_dict() == slow.to_dict()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_new_sample_weighs_what_the_momentum_says(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "available", lambda: False)
    model, ends = mlp(), (1.0, 5.0, 9.0)
    data = open_data([{"x": np.array([[-end, end, 0, 0]], np.float32)} for end in ends], inputs_of(model))
    seen = calibrate.observe(model, ["x"], data, calibrate.keep_for("moving-average:0.25"))
    # 1, then a quarter of the way to 5, then a quarter of the way to 9.
    assert seen.ranges("moving-average:0.25").values["x"] == Range(-3.75, 3.75)
    with pytest.raises(BadRecipe, match="made with another momentum than"):
        seen.ranges("moving-average")
    assert from_table(json.loads(json.dumps(seen.to_dict()))).to_dict() == seen.to_dict()


def test_no_node_is_left_in_the_callers_model() -> None:
    model = convs()
    data = open_data([{"x": whole(1, 16, 8, 8)}], inputs_of(model))
    calibrate.observe(model, ["ra", "rs"], data)
    assert "Observe" not in {node.op_type for node in graph.nodes(model)}
    assert "onnxq" not in model.graph.opset_imports
