"""Scores on labels that lie in the data, against plain transcriptions of what they mean; decisions beside SQNR."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

import onnxq
from onnxq.checking.logits import classes_of
from onnxq.checking.metrics import WORDS, Sums
from onnxq.cli import main
from onnxq.errors import BadData, BadRecipe, CheckFailed, OnnxqError
from onnxq.quality import MAX_DB, compare_outputs
from onnxq.quality.decisions import Classes

pytestmark = pytest.mark.usefixtures("quick")
TEXT = "m (float[n, 32] x) => (float[n, 10] y) { h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }"
COUNT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("metric")
    tiny.save(tiny.model(TEXT, {"w": tiny.normal(32, 64), "v": 3 * tiny.normal(64, 10, seed=1)}), made)
    x = np.random.default_rng(0).standard_normal((COUNT, 1, 32)).astype(np.float32)
    right = outputs(made / "model.onnx", x).argmax(axis=1)
    right[::4] = (right[::4] + 1) % 10  # the float model is wrong at times
    np.savez(made / "data.npz", x=x, y=right)
    np.savez(made / "scores.npz", x=x, y=np.eye(10, dtype=np.float32)[right])
    np.savez(made / "words.npz", x=x, y=np.array(["a"] * COUNT))
    np.savez(made / "flat.npz", x=x[:, 0], y=right)
    np.savez(made / "few.npz", x=x, y=right[:7])
    np.savez(made / "large.npz", x=x, y=right + 5)
    np.savez(made / "half.npz", x=x, y=right + 0.5)
    np.savez(made / "none.npz", x=x, y=np.full(COUNT, -100))
    return made


def outputs(model: Path, x: NDArray) -> NDArray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": each})[0] for each in x])


def logarithms(logits: NDArray) -> NDArray:
    logits = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def coarse(folder: Path, out: Path, **how: object) -> onnxq.Result:
    """So few bits that it shows."""
    recipe = onnxq.Recipe("uint4", block_size=128, min_sqnr=None, accuracy_level=0, effort="quick", algorithm="rtn")
    return onnxq.quantize(folder / "model.onnx", out, how.pop("recipe", recipe), force=True, **how)


def expected(word: str, logits: NDArray, right: NDArray, float_logits: NDArray) -> float:
    p, n = logarithms(logits), np.arange(len(right))
    if word in ("top1", "top5"):
        best = np.argsort(-p, axis=1)[:, : int(word[3:])]
        return float((best == right[:, None]).any(axis=1).mean())
    if word == "nll":
        return float(-p[n, right].mean())
    if word == "kld":
        q = logarithms(float_logits)
        return float((np.exp(q) * (q - p)).sum(axis=1).mean())
    found, scores = p.argmax(axis=1), []
    for each in np.union1d(right, found):
        hits = ((found == each) & (right == each)).sum()
        scores.append(2 * hits / ((found == each).sum() + (right == each).sum()))
    return float(np.mean(scores))


@pytest.mark.parametrize("word", ["top1", "top5", "f1", "nll", "kld"])
def test_check_scores_all_samples(folder: Path, tmp_path: Path, word: str) -> None:
    made = coarse(folder, tmp_path / "o.onnx").output
    found = onnxq.check(folder / "model.onnx", made, data=folder / "data.npz", metric=word, labels="y", limit=None)
    with np.load(folder / "data.npz") as arrays:
        x, right = arrays["x"], arrays["y"]
    both = [outputs(path, x) for path in (folder / "model.onnx", made)]
    assert found.score is not None
    assert found.score.in_float == pytest.approx(expected(word, both[0], right, both[0]), abs=1e-6)
    assert found.score.quantized == pytest.approx(expected(word, both[1], right, both[0]), abs=1e-5)
    assert found.score.drop == pytest.approx(
        (found.score.in_float - found.score.quantized) * (1 if WORDS[word].higher else -1)
    )
    assert found.kld == pytest.approx(expected("kld", both[1], right, both[0]), abs=1e-5)
    assert found.flips == (both[0].argmax(axis=1) != both[1].argmax(axis=1)).mean()


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("word", ["top1", "f1"])
def test_a_model_that_says_the_class_is_scored_as_its_scores_are(
    folder: Path, tmp_path: Path, word: str, keepdims: int
) -> None:
    dims = ", 1" * keepdims
    text = TEXT.replace("float[n, 10] y", f"int64[n{dims}] z").replace(
        "(r, v) }", f"(r, v)  z = ArgMax <axis = 1, keepdims = {keepdims}> (y) }}"
    )
    said = tiny.save(tiny.model(text, {"w": tiny.normal(32, 64), "v": 3 * tiny.normal(64, 10, seed=1)}), tmp_path)
    how = {"metric": word, "labels": "y", "limit": None, "data": folder / "data.npz"}
    one, other = (onnxq.check(path, path, **how).score for path in (folder / "model.onnx", said))
    assert one is not None and one == other and 0.3 < one.in_float < 0.9
    with pytest.raises(BadData, match=r"labels of shape \[10\] do not fit outputs of shape \[1"):
        onnxq.check(said, said, **how | {"data": folder / "scores.npz"})


def test_one_number_for_each_class_is_as_good_as_the_number_of_the_class(folder: Path, tmp_path: Path) -> None:
    made = coarse(folder, tmp_path / "o.onnx").output
    how = {"metric": "top1", "labels": "y", "limit": None}
    one, other = (
        onnxq.check(folder / "model.onnx", made, data=folder / name, **how).score for name in ("data.npz", "scores.npz")
    )
    assert one == other


def test_labels_of_rows_are_cut_with_their_samples(folder: Path, tmp_path: Path) -> None:
    made = coarse(folder, tmp_path / "o.onnx").output
    how = {"metric": "nll", "labels": "y", "limit": None}
    one, other = (
        onnxq.check(folder / "model.onnx", made, data=folder / name, **how).score for name in ("data.npz", "flat.npz")
    )
    assert one is not None and other is not None and one.quantized == pytest.approx(other.quantized, abs=1e-6)


def test_labels_in_dicts_of_python(folder: Path, tmp_path: Path) -> None:
    made = coarse(folder, tmp_path / "o.onnx").output
    with np.load(folder / "data.npz") as arrays:
        dicts = [{"x": x, "y": y} for x, y in zip(arrays["x"], arrays["y"], strict=True)]
    how = {"metric": "top5", "labels": "y", "limit": None}
    one, other = (
        onnxq.check(folder / "model.onnx", made, data=data, **how).score for data in (folder / "data.npz", dicts)
    )
    assert one == other


def test_a_drop_of_a_metric_is_kept(folder: Path, tmp_path: Path) -> None:
    how = {"data": folder / "data.npz", "metric": "nll", "labels": "y"}
    loose = coarse(folder, tmp_path / "a.onnx", **how)
    assert loose.score is not None and loose.score.allowed is None
    half = abs(loose.score.drop) / 2
    strict = coarse(folder, tmp_path / "b.onnx", recipe=onnxq.Recipe("w4a16", effort="quick"), max_drop=half, **how)
    assert strict.score is not None and strict.score.drop <= half
    assert strict.score.metric == "nll" and not strict.score.higher


def test_images_are_scored_in_decibels(tmp_path: Path) -> None:
    text = "m (float[n, 1, 8, 8] x) => (float[n, 1, 8, 8] y) { y = Conv <pads = [1, 1, 1, 1]> (x, k) }"
    kernel = np.zeros((1, 1, 3, 3), np.float32)
    kernel[0, 0, 1, 1] = 1
    tiny.save(tiny.model(text, {"k": kernel}), tmp_path)
    x = np.random.default_rng(0).random((6, 1, 8, 8)).astype(np.float32)
    right = x + 0.01
    np.savez(tmp_path / "data.npz", x=x, clean=right)
    model = tmp_path / "model.onnx"
    found = onnxq.check(model, model, data=tmp_path / "data.npz", metric="psnr", labels="clean").score
    assert found is not None
    wanted = 20 * math.log10((right.max() - right.min()) / 0.01)
    assert found.in_float == found.quantized == pytest.approx(wanted, abs=1e-2)


def test_scores_of_a_threshold(tmp_path: Path) -> None:
    text = "m (float[n, 6] x) => (float[n, 6] y) { y = Sigmoid (x) }"
    tiny.save(tiny.model(text), tmp_path)
    x = np.array([[[3, -3, 3, -3, 3, -3]], [[3, 3, 3, -3, -3, -3]]], np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.array([[1, 0, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0]]))
    model = tmp_path / "model.onnx"
    found = onnxq.check(model, model, data=tmp_path / "data.npz", metric="f1", labels="y").score
    assert found is not None and found.in_float == pytest.approx(2 * 5 / (6 + 6))


@pytest.mark.parametrize(
    ("file", "how", "said"),
    [
        ("data.npz", {"metric": "top2", "labels": "y"}, "unknown metric 'top2'; choose one of top1, top5"),
        ("data.npz", {"metric": "top1"}, "say by --labels which array"),
        ("data.npz", {"metric": "top1", "labels": "z"}, "have no labels 'z'"),
        ("data.npz", {"metric": "top1", "labels": "x"}, "'x' is an input of the model"),
        ("words.npz", {"metric": "top1", "labels": "y"}, "are no numbers"),
        ("data.npz", {"metric": "kld"}, "which is no input; the model's inputs are x; labels are named by --labels"),
        ("few.npz", {"metric": "top1", "labels": "y"}, "are 7 for 40 samples"),
        ("large.npz", {"metric": "nll", "labels": "y"}, "whole ones below 10"),
        ("half.npz", {"metric": "nll", "labels": "y"}, "whole ones below 10"),
        ("none.npz", {"metric": "top1", "labels": "y"}, "no sample has a label that counts"),
        ("data.npz", {"metric": "psnr", "labels": "y"}, "psnr needs labels of the output's shape"),
        ("data.npz", {"metric": "top1", "labels": "y", "logits": ["none"]}, "name the one that does by --logits"),
        (None, {"metric": "top1", "labels": "y"}, "give --data"),
    ],
)
def test_bad_labels_are_one_sentence(folder: Path, file: str | None, how: dict[str, object], said: str) -> None:
    data = None if file is None else folder / file
    with pytest.raises((BadData, BadRecipe)) as error:
        onnxq.check(folder / "model.onnx", folder / "model.onnx", data=data, **how)
    assert said in str(error.value).replace("\n", "") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"max_drop": 0.1}, "--max-drop is about a score"),
        ({"metric": "top1", "labels": "y", "evaluate": "math:sqrt"}, "--evaluate and --metric exclude each other"),
        ({"metric": "top1", "labels": "y", "max_drop": -1.0}, "invalid --max-drop -1"),
    ],
)
def test_what_does_not_go_together(folder: Path, tmp_path: Path, how: dict[str, object], said: str) -> None:
    with pytest.raises(BadRecipe, match=said):
        coarse(folder, tmp_path / "o.onnx", data=folder / "data.npz", **how)


def test_a_metric_of_a_broken_model_fails(folder: Path, tmp_path: Path) -> None:
    other = tiny.model(TEXT, {"w": np.full((32, 64), np.inf, np.float32), "v": tiny.normal(64, 10)})
    broken = tiny.save(other, tmp_path, "b.onnx")
    with pytest.raises(CheckFailed, match=r"--metric nll of the quantized model is nan"):
        onnxq.check(folder / "model.onnx", broken, data=folder / "data.npz", metric="nll", labels="y")


def test_on_the_command_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["quantize", str(folder / "model.onnx"), "-o", "o.onnx", "--data", str(folder / "data.npz"), "-s", "w4a16"]
    done = CliRunner().invoke(main, [*line, "--metric", "nll", "--labels", "y"])
    assert done.exit_code == 0, done.output
    assert "nll" in done.output and "decisions" in done.output and "KL divergence" in done.output
    line = ["check", str(folder / "model.onnx"), "o.onnx", "--data", str(folder / "data.npz"), "--metric", "kld"]
    line += ["--labels", "y"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    assert "kld" in done.output


# -- which outputs are scores of classes -------------------------------------------------------------------------------

ONE = {"w": np.ones((8, 5), np.float32), "b": np.ones(5, np.float32), "s": np.array(2, np.float32)}
ONE |= {"r": np.array([-1, 1, 5])}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("m (float[n, 8] x) => (float[n, 5] y) { y = MatMul (x, w) }", Classes(-1)),
        ("m (float[n, 8] x) => (float[n, 5] y) { h = MatMul (x, w)  i = Add (h, b)  y = Mul (i, s) }", Classes(-1)),
        ("m (float[n, 8] x) => (float[n, 5] y) { h = Gemm (x, w, b)  y = Identity (h) }", Classes(-1)),
        (
            "m (float[n, k, 8] x) => (float[n, k, 5] y) { h = MatMul (x, w)  i = Reshape (h, r)  y = Add (i, b) }",
            Classes(-1),
        ),
        (
            "m (float[n, k, 8] x) => (float[n, 5] y) { h = MatMul (x, w)  i = Size (x)  y = Reshape (h, i) }",
            Classes(-1),
        ),
        (
            "m (float[n, k, 8] x) => (float[k, n, 5] y) { h = MatMul (x, w)  y = Transpose <perm=[1, 0, 2]> (h) }",
            Classes(-1),
        ),
        ("m (float[n, 8] x) => (float[n, 1, 5, 1] y) { h = MatMul (x, w)  y = Reshape (h, r) }", None),
        ("m (float[n, 8] x) => (float[] y) { h = MatMul (x, w)  y = Reshape (h, r) }", None),
        (
            "m (float[n, k, 8] x) => (float[n, 5, k] y) { h = MatMul (x, w)  y = Transpose <perm = [0, 2, 1]> (h) }",
            None,
        ),
        ("m (float[n, 5] x) => (float[n, 5] y) { y = Softmax <axis = 1> (x) }", Classes(1, "probabilities")),
        ("m (float[n, 5] x) => (float[n, 5] y) { y = LogSoftmax (x) }", Classes(-1, "logarithms")),
        ("m (float[n, k] x) => (float[n, k] y) { y = Softmax (x) }", None),
        ("m (float[n, 8] x, float[n, 5] z) => (float[n, 5] y) { h = MatMul (x, w)  y = Add (h, z) }", None),
        ("m (float[n, 8] x, float[n, 5] z) => (float[n, 5] y) { k = Relu (z)  y = MatMul (x, w) }", None),
        ("m (float[n, 8] x) => (float[n, 5] y) { h = MatMul (x, w)  y = Relu (h) }", None),
    ],
    ids=[
        "matmul",
        "bias-and-scale",
        "gemm",
        "rows",
        "shape",
        "turned",
        "places",
        "unknown",
        "columns",
        "softmax",
        "logsoftmax",
        "attention",
        "two",
        "given-back",
        "relu",
    ],
)
def test_outputs_of_classes_are_found_in_the_graph(text: str, wanted: Classes | None) -> None:
    model = tiny.read(
        tiny.model(text, {name: x for name, x in ONE.items() if name in text.replace("(", " ").split("{")[1]})
    )
    assert classes_of(model) == ({} if wanted is None else {"y": wanted})
    assert classes_of(model, ["none"]) == {}
    assert "y" in classes_of(model, ["y"])


def test_probabilities_logits_and_logarithms_diverge_alike() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 7, 5))
    softmax = lambda x: np.exp(logarithms(x))  # noqa: E731
    forms = {"logits": (a, b), "probabilities": (softmax(a), softmax(b)), "logarithms": (logarithms(a), logarithms(b))}
    found = [compare_outputs(["y"], [[x]], [[y]], classes={"y": Classes(-1, kind)}) for kind, (x, y) in forms.items()]
    wanted = float((softmax(a) * (logarithms(a) - logarithms(b))).sum(axis=1).mean())
    assert [each.kld for each in found] == pytest.approx([wanted] * 3)
    assert {each.flips for each in found} == {float((a.argmax(axis=1) != b.argmax(axis=1)).mean())}


def test_what_is_not_a_number_is_as_far_away_as_can_be() -> None:
    a = np.zeros((2, 4), np.float32)
    b = np.array([[0, 0, 0, 0], [np.nan, 0, 0, 0]], np.float32)
    found = compare_outputs(["y"], [[a]], [[b]], classes={"y": Classes(-1)})
    assert found.flips == 0.5 and found.kld > 10
    assert math.isnan(compare_outputs(["y"], [[a]], [[a]]).kld)


def test_errors_are_ours(folder: Path) -> None:
    with pytest.raises(OnnxqError, match="no output 'q'; it has y"):
        onnxq.check(folder / "model.onnx", folder / "model.onnx", logits=["q"])
    onnx.checker.check_model(onnx.load(folder / "model.onnx"))


@pytest.mark.parametrize("word", ["top1", "top5", "f1"])
def test_what_is_no_number_is_no_right_answer(folder: Path, tmp_path: Path, word: str) -> None:
    """The largest of nothing but NaN is the first class."""
    how = {"metric": word, "labels": "y", "limit": None, "data": folder / "data.npz"}
    text = TEXT.replace("y = MatMul (r, v) }", "z = MatMul (r, v)  y = Where (c, z, nan) }")
    weights = {"w": tiny.normal(32, 64), "v": 3 * tiny.normal(64, 10, seed=1), "nan": np.array(np.nan, np.float32)}
    never = tiny.save(tiny.model(text, weights | {"c": np.array(False)}), tmp_path, "never.onnx")
    with pytest.raises(CheckFailed, match="its outputs are no numbers"):
        onnxq.check(folder / "model.onnx", never, **how)
    with pytest.raises(BadData, match="outputs that are numbers"):
        onnxq.check(never, never, **how, logits=("y",))
    at_times = text.replace("z = MatMul", "m = ReduceSum <keepdims = 0> (x)  c = Less (m, zero)  z = MatMul")
    seldom = tiny.save(tiny.model(at_times, weights | {"zero": np.array(0, np.float32)}), tmp_path, "seldom.onnx")
    found = onnxq.check(folder / "model.onnx", seldom, **how).score
    assert found is not None and 0 < found.quantized < 0.8 * found.in_float


def test_a_threshold_is_not_met_by_what_is_no_number() -> None:
    sums = Sums()
    WORDS["f1"].add(sums, np.array([0.9, np.nan, 0.1, np.nan]), np.array([1, 1, 0, 0]), None, "here")
    assert WORDS["f1"].finish(sums) == pytest.approx(2 * 1 / (2 + 2))


@pytest.mark.parametrize("word", ["top1", "top5", "f1", "nll", "kld"])
def test_scores_of_no_classes_are_one_sentence(word: str) -> None:
    with pytest.raises(BadData, match=r"^here: an output of shape \[1, 0\] holds scores of no classes$"):
        WORDS[word].add(Sums(), np.zeros((1, 0)), np.zeros((1, 0)), Classes(-1), "here")


def test_the_range_of_labels_has_a_square() -> None:
    with pytest.raises(BadData, match=r"^here: psnr needs labels within ±1e\+150, the squares of others"):
        WORDS["psnr"].add(Sums(), np.zeros(2), np.array([-1e200, 1e200]), None, "here")
    sums = Sums()
    WORDS["psnr"].add(sums, np.array([1e200, 0]), np.array([0.0, 1.0]), None, "here")
    assert WORDS["psnr"].finish(sums) == -MAX_DB


def test_f1_of_many_classes_counts_each_of_them() -> None:
    """As many as there are places: what looked through all places for each of them would never end."""
    sums, numbers = Sums(), np.arange(300_000)
    WORDS["f1"].add(sums, numbers, np.where(numbers % 4, numbers, numbers + 1), None, "here")
    assert WORDS["f1"].finish(sums) == pytest.approx((0 + 2 / 3 + 1 + 1) / 4)
