"""Options mean the same in every command, and those that cannot mean anything are not ignored in silence."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from rich.console import Console
from tiny import normal

from onnxq import analysis
from onnxq.analysis.benchmarks.results import Benchmark, Lead
from onnxq.analysis.report import lead_lines
from onnxq.checking import compare
from onnxq.checking.models import Check
from onnxq.cli import _tables, main
from onnxq.errors import UnusedOption
from onnxq.samples.sampling import Sampling

MATMUL = "g (float[N,64] x) => (float[N,16] y) { [up] y = MatMul(x, w) }"
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(MATMUL, {"w": normal(64, 16)}), tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=normal(40, 64))
    return tmp_path / "data.npz"


def said(*words: object, exit_code: int = 0) -> str:
    """Everything the command prints, whichever way."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == exit_code, result.output
    return result.output


@pytest.mark.parametrize("command", sorted(main.commands))
def test_no_option_is_there_twice(command: str) -> None:
    """click warns of it, and warnings are errors here."""
    opts = [opt for param in main.commands[command].params for opt in param.opts]
    assert len(opts) == len(set(opts))
    assert "Usage" in said(command, "--help")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bench", "--seconds", "nan"], "'nan' is not a number"),
        (["train", "--minutes", "nan"], "'nan' is not a number"),
        (["calibrate", "--jobs", "9" * 20], "is not in the range 1<=x<=1024"),
    ],
)
def test_numbers_that_are_none_or_too_large(words: list[str], sentence: str, model: Path) -> None:
    assert sentence in " ".join(said(words[0], model, *words[1:], exit_code=2).split())


