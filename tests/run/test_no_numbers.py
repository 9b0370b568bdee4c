"""Where the float model gives no number, nothing is called the same: NaN of weights or samples, or made by a layer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from bundled import edit, sign_again
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import helper

from onnxq.bundles import measure
from onnxq.checking.layers.difference import difference
from onnxq.cli import main
from onnxq.quality import MAX_DB, Quality, compare_outputs

pytestmark = pytest.mark.usefixtures("quick")
TEXT = (
    "g (float[1, 16] x) => (float[1, 6] y) "
    "{ [up] a = MatMul(x, w)  b = Relu(a)  [down] c = MatMul(b, v)  [head] y = MatMul(c, h) }"
)
CONSTANTS = {"w": tiny.normal(16, 32), "v": tiny.normal(32, 16, seed=1), "h": tiny.normal(16, 6, seed=2)}
NAN = {"v": np.full((32, 16), np.nan, np.float32)}
SAID = "gives no finite number at 'y' on these inputs"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "SECONDS", 0.001)
    tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path, "sound.onnx")
    tiny.save(tiny.model(TEXT, CONSTANTS | NAN), tmp_path, "nan.onnx")
    tiny.save(tiny.model(TEXT.replace("Relu(a)", "Sqrt(a)"), CONSTANTS), tmp_path, "made.onnx")
    np.savez("sound.npz", x=tiny.normal(12, 1, 16))
    np.savez("nan.npz", x=np.full((12, 1, 16), np.nan, np.float32))
    np.savez("inf.npz", x=np.full((12, 1, 16), np.inf, np.float32))
    return tmp_path


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    "words",
    [
        ("check", "nan.onnx", "sound.onnx"),
        ("check", "nan.onnx", "nan.onnx"),
        ("check", "sound.onnx", "made.onnx", "--data", "nan.npz"),
        ("quantize", "sound.onnx", "-s", "fp16", "--data", "nan.npz", "-o", "out.onnx"),
        ("quantize", "sound.onnx", "-s", "fp16", "--data", "inf.npz", "-o", "out.onnx"),
        ("quantize", "made.onnx", "-s", "w8a8", "--data", "sound.npz", "-o", "out.onnx"),
    ],
    ids=" ".join,
)
def test_nothing_is_called_identical(words: tuple[str, ...]) -> None:
    said = run(*words, code=3)
    assert SAID in said and "identical" not in said


@pytest.mark.parametrize(
    ("model", "data", "why"),
    [
        ("sound", "nan", "the samples hold NaN at input 'x': give samples without it"),
        ("sound", "inf", "the samples hold infinity at input 'x': give samples without it"),
        ("made", "sound", "weights hold NaN or infinity ('onnxq doctor' names these), or a layer makes them"),
    ],
)
def test_why_there_are_none_is_said_once(model: str, data: str, why: str) -> None:
    words = ("quantize", f"{model}.onnx", "-s", "fp16", "--data", f"{data}.npz", "-o", "out.onnx")
    assert run(*words, code=3).count(f"{SAID}: not compared; {why}") == 1
    assert run("check", f"{model}.onnx", "out.onnx", "--data", f"{data}.npz", code=3).count(why) == 1
    assert why in run("export", f"{model}.onnx", "-o", "b", "--data", f"{data}.npz")


def test_numbers_where_there_were_none_are_not_the_same_layer_by_layer() -> None:
    assert "first differ at 'c' (MatMul)" in run("check", "nan.onnx", "sound.onnx", "--by-layer")
    assert "the same throughout" in run("check", "nan.onnx", "nan.onnx", "--by-layer")
    nan, one = np.full(3, np.nan), np.ones(3)
    assert 100 < difference(np.array([1, np.inf]), np.array([1, 7])).sqnr < MAX_DB
    assert difference(nan, one).broken and not difference(nan, nan).broken
    assert not difference(np.array([1, -np.inf]), np.array([1, -1e30])).broken  # as masks of attention are


def test_what_comes_out_at_an_output_without_numbers_is_told_beside_others(folder: Path) -> None:
    text = TEXT.replace("float[1, 6] y", "float[1, 6] y, float[1, 16] z").replace("(c, h) }", "(c, h)  z = Relu(x) }")
    for name, weights in (("lost", NAN), ("mended", {})):
        tiny.save(tiny.model(text, CONSTANTS | weights), folder, f"{name}.onnx")
    said = run("check", "lost.onnx", "mended.onnx")
    assert "identical" not in said and "in places of 'y' where something else comes out now" in said
    assert "identical" in run("check", "lost.onnx", "lost.onnx")


def test_the_doctor_names_the_weight(tmp_path: Path) -> None:
    assert "512 of 512 numbers of 'v' are not finite" in run("doctor", "nan.onnx", code=5)
    masked = "g (float[1, 4] x) => (float[1, 4] y) { [m] y = Add(x, m) }"
    tiny.save(tiny.model(masked, {"m": np.full((1, 4), -np.inf, np.float32)}), tmp_path, "mask.onnx")
    run("doctor", "mask.onnx")
    run("doctor", "sound.onnx")


def test_some_samples_without_numbers_do_not_spoil_the_others() -> None:
    wanted = [[np.full((1, 2), np.nan, np.float32)], [np.ones((1, 2), np.float32)]]
    found = compare_outputs(["y"], wanted, wanted)
    assert not found.blank and found.outputs == {"y"}
    assert compare_outputs(["y"], wanted[:1], wanted[:1]).blank == ["y"]
    assert found.partly_blank == ["y"] and compare_outputs(["y"], wanted[1:], wanted[1:]).partly_blank == []
    assert Quality().blank == Quality().partly_blank == []


def test_samples_that_are_left_out_are_told() -> None:
    x = tiny.normal(12, 1, 16)
    x[3:6] = np.nan
    np.savez("some.npz", x=x)
    for words in (("check", "sound.onnx", "sound.onnx"), ("quantize", "sound.onnx", "-s", "fp16", "-o", "out.onnx")):
        said = run(*words, "--data", "some.npz")
        assert "no finite number at 'y' on some of these inputs: those are left out of the comparison" in said


@pytest.mark.parametrize("weights", [NAN, {}], ids=["the same", "other"])
def test_a_bundle_without_numbers_is_not_called_right(weights: dict, folder: Path) -> None:
    run("export", "nan.onnx", "-o", "b")
    _replace_model(folder / "b", tiny.model(TEXT, CONSTANTS | weights).SerializeToString())
    said = run("verify", "b", code=3)
    assert "where it was exported, the model gives no finite number at 'y'" in said and "identical" not in said
    assert ("in places of 'y' where something else comes out now" in said) is not bool(weights)


def test_decisions_beside_outputs_without_numbers_do_not_vouch_for_these(folder: Path) -> None:
    text = TEXT.replace("float[1, 6] y", "float[1, 6] y, int64[1] i").replace(
        "(c, h) }", "(c, h)  i = ArgMax<axis=1, keepdims=0>(x) }"
    )
    for name, weights in (("both", NAN), ("well", {})):
        tiny.save(tiny.model(text, CONSTANTS | weights), folder, f"{name}.onnx")
    assert "the model gives no finite number at 'y'" in run("export", "both.onnx", "-o", "b")
    said = run("verify", "b")
    assert "identical" in said and "gives no finite number at 'y'" in said
    _replace_model(folder / "b", (folder / "well.onnx").read_bytes())
    assert "in places of 'y' where something else comes out now" in run("verify", "b", code=3)


def test_numbers_in_single_places_where_there_were_none_are_told(folder: Path) -> None:
    text = "g (float[1, 16] x) => (float[1, 16] y) { y = Relu(x) }"
    mended = "g (float[1, 16] x) => (float[1, 16] y) { r = Relu(x)  n = IsNaN(x)  y = Where(n, seven, r) }"
    tiny.save(tiny.model(text), folder, "a.onnx")
    tiny.save(tiny.model(mended, {"seven": np.float32(7)}), folder, "b.onnx")
    x = tiny.normal(4, 1, 16)
    x[:, :, 3] = np.nan
    np.savez("places.npz", x=x)
    said = "in places of 'y' where something else comes out now"
    found = run("check", "a.onnx", "b.onnx", "--data", "places.npz")
    assert said in found and "identical" not in found
    assert said not in run("check", "a.onnx", "a.onnx", "--data", "places.npz")
    for b, is_other in (("b.onnx", True), ("a.onnx", False)):
        found = run("check", "a.onnx", b, "--data", "places.npz", "--by-layer")
        assert ("'y': where A has NaN or infinity, B has something else in places" in found) is is_other
    assert said in run("export", "b.onnx", "-o", "b", "--reference", "a.onnx", "--data", "places.npz")
    run("export", "a.onnx", "-o", "c", "--data", "places.npz")
    assert "identical" in run("verify", "c") and "identical" in _program(folder / "c")
    _replace_model(folder / "c", (folder / "b.onnx").read_bytes())
    found = run("verify", "c", code=3)
    assert said in found and "identical" not in found
    assert "in all finite numbers, something else in 4 places that held NaN or infinity" in _program(folder / "c")


@pytest.mark.parametrize("large", [1.0, 1e153, 1e200, 1e308])
def test_other_numbers_are_told_however_large(large: float, folder: Path) -> None:
    tiny.save(tiny.model("g (double[1, 16] x) => (double[1, 16] y) { y = Identity(x) }"), folder, "a.onnx")
    np.savez("large.npz", x=np.full((2, 1, 16), large))
    run("export", "a.onnx", "-o", "b", "--data", "large.npz")
    assert "agrees  identical with" in _program(folder / "b")
    arrays = dict(np.load("b/samples.npz"))
    np.savez("b/samples.npz", **{name: x * (0.5 if name.startswith("out") else 1) for name, x in arrays.items()})
    assert "agrees  0.0 dB with" in _program(folder / "b")
    sign_again(folder / "b", "samples.npz")
    assert "computes something else here" in run("verify", "b", code=1)


@pytest.mark.parametrize(
    ("x", "agrees"),
    [
        pytest.param([[1e150] * 4, [1.0] * 4], "-6.0 dB", id="beside huge ones"),
        pytest.param([[1e-170] * 4, [2e-170] * 4], "-6.0 dB", id="tiny"),
        pytest.param([[-3e7] * 4, [1.0, 2.0, 3.0, 4.0]], None, id="beside large ones"),
    ],
)
def test_where_a_number_differs_nothing_is_identical(x: list, agrees: str | None, folder: Path) -> None:
    """Beside large ones the error is told by the largest difference alone."""
    for name, op in (("a", "Where(l, n, n)"), ("b", "Where(l, n, x)")):
        text = "g (double[1, 4] x) => (double[1, 4] y) { a = Abs(x)  l = Less(t, a)  n = Neg(x)  y = "
        tiny.save(tiny.model(f"{text}{op} }}", {"t": np.array(1e4)}), folder, f"{name}.onnx")
    np.savez("apart.npz", x=np.array(x)[:, None])
    run("export", "a.onnx", "-o", "b", "--data", "apart.npz")
    _replace_model(folder / "b", (folder / "b.onnx").read_bytes())
    program = _program(folder / "b")
    assert "identical" not in program and f"agrees  {agrees or '13'}" in program
    said = run("check", "a.onnx", "b.onnx", "--data", "apart.npz")
    layers = run("check", "a.onnx", "b.onnx", "--data", "apart.npz", "--by-layer")
    if agrees is None:
        assert "119.9 dB" in said and "119.9 dB" in run("verify", "b")
        assert "'y' the least: 119.9 dB" in layers
    else:
        assert f"{agrees} SQNR" in said and agrees in run("verify", "b", code=1)
        assert f"first differ at 'y' (Where): {agrees}" in layers


def _program(bundle: Path) -> str:
    """What the bundle's own program prints, and nothing besides."""
    done = subprocess.run([sys.executable, bundle / "run.py"], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def _replace_model(bundle: Path, raw: bytes) -> None:
    (bundle / "model.onnx").write_bytes(raw)
    sign_again(bundle, "model.onnx")


def test_outputs_of_the_float_model_that_are_stored_otherwise_are_no_samples(folder: Path) -> None:
    run("export", "sound.onnx", "-o", "b", "--reference", "sound.onnx")
    arrays = dict(np.load(folder / "b" / "samples.npz")) | {"float.0.0": np.ones((1, 6), bool)}
    np.savez(folder / "b" / "samples.npz", **arrays)
    sign_again(folder / "b", "samples.npz")
    assert "holds the output 'y' and the float model's as two kinds" in run("verify", "b", code=1)


@pytest.mark.parametrize("floats", [np.full((1, 6), np.nan, np.float32), np.zeros((1, 7), np.float32)])
def test_a_distance_to_float_that_nothing_stored_tells_is_a_contradiction(floats: NDArray, folder: Path) -> None:
    run("export", "sound.onnx", "-o", "b", "--reference", "sound.onnx")
    stored = dict(np.load(folder / "b" / "samples.npz"))
    np.savez(
        folder / "b" / "samples.npz", **{name: floats if name[:6] == "float." else x for name, x in stored.items()}
    )
    sign_again(folder / "b", "samples.npz")
    assert "the outputs that are stored in it nothing that could be compared" in run("verify", "b", code=1)


def test_outputs_whose_shape_follows_from_the_numbers_are_verified(folder: Path) -> None:
    """By what was stored, where the float model has another shape; what else there is, by its distance to float."""
    nonzero = "{ a = MatMul(x, w)  b = Greater(a, least)  y = NonZero(b)"
    for text, figure in (
        (f"g (float[1, 16] x) => (int64[2, k] y) {nonzero} }}", None),
        (f"g (float[1, 16] x) => (int64[2, k] y, float[1, 16] s) {nonzero}  s = Mul(a, v) }}", 120.0),
    ):
        for name, least, v in (("few", 2.0, 1.0), ("more", 0.0, 1.0), ("wrong", 2.0, 7.0)):
            constants = {"w": CONSTANTS["w"], "least": np.float32(least), "v": np.float32(v)}
            tiny.save(tiny.model(text, constants), folder, f"{name}.onnx")
        said = run("export", "few.onnx", "-o", "b", "--reference", "more.onnx", "--data", "sound.npz", "--force")
        assert "output 'y' has another shape in the float model: not compared with it" in said
        assert json.loads((folder / "b" / "manifest.json").read_text())["measured"]["sqnr"] == figure
        assert "identical" in run("verify", "b")
        _replace_model(folder / "b", (folder / "more.onnx").read_bytes())
        assert "computes something else here" in run("verify", "b", code=1)
    _replace_model(folder / "b", (folder / "wrong.onnx").read_bytes())
    assert "further from float here" in run("verify", "b", code=1)
    edit(folder / "b", lambda table: table["measured"].update(sqnr=-120.0))
    assert "contradicts itself: its manifest says -120.0 dB" in run("verify", "b", code=1)


def test_what_gives_another_kind_of_output_is_no_float_model_of_a_bundle(folder: Path) -> None:
    tiny.save(tiny.model("g (float[1, 16] x) => (bool[1, 16] y) { y = IsNaN(x) }"), folder, "other.onnx")
    said = run("export", "sound.onnx", "-o", "b", "--reference", "other.onnx", code=1)
    assert "'other.onnx' gives 'y' as another kind than 'sound.onnx': float32 and bool" in said
    text = "g (float[1, 16] x) => (seq(float[?, ?]) y) { s = SplitToSequence<axis = 1>(x, n)  y = Identity(s) }"
    tiny.save(tiny.model(text, {"n": np.array([3, 13])}), folder, "parts.onnx")
    said = run("export", "sound.onnx", "-o", "b", "--reference", "parts.onnx", code=1)
    assert "as another kind than 'sound.onnx': float32 and what is no array of numbers" in said


def test_what_nobody_could_run_or_compare_is_told_by_the_exit_status(folder: Path) -> None:
    text = "g (float[n] x, int64[2] s) => (float[a, b] y) { z = Reshape(x, s)  y = MatMul(z, w) }"
    tiny.save(tiny.model(text, {"w": tiny.normal(7919, 8)}), folder, "picky.onnx")
    assert "nothing that 'onnxq verify' could compare" in run("export", "picky.onnx", "-o", "b", code=3)
    run("export", "picky.onnx", "-o", "c", "--no-check")
    said = run("check", "picky.onnx", "picky.onnx", "--by-layer", code=3)
    assert "0 layers compared" in said
    assert "no layer of 'picky.onnx' was compared with one of 'picky.onnx': no sample could be made up" in said


def test_why_no_layer_was_compared_is_told(folder: Path) -> None:
    (folder / "whole").mkdir()
    tiny.save(tiny.model("g (float[1, 4] x) => (int64[1, 4] y) { y = Cast<to = 7>(x) }"), folder / "whole", "i.onnx")
    words, why = ("whole/i.onnx", "whole/i.onnx", "--by-layer"), "no layer that is in both models gives floating"
    assert f"warning: no layer of 'whole/i.onnx' was compared with one of 'whole/i.onnx': {why}" in run(
        "check", *words, code=3
    )
    result = CliRunner().invoke(main, ["check", *words, "--json"])
    assert result.exit_code == 3 and json.loads(result.stdout)["notes"][-1].startswith(why)
    assert why in run("check", "whole", "whole", "--by-layer", code=3)
    assert "identical" in run("check", "whole/i.onnx", "whole/i.onnx")
    for n in (6, 8):
        text = f"g (float[1, 16] x) => (float[1, {n}] y) {{ y = MatMul(x, w) }}"
        tiny.save(tiny.model(text, {"w": tiny.normal(16, n)}), folder, f"{n}.onnx")
    said = run("check", "8.onnx", "6.onnx", "--by-layer", code=3)
    assert f"{why}-point numbers, as many in one as in the other, on these inputs" in said


def test_a_manifest_whose_error_is_no_number_is_damaged(folder: Path) -> None:
    """Else every comparison with it would be passed."""
    run("export", "sound.onnx", "-o", "b", "--reference", "sound.onnx")
    for x in (float("nan"), float("inf"), -float("inf")):
        edit(folder / "b", lambda table, x=x: table["measured"].update(sqnr=x))
        assert "is damaged: measured.sqnr" in run("verify", "b", code=1)


@pytest.mark.parametrize(
    ("op", "kind"),
    [("Optional", helper.make_optional_type_proto), ("SequenceConstruct", helper.make_sequence_type_proto)],
)
def test_layers_are_compared_beside_outputs_that_are_no_tensors(
    folder: Path, op: str, kind: Callable[[onnx.TypeProto], onnx.TypeProto]
) -> None:
    proto = tiny.model(TEXT, CONSTANTS, opset=18)
    proto.graph.node.append(helper.make_node(op, ["y"], ["other"]))
    proto.graph.output.append(helper.make_value_info("other", kind(proto.graph.output[0].type)))
    tiny.save(proto, folder, "other.onnx")
    said = run("check", "other.onnx", "other.onnx", "--by-layer")
    assert "4 layers compared" in said
    assert "OptionalType" not in said


def test_a_search_tells_no_plans_apart_by_nothing() -> None:
    """Each would be as good as float, and the smallest the best."""
    said = run("search", "made.onnx", "--data", "sound.npz", code=1)
    assert "one plan cannot be told from another on these inputs: the float model gives no finite number at 'y'" in said


def test_a_search_by_decisions_shows_no_divergence(tmp_path: Path) -> None:
    text = TEXT.replace("float[1, 6] y", "int64[1] z").replace(
        "(c, h) }", "(c, h)  z = ArgMax<axis=1, keepdims=0>(y) }"
    )
    tiny.save(tiny.model(text, CONSTANTS), tmp_path, "said.onnx")
    said = run("search", "said.onnx", "--data", "sound.npz")
    assert "flipped" in said and "divergence" not in said


@pytest.mark.parametrize("words", [("dequantize",), ("convert", "--to", "ort")], ids=" ".join)
def test_what_is_made_of_it_is_not_called_compared(words: tuple[str, ...], folder: Path) -> None:
    run("quantize", "sound.onnx", "-s", "w8a16", "-o", "q.onnx")
    proto = onnx.load("q.onnx")
    next(each for each in proto.graph.output if each.name == "y").name = "before"
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            node.output[i] = "before" if name == "y" else name
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(np.nan, np.float32), "nan"))
    proto.graph.node.append(helper.make_node("Add", ["before", "nan"], ["y"]))
    proto.graph.output[0].name = "y"
    onnx.save(proto, folder / "q.onnx")
    out = "out.ort" if "ort" in words else "out.onnx"
    said = run(words[0], "q.onnx", *words[1:], "-o", out, code=3)
    assert "nobody knows whether it agrees" in said and SAID in said


