"""Models analyzed: figures against numpy, every place a weight can be in, and the two commands."""

from __future__ import annotations

import functools
import importlib
import json
import math
from pathlib import Path

import numpy as np
import odd
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from shared import SHARED
from tiny import normal

from onnxq import analysis, formats
from onnxq.analysis import Form, granularities
from onnxq.analysis.trial import Decisions
from onnxq.cli import main
from onnxq.errors import BadData, BadModel, BadRecipe, Exit, NothingToDo
from onnxq.formats import Granularity
from onnxq.quality import MAX_DB
from onnxq.samples.source import inputs_of, open_data
from onnxq.tuning import plan_bench

MODELS = Path(__file__).parents[2] / "models"
DIGITS, DATA = MODELS / "digits_cnn.onnx", MODELS / "digits_cnn_calibration.npz"
TWO = """g (float[N,64] x) => (float[N,16] z) {
    [up] h = MatMul(x, v)  r = Relu(h)  [down] z = MatMul(r, w) }"""
V, W = normal(64, 128), normal(128, 16, seed=1)
NF4 = Form("nf4", "block64")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(plan_bench, "QUALITY_SECONDS", 0.05)
    monkeypatch.setattr(analysis.benchmark, "SHAPE", (64, 512))
    monkeypatch.setattr(analysis.benchmark, "INPUTS", 256)


def samples(*shape: int, count: int = 3) -> list[dict[str, NDArray]]:
    return [{"x": normal(*shape, seed=seed) * 8} for seed in range(count)]


def nf4(w: NDArray) -> NDArray:
    return formats.get("nf4").encode(w, Granularity(0, 64)).dequantize()


def run(*words: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == exit_code, result.output
    return result.stdout if exit_code == 0 else result.stderr


def test_figures_without_data_are_those_of_the_weights(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TWO, {"v": V, "w": W}), tmp_path)
    found = analysis.analyze_model(model, ["nf4", "int8"])
    assert found.forms == (NF4, Form("int8", "channel"))
    assert {layer.node: layer.shape for layer in found.layers} == {"up": (64, 128), "down": (128, 16)}
    layers = {layer.node: layer for layer in found.layers}
    for name, w in (("up", V), ("down", W)):
        measured = layers[name][NF4]
        assert measured is not None
        assert measured.stats == analysis.tensor_error(w, "nf4", Granularity(0, 64))
        assert measured.layer_sqnr is measured.model_sqnr is None
    both = np.r_[V.ravel(), W.ravel()]
    error = np.r_[(nf4(V) - V).ravel(), (nf4(W) - W).ravel()]
    total = found.totals[0].stats
    assert total.sqnr == pytest.approx(
        10 * np.log10(np.sum(both.astype(float) ** 2) / np.sum(error.astype(float) ** 2))
    )
    assert total.count == V.size + W.size


def test_outputs_are_those_of_the_model_with_one_weight_quantized(tmp_path: Path) -> None:
    """Against numpy: each weight alone, at its own layer's output and at the model's."""
    model, feeds = tiny.save(tiny.model(TWO, {"v": V, "w": W}), tmp_path), samples(5, 64)
    before = model.read_bytes()
    found = analysis.analyze_model(model, ["nf4"], ["block64"], data=feeds)
    assert found.samples == 3
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    h, z = x @ V, np.maximum(x @ V, 0) @ W
    layers = {layer.node: layer.forms[0] for layer in found.layers}
    wanted = {"up": (x @ nf4(V), np.maximum(x @ nf4(V), 0) @ W), "down": (np.maximum(h, 0) @ nf4(W),) * 2}
    for name, (layer, whole) in wanted.items():
        assert layers[name].layer_sqnr == pytest.approx(tiny.sqnr(h if name == "up" else z, layer), abs=0.01)
        assert layers[name].model_sqnr == pytest.approx(tiny.sqnr(z, whole), abs=0.01)
    assert model.read_bytes() == before