def test_seed_chooses_the_samples(model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`analyze`, `benchmark` and `check` run other samples with another seed."""
    drawn = [Sampling(data, limit=2, seed=seed) for seed in (1, 1, 2)]
    layer = [analysis.analyze_model(model, ["int4"], data=each).layers[0] for each in drawn]
    first, again, other = (each.forms[0].layer_sqnr for each in layer)
    assert first == again != other
    rows = [
        analysis.run_benchmark(model, ["int4"], data=data, limit=2, seed=seed).tables[str(model)] for seed in (1, 1, 2)
    ]
    first, again, other = (each[0].output_sqnr for each in rows)
    assert first == again != other
    seen = []

    def fake(*arguments: object, **_: object) -> Check:
        seen.append(arguments[2])
        return Check("", 50.0, 50.0, 50.0)

    monkeypatch.setattr(compare, "check_models", fake)
    for seed in (1, 2):
        said("check", model, model, "--data", data, "--limit", 20, "--seed", seed)
    said("check", model, model, "--data", data)
    one, two, default = ([feed["x"] for feed in trials.feeds] for trials in seen)
    assert len(one) == len(two) == 20 and not np.array_equal(one, two)
    assert len(default) == 16


def test_data_without_a_model(data: Path) -> None:
    assert "give the model that the data are for" in said("benchmark", "--data", data, exit_code=1)


def test_models_with_other_inputs_are_not_compared(model: Path, tmp_path: Path) -> None:
    other = tiny.save(tiny.model(MATMUL.replace(" x", " z").replace("(x", "(z"), {"w": normal(64, 16)}), tmp_path, "o")
    assert f"cannot be compared: '{model}' takes x and '{other}' takes z" in said("check", model, other, exit_code=1)


def test_models_whose_inputs_have_other_shapes_are_not_compared(model: Path, data: Path, tmp_path: Path) -> None:
    text = "g (float[n, 3, 3, 3] x) => (float[n, 16, 1, 1] y) { y = Conv (x, w) }"
    other = tiny.save(tiny.model(text, {"w": normal(16, 3, 3, 3)}), tmp_path, "o.onnx")
    takes = f"'{model}' takes x float32 [N, 64] and '{other}' takes x float32 [n, 3, 3, 3]"
    for command in (["check"], ["check", "--by-layer"], ["bench"]):
        assert f"cannot be compared: {takes}" in said(*command, model, other, exit_code=1)
        assert f"cannot be compared: {takes}" in said(*command, model, other, "--data", data, exit_code=1)
    exported = said("export", model, "-o", tmp_path / "b", "--reference", other, exit_code=1)
    assert f"cannot be compared: {takes}" in exported


def test_a_second_model_that_does_not_run_is_named(model: Path, tmp_path: Path) -> None:
    shapes = "float[N, 64] x) => (float[N, 16] y"
    other = tiny.save(tiny.model(f"g ({shapes}) {{ y = com.microsoft.Unheard (x) }}"), tmp_path, "o.onnx")
    found = said("check", model, other, exit_code=1)
    assert f"'{other}' cannot be compared: onnxruntime refuses" in found and "saved" not in found


@pytest.mark.parametrize("option", [("--keep", "layers.0/*"), ("--set", "re:^q$=int8")])
def test_a_rule_that_matches_nothing_is_told(model: Path, option: tuple[str, str]) -> None:
    sentence = r"^the rule '\S+' changes nothing: it matches no node; 'onnxq plan \S+ --nodes' shows their names$"
    with pytest.warns(RuntimeWarning, match=sentence):
        said("plan", model, *option)


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("command", ["quantize", "check", "calibrate"])
def test_how_files_are_read_changes_nothing_of_arrays(
    model: Path, data: Path, tmp_path: Path, command: str, has_data: bool
) -> None:
    """Nor where there are no samples at all."""
    (tmp_path / "tokenizer.json").write_text("{}")
    has_data |= command == "calibrate"
    more = {
        "quantize": ["--no-check", "-o", tmp_path / "made.onnx"],
        "check": [model],
        "calibrate": ["-s", "w8a8", "-o", tmp_path / "r"],
    }
    words = [*more[command], "--preprocess", "size=8x8", "--length", "16,32", "--tokenizer", tmp_path]
    with pytest.warns(UnusedOption) as told:
        said(command, model, *words, *["--data", data] * has_data)
    why = "the samples are arrays, which are taken as they are" if has_data else "there are no samples to read: give"
    for what in ("the preprocessing changes", f"the tokenizer '{tmp_path}' changes", "lengths of 16,32 tokens change"):
        assert any(str(each.message).startswith(f"{what} nothing: {why}") for each in told), what


def test_a_tokenizer_that_is_not_there_is_refused_whatever_the_samples_are(model: Path, data: Path) -> None:
    for words in ([], ["--data", data]):
        assert "the tokenizer 'nope.json': no such file" in said(
            "quantize", model, "--tokenizer", "nope.json", *words, exit_code=1
        )


@pytest.mark.parametrize(
    ("scheme", "option", "sentence"),
    [
        (
            "w4a16",
            ("--calibration", "minmax"),
            "by 'minmax' changes nothing: w4a16 needs no activation ranges",
        ),
        ("fp16", ("--block", "64"), "blocks of 64 change nothing: fp16 stores no weight in blocks"),
        ("nf4", ("--reduce-range",), "reduce_range changes nothing: nf4 computes nothing in int8"),
    ],
)
def test_an_option_that_changes_nothing_is_told(
    model: Path, tmp_path: Path, scheme: str, option: tuple[str, ...], sentence: str
) -> None:
    with pytest.warns(RuntimeWarning, match=sentence):
        said("quantize", model, "-s", scheme, *option, "--no-check", "-o", tmp_path / "made.onnx")


def test_an_option_that_changes_something_is_not(model: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said("plan", model, "-s", "w4a16", "--block", "64")


def test_a_rule_that_matches_is_not(model: Path) -> None:
    assert "kept by a rule" in said("plan", model, "--keep", "u*")


def test_a_shard_is_not_taken_for_the_whole(model: Path, data: Path, tmp_path: Path) -> None:
    shard = tmp_path / "part1"
    said("calibrate", model, "--data", data, "--shard", "1/2", "-o", shard)
    refused = said("quantize", model, "-s", "w8a8", "--data", data, "--ranges", shard, exit_code=1)
    assert "a part of the data" in refused and "--merge" in refused


def test_equals_do_not_beat_each_other() -> None:
    found = Benchmark({}, (Lead("nf4", "twin", "block64", 0.001, 4.5, 4.5), Lead("nf4", "fp4", "block64", 2, 4.5, 4.5)))
    best, equal = lead_lines(found)
    assert best.startswith("nf4 beats fp4 by 2.00 dB on") and equal.startswith("nf4 does as well as twin on")


def test_notes_do_not_widen_the_table() -> None:
    """A sentence is no column."""
    note = "a sentence of many words " * 6
    console = Console(width=100, record=True)
    console.print(_tables.check_table(Check("4 samples", 30.0, 30.0, 30.0, float_ms=1, quantized_ms=1, notes=(note,))))
    lines = console.export_text().splitlines()
    assert lines[0].rstrip() == "error  30.0 dB SQNR         on 4 samples"
    assert lines[2].startswith("note: a sentence of many words") and max(map(len, lines)) <= 100


def test_preference_effort_and_floor_reach_the_recipe(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "preferred.onnx"
    words = ["-s", "w4a16", "--prefer", "size", "--effort", "quick", "--min-sqnr", "12", "-o", str(output)]
    done = CliRunner().invoke(main, ["quantize", str(model), *words])
    assert done.exit_code == 0, done.output
    recipe = json.loads(onnx.load(output).metadata_props[0].value)["recipe"]
    assert (recipe["prefer"], recipe["effort"], recipe["min_sqnr"]) == ("size", "quick", 12.0)
    refused = CliRunner().invoke(main, ["quantize", str(model), "--prefer", "beauty"])
    assert refused.exit_code != 0 and "'speed', 'balanced', 'accuracy', 'size'" in refused.output
