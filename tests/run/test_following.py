"""Layers that get codes behind layers which are quantized already: the model in pieces, and what gptaq makes of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray

from onnxq import Recipe, formats, quantize
from onnxq.algorithms import gptaq, gptq
from onnxq.algorithms._making_up import making_up
from onnxq.calibration.find_ranges import Effort
from onnxq.calibration.gather_evidence import evidence_of, needed
from onnxq.calibration.layers.follow_codes import FollowingWalk
from onnxq.calibration.layers.shelf import Shelf
from onnxq.formats import Granularity
from onnxq.job import Job, open_job
from onnxq.model.pieces import cut
from onnxq.model.weights import find_weights
from onnxq.runtime.session import Session
from onnxq.samples.sampling import HELD_BACK
from onnxq.summaries.evidence import Layer, add_input
from onnxq.summaries.gram import Gram
from onnxq.summaries.ranges import NO_RANGES

DEEP = """m (float[N, 64] x) => (float[N, 64] y) {
    a = MatMul(x, W1) b = Relu(a) c = MatMul(b, W2) d = Add(c, x) e = Tanh(d) f = MatMul(e, W3) g = Relu(f)
    h = MatMul(g, W4) y = Add(h, d) }"""


def deep() -> onnx.ModelProto:
    return tiny.model(DEEP, {f"W{i}": 2 * tiny.normal(64, 64, seed=i) for i in range(1, 5)})


def samples(count: int = 16, rows: int = 60, seed: int = 0) -> list[dict[str, NDArray]]:
    r = np.random.default_rng(0)
    mix = r.standard_normal((64, 64)) * r.gamma(1, 1, 64) / 8
    r = np.random.default_rng(seed)
    return [{"x": (r.standard_normal((rows, 64)) @ mix).astype(np.float32)} for _ in range(count)]


def job_of(proto: onnx.ModelProto, folder: Path, word: str = "int3", **recipe: object) -> Job:
    wanted = dataclasses.replace(Recipe(word, accuracy_level=0), **recipe)
    return open_job(tiny.save(proto, folder), wanted, "onnxq", samples())


def run(path: Path, feed: dict[str, NDArray]) -> NDArray:
    return onnxruntime.InferenceSession(str(path)).run(None, feed)[0]


BRANCHES = """m (float[N, 64] x, bool c) => (float[N, 64] y) {
    a = MatMul(x, W1)
    b = If (c) <then_branch = t () => (float[N, 64] o) { p = MatMul(a, W2) o = Add(p, x) },
                else_branch = e () => (float[N, 64] q) { q = Identity(a) }>
    y = MatMul(b, W3) }"""


@pytest.mark.parametrize("text", [DEEP, BRANCHES], ids=["deep", "branches"])
def test_pieces_one_after_the_other_are_the_model(text: str, tmp_path: Path) -> None:
    names = [f"W{i}" for i in range(1, 5) if f"W{i}" in text]
    proto = tiny.model(text, {name: tiny.normal(64, 64, seed=i) for i, name in enumerate(names)})
    model = open_job(tiny.save(proto, tmp_path), Recipe("int8"), "onnx").model
    pieces = cut(model, [weight.node for weight in find_weights(model)])
    assert [len(nodes) for _, nodes in pieces] == [1] * len(names)
    feed: dict[str, NDArray] = {"x": samples(1)[0]["x"]} | ({"c": np.array(True)} if text is BRANCHES else {})
    state = dict(feed)
    for piece, _ in pieces[:-1]:
        session = Session(piece.model(model, state, piece.makes))
        made = session.run({each.name: state[each.name] for each in session.inputs}, piece.makes)
        state |= dict(zip(piece.makes, made, strict=True))
        state = {name: state[name] for name in piece.leaves}
    last = pieces[-1][0]
    assert set(last.reads) <= state.keys()
    (before,) = (value.name for node in pieces[-1][1] for value in node.inputs if value.name not in names)
    whole = model.clone()
    whole.graph.outputs[:] = [next(value for node in whole.graph for value in node.outputs if value.name == before)]
    wanted = Session(whole).run(feed)[0]
    tail = last.model(model, state, [] if before in state else [before])
    got = state[before] if before in state else Session(tail).run({n: state[n] for n in last.reads})[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_layers_that_read_one_value_are_of_one_piece(tmp_path: Path) -> None:
    text = """m (float[N, 64] x) => (float[N, 64] y) {
        a = MatMul(x, W1) b = MatMul(x, W2) c = Mul(a, b) d = MatMul(c, W3) y = Add(d, a) }"""
    proto = tiny.model(text, {f"W{i}": tiny.normal(64, 64, seed=i) for i in (1, 2, 3)})
    model = open_job(tiny.save(proto, tmp_path), Recipe("int8"), "onnx").model
    assert [len(nodes) for _, nodes in cut(model, [weight.node for weight in find_weights(model)])] == [2, 1]


def test_an_input_that_later_pieces_read_again_is_no_other(tmp_path: Path) -> None:
    """Piece by piece W1; W2 and W3, which reads what W1 does; W4."""
    text = """m (float[N, 64] x) => (float[N, 64] y) {
        a = MatMul(x, W1) b = Relu(a) c = MatMul(b, W2) d = MatMul(x, W3) e = Mul(c, d) f = MatMul(e, W4)
        y = Add(f, a) }"""
    job = job_of(tiny.model(text, {f"W{i}": tiny.normal(64, 64, seed=i) for i in range(1, 5)}), tmp_path)
    found = evidence_of(job, needed(job), Effort(), tmp_path)
    sums = {name: layer.gram().sums for name, layer in found.items()}
    np.testing.assert_array_equal(sums["W1"], sums["W3"])
    assert not any(np.array_equal(sums["W1"], sums[name]) for name in ("W2", "W4"))


def test_sums_are_of_what_quantized_layers_leave(tmp_path: Path) -> None:
    text = "m (float[N, 64] x) => (float[N, 32] y) { h = MatMul(x, W1) r = Relu(h) y = MatMul(r, W2) }"
    job = job_of(tiny.model(text, {"W1": tiny.normal(64, 96), "W2": tiny.normal(96, 32)}), tmp_path)
    found = evidence_of(job, needed(job), Effort(), tmp_path)
    assert found["W1"].follows and found["W2"].follows
    assert job.data is not None
    x = np.concatenate([sample["x"] for sample in job.data.split(HELD_BACK)[0]])
    np.testing.assert_allclose(found["W1"].gram().cross, found["W1"].gram().sums, rtol=1e-5)
    q = gptaq.quantize(
        tiny.normal(64, 96), formats.get("int3"), Granularity(0, 32), layer=found["W1"], half_scales=False
    )
    true, coded = (np.maximum(x @ w, 0) for w in (tiny.normal(64, 96), q.dequantize()))
    second = found["W2"].gram()
    assert second.cross is not None
    scale = float(np.abs(second.sums).max())
    np.testing.assert_allclose(second.sums[0], coded.T @ coded, atol=0.03 * scale)
    np.testing.assert_allclose(second.cross[0], coded.T @ true, atol=0.03 * scale)
    off = np.abs(coded.T @ true - coded.T @ coded).max()
    assert np.abs(second.cross[0] - coded.T @ true).max() < 0.2 * off  # which of the two it is shows


def layer_of(x: NDArray, true: NDArray, file: Path) -> Layer:
    gram = Gram.empty(1, x.shape[1], follows=True)
    gram.update_pair(x[:, None], true[:, None])
    add_input(file, 0, gram, [x[:, None]], [true[:, None]])
    return Layer(1, 1, file, (0,), follows=True)


@pytest.mark.parametrize("word", ["int4", "int3", "uint2", "nf4"])
def test_codes_make_up_for_what_layers_before_changed(word: str, tmp_path: Path) -> None:
    r = np.random.default_rng(0)
    true = (r.standard_normal((2000, 64)) @ r.standard_normal((64, 64))).astype(np.float32)
    x = (true + 0.3 * true[:, ::-1] * r.uniform(0, 1, 64)).astype(np.float32)  # a change that weights can undo
    w = tiny.normal(64, 24)
    follows = layer_of(x, true, tmp_path / "follows.npz")
    found = gptaq.quantize(w, formats.get(word), Granularity(0, 32), layer=follows)
    plain = dataclasses.replace(follows, follows=False)
    without = gptq.quantize(w, formats.get(word), Granularity(0, 32), layer=plain)
    errors = [np.square(x @ q.dequantize() - true @ w).sum() for q in (found, without)]
    assert errors[0] < (0.8 if word == "uint2" else 0.5) * errors[1]
    assert follows.chosen["gptaq"] > 0 and plain.chosen["gptq"] > 0


def test_rows_held_back_say_how_far_to_go() -> None:
    r = np.random.default_rng(1)
    w, shift, x = (r.standard_normal(shape).astype(np.float32) for shape in ((8, 3), (8, 3), (50, 8)))
    for part in (0.0, 0.5, 1.0):
        target = (x @ w + part * (x @ shift)).astype(np.float32)
        in_float = target @ np.linalg.pinv(w)  # rows whose outputs by w are the target
        np.testing.assert_allclose(making_up(w, shift, x, in_float.astype(np.float32)), w + part * shift, atol=1e-5)
    np.testing.assert_array_equal(making_up(w, shift, x[:0], x[:0]), w)
    np.testing.assert_array_equal(making_up(w, shift * np.float32(np.inf), x, x), w)


def test_a_deep_model_is_nearer_to_float_than_by_float_layers(tmp_path: Path) -> None:
    model, other = tiny.save(deep(), tmp_path), samples(1, 400, seed=7)[0]
    found = {}
    for word in ("gptq", "gptaq", None):
        result = quantize(
            model, tmp_path / f"{word}.onnx", Recipe("int3", algorithm=word, accuracy_level=0), target="onnxq",
            data=samples(), check=False,
        )  # fmt: skip
        found[word] = tiny.sqnr(run(model, other), run(result.output, other))
    assert found["gptaq"] > found["gptq"] + 0.5
    assert found[None] == found["gptaq"]  # the default
    assert any("gptaq" in note for note in result.notes)


def test_values_on_disk_and_layers_in_turns_give_the_same(tmp_path: Path) -> None:
    model = tiny.save(deep(), tmp_path)
    for name, effort in (("all", Effort()), ("little", Effort(memory=1))):
        options = {"target": "onnxq", "data": samples(), "check": False, "effort": effort}
        quantize(model, tmp_path / f"{name}.onnx", Recipe("int3"), **options)
    assert (tmp_path / "all.onnx").read_bytes() == (tmp_path / "little.onnx").read_bytes()


def test_a_shelf_gives_back_what_was_put_there_last(tmp_path: Path) -> None:
    for memory in (None, 0, 100):
        shelf = Shelf(tmp_path / str(memory), memory)
        for turn in range(2):
            for i in range(5):
                shelf.put(i, {"a/b": np.full((i, 3), turn), "c": np.array(True)})
        for i in range(5):
            np.testing.assert_array_equal(shelf.get(i)["a/b"], np.full((i, 3), 1))
            assert shelf.get(i)["c"].dtype == np.bool_ and shelf.get(i)["c"].shape == ()


@pytest.mark.parametrize("memory", [None, 0])
def test_a_shelf_keeps_types_that_files_of_numpy_do_not_know(memory: int | None, tmp_path: Path) -> None:
    values = {"a": np.array([[1.5, -2]], ml_dtypes.bfloat16), "s": np.array(["x", "yz"], object), "n": np.arange(3)}
    shelf = Shelf(tmp_path / "shelf", memory)
    shelf.put(0, values)
    for name, array in shelf.get(0).items():
        assert array.dtype == values[name].dtype
        np.testing.assert_array_equal(array, values[name])


SEQUENCE = """m (float[N, 64] x) => (float[N, 64] y) {
    a = MatMul(x, W1) s = SequenceConstruct(a, x) b = Relu(a) c = MatMul(b, W2) d = ConcatFromSequence <axis = 1> (s)
    e = Slice(d, zero, to, one) y = Add(c, e) }"""


def test_a_model_that_cannot_be_cut_gets_codes_by_float_layers(tmp_path: Path) -> None:
    constants = {"zero": np.array([0]), "to": np.array([64]), "one": np.array([1])}
    proto = tiny.model(SEQUENCE, {f"W{i}": tiny.normal(64, 64, seed=i) for i in (1, 2)} | constants)
    job = job_of(proto, tmp_path)
    found = evidence_of(job, needed(job), Effort(), tmp_path)
    assert set(found) == {"W1", "W2"} and not any(layer.follows for layer in found.values())


@pytest.mark.parametrize("memory", [None, 1])
def test_a_model_with_defaults_for_inputs_gets_codes_by_float_layers(memory: int | None, tmp_path: Path) -> None:
    """Samples need not have such an input, which several pieces may read."""
    text = """m (float[N, 64] x, float[64] bias) => (float[N, 64] y) {
        a = MatMul(x, W1) b = Add(a, bias) c = Relu(b) d = MatMul(c, W2) y = Add(d, bias) }"""
    weights = {f"W{i}": tiny.normal(64, 64, seed=i) for i in (1, 2)} | {"bias": tiny.normal(64)}
    job = job_of(tiny.model(text, weights), tmp_path)
    found = evidence_of(job, needed(job), Effort(memory=memory), tmp_path)
    assert set(found) == {"W1", "W2"} and not any(layer.follows for layer in found.values())


def test_a_weight_read_twice_and_a_named_gptq_are_of_float_layers(tmp_path: Path) -> None:
    text = "m (float[N, 64] x) => (float[N, 64] y) { h = MatMul(x, W) r = Relu(h) s = MatMul(r, V) y = MatMul(s, W) }"
    proto = tiny.model(text, {"W": tiny.normal(64, 64), "V": tiny.normal(64, 64, seed=2)})
    job = job_of(proto, tmp_path)
    found = evidence_of(job, needed(job), Effort(), tmp_path)
    assert not found["W"].follows and found["V"].follows
    named = job_of(proto, tmp_path, algorithm="gptq")
    (folder := tmp_path / "named").mkdir()
    assert not any(layer.follows for layer in evidence_of(named, needed(named), Effort(), folder).values())


def test_a_file_of_evidence_is_of_float_layers(tmp_path: Path) -> None:
    model = tiny.save(deep(), tmp_path)
    options = {"target": "onnxq", "data": samples(), "check": False}
    quantize(model, tmp_path / "a.onnx", Recipe("int3"), evidence=tmp_path / "kept.npz", **options)
    quantize(model, tmp_path / "b.onnx", Recipe("int3", algorithm="gptq"), **options)
    feed = samples(1, 400, seed=7)[0]
    np.testing.assert_array_equal(run(tmp_path / "a.onnx", feed), run(tmp_path / "b.onnx", feed))


def test_what_is_left_of_the_model_behind_the_last_layer_is_not_run(tmp_path: Path) -> None:
    job = job_of(deep(), tmp_path)
    walk = FollowingWalk(job, NO_RANGES, None, tmp_path)
    walk.through({name: several[0] for name, several in needed(job).items()})
    assert set(walk.found) == {"W1", "W2", "W3", "W4"}
    assert set(walk.quantized.get(0)) == {"d", "g"}