def test_the_most_harmful_layer_comes_first(tmp_path: Path) -> None:
    """By the weights it is the one with outliers; by the outputs the one that the output depends on."""
    rough = normal(128, 16, seed=1)
    rough[3, 3] = 5
    model = tiny.save(
        tiny.model(
            """g (float[N,64] x) => (float[N,16] z) {
            [up] h = MatMul(x, v)  r = Relu(h)  [down] y = MatMul(r, w)  s = Mul(y, small)  [skip] t = MatMul(x, u)
            z = Add(s, t) }""",
            {"v": V, "w": rough, "u": normal(64, 16, seed=2), "small": np.array([1e-3], np.float32)},
        ),
        tmp_path,
    )
    assert analysis.analyze_model(model, ["int8"], ["tensor"]).layers[0].node == "down"
    assert analysis.analyze_model(model, ["int8"], ["tensor"], data=samples(5, 64)).layers[0].node == "skip"


def test_a_shared_weight_is_quantized_where_it_is_looked_at(tmp_path: Path) -> None:
    """Two nodes read it: each is a layer, and the harm of one is not that of both."""
    text = """g (float[N,64] x) => (float[N,64] y, float[N,64] z) {
        [a] y = MatMul(x, w)  n = Neg(x)  [b] z = MatMul(n, w) }"""
    model = tiny.save(tiny.model(text, {"w": normal(64, 64)}), tmp_path)
    found = analysis.analyze_model(model, ["nf4"], ["block64"], data=samples(5, 64))
    assert {layer.node for layer in found.layers} == {"a", "b"}
    assert {layer.weight for layer in found.layers} == {"w"}
    assert len({layer.forms[0].layer_sqnr for layer in found.layers}) == 1


def test_weights_in_bodies_are_measured_at_the_models_output(tmp_path: Path) -> None:
    text = """g (float[N,64] x, bool c) => (float[N,64] z) {
        z = If (c) <then_branch = t () => (float[N,64] a) { [inner] a = MatMul(x, w) },
                    else_branch = e () => (float[N,64] b) { b = Identity(x) }> }"""
    model = tiny.save(tiny.model(text, {"w": normal(64, 64)}), tmp_path)
    feeds = [feed | {"c": np.array(True)} for feed in samples(5, 64)]
    (layer,) = analysis.analyze_model(model, ["nf4"], ["block64"], data=feeds).layers
    (measured,) = layer.forms
    assert measured.layer_sqnr is None
    x = np.concatenate([feed["x"] for feed in feeds])
    w = normal(64, 64)
    assert measured.model_sqnr == pytest.approx(tiny.sqnr(x @ w, x @ nf4(w)), abs=0.01)


@pytest.mark.parametrize("dtype", [np.float16, np.float64], ids=lambda t: t.__name__)
def test_other_float_types(tmp_path: Path, dtype: type) -> None:
    kind = {np.float16: "float16", np.float64: "double"}[dtype]
    text = f"g ({kind}[N,64] x) => ({kind}[N,32] y) {{ [up] y = MatMul(x, w) }}"
    model = tiny.save(tiny.model(text, {"w": normal(64, 32, dtype=dtype)}), tmp_path)
    feeds = [{"x": feed["x"].astype(dtype)} for feed in samples(5, 64)]
    (layer,) = analysis.analyze_model(model, ["nf4"], ["block64"], data=feeds).layers
    wanted = analysis.tensor_error(normal(64, 32, dtype=dtype), "nf4", Granularity(0, 64))
    assert layer.forms[0].stats == wanted
    assert layer.forms[0].layer_sqnr == pytest.approx(wanted.sqnr, abs=3)


