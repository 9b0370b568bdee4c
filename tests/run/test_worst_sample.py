"""Beside the error on all samples stands that of the worst one: where a range ends, one sample in many is far off."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from click.testing import CliRunner
from rich.console import Console

from onnxq.checking.elsewhere import Elsewhere
from onnxq.checking.models import Check, check_models
from onnxq.cli import _tables, main
from onnxq.quality import sqnr
from onnxq.report.document import FrontPoint, Report, Summary
from onnxq.report.figures import figures_of
from onnxq.report.page import render
from onnxq.report.words import error, judged_on
from onnxq.runtime.session import Session
from onnxq.samples.trials import Trial, Trials

TEXT = "g (float[1, 8] x) => (float[1, 8] y) { y = Relu(x) }"
CLIPPED = "g (float[1, 8] x) => (float[1, 8] y) { a = Relu(x) y = Min(a, most) }"

SHIFTED = "g (float[1, 8] x) => (float[1, 8] y) { a = Relu(x) y = Add(a, more) }"


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
    check = Check("4 samples", 27.8, 27.8, 27.8, outputs, kinds=kinds, worst_sample=28.0, proves=proves)
    assert judged_on(check) == words


def test_of_faint_outputs_the_error_is_told_as_it_is(models: tuple[Path, Path]) -> None:
    """Whoever compares the same samples alone finds no other one."""
    shifted = tiny.save(tiny.model(SHIFTED, {"more": np.float32([1e-3])}), models[0].parent, "shifted.onnx")
    loud, faint = ({"x": np.full((1, 8), x, np.float32)} for x in (1, 1e-3))
    short = (Trial("short", faint),)
    both = checked((models[0], shifted), Trials(Trials.given([loud, loud], "").samples + short, "2 samples", True))
    alone = checked((models[0], shifted), Trials(short, "1 sample", True))
    assert both.sqnr == both.kinds["short"] > 40 and abs(alone.sqnr) < 1
    assert error(both) == f"{both.sqnr:.1f} dB" and error(alone) == f"{alone.sqnr:.1f} dB SQNR"
    assert both.faint["short"] == pytest.approx((alone.sqnr, 57), abs=0.1) and not both.faint_samples
    assert f"lowest: short ({alone.sqnr:.1f} dB SQNR, of outputs 57 dB fainter than usual)" in judged_on(both)
    own = checked((models[0], shifted), Trials.given([loud, loud, faint], "3 samples"))
    assert own.worst_sample > 40 and own.faint_samples == 1
    assert judged_on(own).endswith(" dB or better but for 1 faint one")


def test_what_counts_as_louder_is_no_sqnr() -> None:
    check = Check("4 samples", 37.6, 37.6, 37.6, kinds={"data": 44.9, "n = 1": 37.6}, worst_sample=44.5)
    check = replace(check, faint={"n = 1": (7.6, 43.04)}, faint_samples=1)
    assert error(check) == "37.6 dB"
    assert judged_on(check) == (
        "lowest: n = 1 (7.6 dB SQNR, of outputs 43 dB fainter than usual); the data: 44.9 dB on 4 samples, "
        "each 44.5 dB or better but for 1 faint one"
    )
    check = replace(check, kinds={"data": 37.6, "n = 1": 44.9}, faint={"data": (7.6, 43.04)}, faint_samples=0)
    own = "4 samples (7.6 dB SQNR, of outputs 43 dB fainter than usual), each 44.5 dB or better"
    assert judged_on(check) == f"on {own}"
    check = replace(check, kinds={"a tone": 37.6, "noise": 44.9}, faint={"a tone": (7.6, 43.04)}, proves=False)
    assert judged_on(replace(check, worst_sample=math.nan)) == (
        "on 4 samples, lowest: a tone (7.6 dB SQNR, of outputs 43 dB fainter than usual)"
    )


@pytest.mark.parametrize(("of_faint", "words"), [(True, "36.1 dB  "), (False, "36.1 dB SQNR")])
def test_nor_is_it_one_where_another_runtime_is_told_of(of_faint: bool, words: str) -> None:
    there = Elsewhere("openvino 1", True, 36.1, 60.0, is_of_faint=of_faint)
    printed = Console(width=200)
    with printed.capture() as found:
        printed.print(_tables.check_table(Check("4 samples", 37.6, 37.6, 37.6, elsewhere=there)))
    (line,) = [line for line in found.get().splitlines() if line.startswith("in openvino")]
    assert words in line and line.count("SQNR") == (not of_faint)


def test_nor_in_a_search() -> None:
    pytest.importorskip("plotly")
    report = Report("search", "m.onnx", "m.onnx", "0", front=[FrontPoint(4.0, 0.2, 1 << 20, 1e-3, 36.1)])
    (text,) = figures_of(report)["front"]["data"][0]["text"]
    assert "36.1 dB" in text and "SQNR" not in text


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