def test_outputs_of_no_numbers_are_not_the_same(tmp_path: Path) -> None:
    text = "g (float[1, 16] x) => (int64[2, k] y) { a = MatMul(x, w)  b = Greater(a, most)  y = NonZero(b) }"
    tiny.save(tiny.model(text, {"w": CONSTANTS["w"], "most": np.array(1e9, np.float32)}), tmp_path, "none.onnx")
    said = run("quantize", "none.onnx", "-s", "w8a16", "--data", "sound.npz", "-o", "out.onnx", code=3)
    assert "nothing was compared" in said and "identical" not in said


def test_nothing_is_identical_in_a_bench_or_to_the_float_model_of_a_bundle(folder: Path) -> None:
    said = run("bench", "made.onnx", "sound.onnx", "--seconds", "0.01", "--batch", "1", "--threads", "1")
    assert "could be compared with 'sound.onnx'" in said and "identical" not in said
    (folder / "made.onnx").rename("ma\nde.onnx")
    words = ["bench", "ma\nde.onnx", "sound.onnx", "--seconds", "0.01", "--batch", "1", "--threads", "1"]
    assert "\nde.onnx" not in CliRunner().invoke(main, words).output
    said = run("export", "sound.onnx", "-o", "b", "--reference", "nan.onnx")
    assert SAID in said and json.loads((folder / "b" / "manifest.json").read_text())["measured"]["sqnr"] is None
    assert "against the float model" not in run("verify", "b")


def test_a_folder_with_such_a_model_is_told_by_its_exit_status(folder: Path) -> None:
    (folder / "several").mkdir()
    for name in ("made", "sound"):
        (folder / f"{name}.onnx").rename(folder / "several" / f"{name}.onnx")
    said = run("quantize", "several", "-s", "w8a16", "-o", "out", code=3)
    assert "out/made.onnx was written, but nobody knows how good it is" in said and "sound.onnx was" not in said
    assert said.count(SAID) == 1


def test_weights_put_into_such_a_model_are_told_by_the_exit_status() -> None:
    np.savez("w.npz", **{"down.weight": CONSTANTS["v"].T})
    said = run("import-weights", "made.onnx", "w.npz", "-o", "out.onnx", "--partial", code=3)
    assert "nobody knows how good it is" in said


def test_a_floor_is_no_number_of_decibels_below_nothing() -> None:
    said = run("check", "nan.onnx", "nan.onnx", "--fail-below", "sqnr=30", code=1)
    assert "nothing could be compared" in said and "nan dB" not in said