def test_old_and_recurrent_models(tmp_path: Path) -> None:
    """Initializers that are also inputs (IR 3), and weights of three dimensions."""
    text = "g (float[5,1,16] x) => (float[5,1,1,32] y) { [rnn] y, h, c = LSTM <hidden_size = 32> (x, w, r) }"
    proto = tiny.model(text, {"w": normal(1, 128, 16), "r": normal(1, 128, 32)}, opset=9, ir_version=3)
    for name, shape in (("w", (1, 128, 16)), ("r", (1, 128, 32))):
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    model = tiny.save(proto, tmp_path)
    found = analysis.analyze_model(model, ["int8"], ["channel"], data=samples(5, 1, 16))
    assert [layer.op for layer in found.layers] == ["LSTM", "LSTM"]
    for layer in found.layers:
        assert layer.forms[0].model_sqnr is not None
        assert 20 < layer.forms[0].model_sqnr < MAX_DB


def test_a_weight_that_a_format_cannot_hold_is_a_line_of_its_own(tmp_path: Path) -> None:
    """Numbers beyond float16 and NaN are named; all else has its figures, and the broken layer comes first."""
    huge, broken = normal(128, 16, seed=1), normal(64, 128)
    huge[5, 6] = 1e6
    model = tiny.save(tiny.model(TWO, {"v": V, "w": huge}), tmp_path)
    found = analysis.analyze_model(model, ["float16", "nf4"])
    assert found.layers[0].node == "down"
    assert list(found.layers[0].problems) == ["float16"]
    assert "does not fit float16" in found.layers[0].problems["float16"]
    assert [form.form for form in found.layers[0].forms] == [NF4]
    assert [total.stats.count for total in found.totals] == [V.size, V.size + W.size]
    assert "does not fit float16" in run("analyze", model, "-w", "float16", "-w", "nf4")
    broken[1, 2] = np.nan
    model = tiny.save(tiny.model(TWO, {"v": broken, "w": W}), tmp_path)
    (problem,) = analysis.analyze_model(model, ["nf4"], ["block64"]).layers[0].problems.values()
    assert "weight 'v' holds nan at [1, 2]" in problem
    assert '"problem": ""' in run("benchmark", model, "-w", "nf4", "--json")


@pytest.mark.parametrize(
    ("last", "note"),
    [
        ("b = Sub(a, a)  z = Div(b, b)", "the float model gives no finite number at 'z' on these inputs: not compared"),
        ("b = RandomUniformLike(a)  z = Identity(b)", "output 'z' is random: not compared"),
        ("b = Greater(a, a)  z = NonZero(b)", "no number, truth value or text came out on these inputs"),
    ],
)
def test_outputs_that_say_nothing_are_said(last: str, note: str, tmp_path: Path) -> None:
    kind = "int64[2,C]" if "NonZero" in last else "float[N,16]"
    text = f"g (float[N,64] x) => ({kind} z) {{ [up] h = MatMul(x, v)  [down] a = MatMul(h, w)  {last} }}"
    model = tiny.save(tiny.model(text, {"v": V, "w": W}), tmp_path)
    np.save(tmp_path / "x.npy", samples(5, 64)[0]["x"])
    found = analysis.analyze_model(model, ["nf4"], data=samples(5, 64))
    assert note in found.note
    assert not found.is_known
    done = CliRunner().invoke(main, ["analyze", str(model), "-w", "nf4", "--data", str(tmp_path / "x.npy")])
    assert (done.exit_code, note in done.stdout) == (Exit.UNCHECKED, True)
    run("analyze", model, "-w", "nf4")


def test_what_cannot_be_analyzed_is_said(tmp_path: Path) -> None:
    empty = tiny.save(tiny.model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path, "empty.onnx")
    with pytest.raises(NothingToDo, match="holds no floating-point weights that could be analyzed"):
        analysis.analyze_model(empty)
    with pytest.raises(BadModel, match="no such file"):
        analysis.analyze_model(tmp_path / "none.onnx")
    with pytest.raises(BadRecipe, match="unknown number format 'int99'"):
        analysis.analyze_model(DIGITS, ["int99"])
    with pytest.raises(BadRecipe, match="unknown granularity 'row'"):
        analysis.analyze_model(DIGITS, ["int8"], ["row"])
    with pytest.raises(BadData, match="the samples lack image"):
        analysis.analyze_model(DIGITS, ["int8"], data=samples(5, 64))


