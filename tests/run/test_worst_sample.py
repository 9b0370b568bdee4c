"""Beside the error on all samples stands that of the worst one: where a range ends, one sample in many is far off."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from click.testing import CliRunner
from rich.console import Console

from onnxq.checking.models import Check, check_models
from onnxq.cli import _tables, main
from onnxq.quality import sqnr
from onnxq.report.document import Report, Summary
from onnxq.report.page import render
from onnxq.report.words import judged_on
from onnxq.runtime.session import Session
from onnxq.samples.trials import Trial, Trials

TEXT = "g (float[1, 8] x) => (float[1, 8] y) { y = Relu(x) }"
CLIPPED = "g (float[1, 8] x) => (float[1, 8] y) { a = Relu(x) y = Min(a, most) }"


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    most = {"most": np.float32([2])}
    return (
        tiny.save(tiny.model(TEXT), tmp_path, "float.onnx"),
        tiny.save(tiny.model(CLIPPED, most), tmp_path, "clipped.onnx"),
    )


def checked(models: tuple[Path, Path], trials: Trials) -> Check:
    return check_models(Session(ir.load(models[0])), models[1], trials, seconds=0.001)


def said(models: tuple[Path, Path], *more: str) -> str:
    words = ["check", *map(str, models), "--data", str(models[0].parent / "data.npz"), *more]
    return " ".join(CliRunner().invoke(main, words).output.split())


def test_is_of_one_sample(models: tuple[Path, Path]) -> None:
    samples = [np.full((1, 8), 1, np.float32) for _ in range(5)] + [np.full((1, 8), 4, np.float32)]
    found = checked(models, Trials.given([{"x": x} for x in samples], "6 samples"))
    every = np.stack(samples)
    assert found.sqnr == pytest.approx(sqnr(every, np.minimum(every, 2)))
    assert found.worst_sample == pytest.approx(sqnr(samples[5], np.minimum(samples[5], 2)))


def test_made_up_samples_have_none(models: tuple[Path, Path]) -> None:
    feeds = [{"x": np.full((1, 8), x, np.float32)} for x in (1, 3)]
    assert math.isnan(checked(models, Trials.given(feeds[:1], "1 sample")).worst_sample)
    made_up = Trials(tuple(Trial("ones", feed) for feed in feeds), "2 samples")
    assert math.isnan(checked(models, made_up).worst_sample)


def test_a_faint_sample_is_no_bad_one(models: tuple[Path, Path]) -> None:
    """An error on near silence that nobody could see among the others."""
    faint = np.full((1, 8), 1e-4, np.float32)
    faint[0, 0] = 2.00001
    samples = [np.full((1, 8), 1.5, np.float32), np.full((1, 8), 1, np.float32), faint]
    found = checked(models, Trials.given([{"x": x} for x in samples], "3 samples"))
    assert found.worst_sample > 90


def test_is_shown(models: tuple[Path, Path]) -> None:
    x = np.ones((6, 1, 8), np.float32)
    x[2] = 4
    np.savez(models[0].parent / "data.npz", x=x)
    assert "on 6 samples, each 6.0 dB or better" in said(models)


def test_is_told_from_the_kind_that_is_lowest() -> None:
    check = Check("4 samples", 27.8, 27.8, 27.8, kinds={"data": 30.0, "n = 1520": 27.8}, worst_sample=28.0)
    console = Console(width=200, record=True)
    console.print(_tables.check_table(check))
    assert (
        "27.8 dB SQNR  lowest: n = 1520; the data: 30.0 dB on 4 samples, each 28.0 dB or better"
        in console.export_text()
    )


OUTPUTS = {"a": 30.0, "b": 27.8}


@pytest.mark.parametrize(
    ("words", "outputs", "kinds", "proves"),
    [
        ("on 4 samples, each 28.0 dB or better", {}, {}, True),
        ("on 4 samples, each 28.0 dB or better", {}, {"data": 27.8, "n = 3": 30.0}, True),
        ("on 4 samples, each 28.0 dB or better; lowest: output 'b'", OUTPUTS, {}, True),
        (
            "lowest: output 'b', n = 3; the data: identical on 4 samples, each 28.0 dB or better",
            OUTPUTS,
            {"data": 120.0, "n = 3": 27.8},
            True,
        ),
        (
            "lowest: made up; the data: not compared on 4 samples, each 28.0 dB or better",
            {},
            {"made up": 27.8},
            True,
        ),
        ("on 4 samples, each 28.0 dB or better; lowest: noise", {}, {"noise": 27.8, "a tone": 30.0}, False),
    ],
)
def test_what_the_error_is_of(words: str, outputs: dict[str, float], kinds: dict[str, float], proves: bool) -> None:
    assert judged_on("4 samples", outputs, kinds, 28.0, proves=proves) == words


def test_the_page_says_it_too() -> None:
    pytest.importorskip("plotly")
    summary = Summary(inputs="4 samples", proves=True, sqnr=27.8, kinds={"data": 30.0, "n = 3": 27.8})
    page = render(Report("check", "a model", "model.onnx", "1", summary=summary))
    assert "27.8 dB SQNR" in page
    assert "lowest: n = 3; the data: 30.0 dB on 4 samples" in page


def test_outputs_are_told_from_kinds_of_samples_and_their_names_from_markup() -> None:
    outputs = {"77": 30.0, "[/x]": 27.8}
    check = Check(
        "made-up inputs", 27.8, 27.8, 27.8, outputs=outputs, kinds={"a tone": 27.8, "noise": 28.0}, proves=False
    )
    console = Console(width=200, record=True)
    console.print(_tables.check_table(check))
    assert "lowest: output '[/x]', a tone" in console.export_text()


def test_says_which_samples(models: tuple[Path, Path]) -> None:
    np.savez(models[0].parent / "data.npz", x=np.ones((6, 1, 8), np.float32))
    assert "on 6 samples speed" in said(models)
    assert "on the first 5 samples (--limit)" in said(models, "--limit", "5")
    assert "on 5 samples (--limit)" in said(models, "--limit", "5", "--seed", "1")