def test_forms_of_all_words() -> None:
    """Every format once in its own granularity; a single one in all it takes; a cast has none."""
    every = analysis.layers.forms_for()
    assert [form.format for form in every] == list(formats.names())
    for form in every:
        assert (form.granularity is None) == (not granularities.has_scales(form.format))
    single = analysis.layers.forms_for(["int8"])
    assert [form.granularity for form in single] == list(granularities.WORDS)
    assert analysis.layers.forms_for(["q3_k"]) == (Form("q3_k", "block16"),)
    assert analysis.layers.forms_for(["float16"]) == (Form("float16", None),)


def test_analyze_prints_every_layer_and_json_holds_more() -> None:
    words = ("analyze", DIGITS, "-w", "uint4", "-w", "int8", "-g", "channel", "-g", "block32")
    table = json.loads(run(*words, "--json"))
    assert [(form["format"], form["granularity"]) for form in table["forms"]] == [
        ("uint4", "channel"),
        ("uint4", "block32"),
        ("int8", "channel"),
        ("int8", "block32"),
    ]
    text = run(*words)
    for layer in table["layers"]:
        assert layer["node"] in text
        for form in layer["forms"]:
            assert form["rmse"] == pytest.approx(form["mse"] ** 0.5)
            assert f"{form['sqnr']:.1f}" in text or form["sqnr"] == MAX_DB
    assert len(run(*words, "--top", 1).splitlines()) == len(text.splitlines()) - len(table["layers"]) + 1


def test_analyze_with_data() -> None:
    table = json.loads(run("analyze", DIGITS, "-w", "int8", "-g", "tensor", "--data", DATA, "--limit", 4, "--json"))
    assert table["samples"] == 4
    harm = [layer["forms"][0]["model_sqnr"] for layer in table["layers"]]
    assert harm == sorted(harm)
    assert "on 2 samples" in run("analyze", DIGITS, "-w", "int8", "--data", DATA, "--limit", 2)


@pytest.mark.sweep  # takes seconds
def test_benchmark_of_synthetic_weights() -> None:
    text, table = run("benchmark"), json.loads(run("benchmark", "--json"))
    assert list(table["tables"]) == list(analysis.synthetic.SUITE)
    for rows in table["tables"].values():
        assert {row["format"] for row in rows} == set(formats.names())
        assert [row["sqnr"] for row in rows] == sorted((row["sqnr"] for row in rows), reverse=True)
        for row in rows:
            assert 0 < row["retention"] <= 100
            assert row["output_sqnr"] == pytest.approx(row["sqnr"], abs=1)  # inputs are white noise
    for lead in table["leads"]:
        by = f" by {abs(lead['decibel']):.2f} dB" * (abs(lead["decibel"]) >= 0.005)
        assert f"{lead['other']}{by} on Gaussian weights, both in blocks of 64" in text


def test_benchmark_of_a_model() -> None:
    words = ("benchmark", DIGITS, "-w", "int8", "-w", "uint4", "--data", DATA, "--limit", 32)
    rows = json.loads(run(*words, "--json"))["tables"][str(DIGITS)]
    assert [row["format"] for row in rows] == ["int8", "uint4"]
    assert rows[0]["output_sqnr"] > 25 > rows[1]["output_sqnr"] > 10
    assert rows[0]["retention"] >= rows[1]["retention"] > 80
    assert f"{DIGITS} (run on 4 made-up inputs: no data was given)" in run("benchmark", DIGITS, "-w", "int8")


def test_benchmark_agrees_with_the_rewritten_model(tmp_path: Path) -> None:
    """What is measured with weights as inputs is what the file gives in which they are stored rounded."""
    rows = json.loads(run("benchmark", DIGITS, "-w", "nf4", "--data", DATA, "--limit", 4, "--json"))["tables"]
    proto = onnx.load(DIGITS)
    feeds = list(open_data(DATA, inputs_of(tiny.read(proto))).limited(4))
    model, weights = analysis.layers.open_weights(DIGITS)
    wanted = [session_run(tiny.ir.to_proto(model), feed) for feed in feeds]
    for weight in weights:
        granularity = analysis.layers.granularity_of(NF4, weight)
        rounded = formats.get("nf4").encode(weight.tensor.numpy(), granularity).dequantize()
        weight.value.const_value = tiny.ir.tensor(rounded, name=weight.value.name)
    got = [session_run(tiny.ir.to_proto(model), feed) for feed in feeds]
    assert rows[str(DIGITS)][0]["output_sqnr"] == pytest.approx(tiny.sqnr(wanted, got), abs=0.01)


def session_run(proto: onnx.ModelProto, feed: dict[str, NDArray]) -> NDArray:
    (out,) = functools.partial(tiny.evaluate, proto)(**feed)
    return out


@pytest.mark.parametrize(
    ("wanted", "got", "share"),
    [
        ([[1, 2], [3, 0]], [[0, 1], [0, 1]], 0.5),
        (np.eye(3)[None, :, :, None], np.eye(3)[None, ::-1, :, None], 1 / 3),  # of images axis 1 holds the classes
        ([[1.0], [2.0]], [[1.0], [2.0]], np.nan),
        ([[1, 2]], [[1, 2, 3]], 0),
    ],
    ids=["rows", "images", "nothing to decide", "other shape"],
)
def test_decisions(wanted: object, got: object, share: float) -> None:
    same = Decisions()
    same.add(np.asarray(wanted, np.float32), np.asarray(got, np.float32))
    assert same.share == pytest.approx(share, nan_ok=True)


@pytest.mark.parametrize("words", [("-w", "int99"), ("-g", "row")])
def test_wrong_words_are_one_sentence(words: tuple[str, ...]) -> None:
    for command in (("analyze", DIGITS), ("benchmark",)):
        error = run(*command, *words, exit_code=1)
        assert error.startswith("onnxq: unknown ")
        assert error.count("\n") == 1


@pytest.mark.sweep  # takes seconds
def test_a_transformer_of_ten_million_weights() -> None:
    model, data = SHARED / "models" / "charlm.onnx", SHARED / "data" / "charlm" / "charlm_valid.npz"
    if not model.exists() or not data.exists():
        pytest.skip(f"needs {model} and {data}")
    table = json.loads(run("analyze", model, "-w", "nf4", "-w", "int8", "--json"))
    assert sum(layer["elements"] for layer in table["layers"]) > 10_000_000
    for layer in table["layers"]:
        nf4, int8 = (form["sqnr"] for form in layer["forms"])
        assert 18 < nf4 < 24 < int8


@pytest.mark.parametrize("name", list(odd.MODELS))
def test_odd_models(name: str, tmp_path: Path) -> None:
    """Wherever the weights are: each has finite figures at the outputs, or the sentence that there are none."""
    model = odd.MODELS[name]
    path = tiny.save(model.proto(), tmp_path)
    try:
        found = analysis.analyze_model(path, ["int8"], ["channel"], data=model.feeds(2))
    except (BadModel, NothingToDo) as error:
        reason = str(error)
    else:
        assert found.samples == 2
        for layer in found.layers:
            assert not layer.problems
            for form in layer.forms:
                assert math.isfinite(form.harm)
                assert form.model_sqnr is None or form.model_sqnr >= 0
        return
    assert (model.refusal or "no floating-point weights") in reason


def test_no_sample_of_a_function_is_lost_whose_samples_come_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second call goes on behind the first."""
    path = tiny.save(tiny.model(TWO, {"v": V, "w": W}), tmp_path)
    left = iter(samples(4, 64, count=5))
    monkeypatch.setattr(plan_bench, "QUALITY_SECONDS", 1.0)
    (tmp_path / "comes_once.py").write_text("def data():\n    return given\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("comes_once")
    monkeypatch.setattr(module, "given", left, raising=False)
    assert json.loads(run("analyze", path, "--data", "comes_once:data", "--json"))["samples"] == 5
