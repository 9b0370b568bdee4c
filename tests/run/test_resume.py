"""Calibration that is killed goes on where it was; in shards, it gives what one run gives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray

from onnxq import collectors
from onnxq.calibration import calibrate, resume
from onnxq.calibration.calibrate import Keep, Means
from onnxq.calibration.observations import Observations, load_observations, merge, to_json
from onnxq.calibration.resume import Every
from onnxq.errors import BadData, BadRecipe
from onnxq.samples.source import Data, inputs_of, open_data
from onnxq.summaries import native

MLP = "g (float[N, 4] x) => (float[N, 3] y) { h = MatMul(x, w)  r = Relu(h)  y = Add(r, r) }"
NAMES = ["x", "h", "r", "y"]
W = tiny.normal(4, 3)
SAMPLES = [{"x": (tiny.normal(40, 4, seed=n) * (1 + n % 5)).astype(np.float32)} for n in range(30)]
#: A checkpoint after every sample.
ALWAYS = Every(samples=1)


def mlp() -> ir.Model:
    return tiny.read(tiny.model(MLP, {"w": W}))


def data_of(samples: list[dict[str, NDArray]] = SAMPLES) -> Data:
    return open_data(samples, inputs_of(mlp()))


class Interrupted(Exception):
    pass


def stopping_after(runs: int) -> object:
    """A progress function that stops calibration after so many runs of the model."""
    left = [runs]

    def progress(n: int) -> None:
        left[0] -= n
        if left[0] <= 0 and n:
            raise Interrupted

    return progress


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug here: the many checkpoints need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def whole() -> Observations:
    return calibrate.observe(mlp(), NAMES, data_of())


@pytest.fixture(params=["library", "numpy"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("the compiled library is not there")


@pytest.mark.sweep
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("memory", [None, 1], ids=["one pass", "a pass for each value"])
@pytest.mark.parametrize("stops", [[1], [7, 7, 7], [30], [31], [65]], ids=str)
def test_what_was_interrupted_ends_as_if_it_had_not_been(
    whole: Observations, tmp_path: Path, stops: list[int], memory: int | None
) -> None:
    path = tmp_path / "partial"
    kind = {"means": Means(memory=memory, checkpoint=path, every=ALWAYS)}
    for runs in stops:
        if runs >= len(SAMPLES) and memory is None:
            continue
        with pytest.raises(Interrupted):
            calibrate.observe(mlp(), NAMES, data_of(), progress=stopping_after(runs), **kind)  # type: ignore[arg-type]
    assert calibrate.observe(mlp(), NAMES, data_of(), **kind).to_dict() == whole.to_dict()  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["partial"]  # until what follows from it is saved
    runs: list[int] = []
    assert calibrate.observe(mlp(), NAMES, data_of(), progress=runs.append, **kind).to_dict() == whole.to_dict()  # type: ignore[arg-type]
    assert runs == [len(SAMPLES)]
    resume.remove(path)
    assert not list(tmp_path.iterdir())


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    kind = {"means": Means(checkpoint=tmp_path / "partial", every=Every(samples=10))}
    with pytest.raises(Interrupted):
        calibrate.observe(mlp(), NAMES, data_of(), progress=stopping_after(25), **kind)  # type: ignore[arg-type]
    runs: list[int] = []
    calibrate.observe(mlp(), NAMES, data_of(), progress=runs.append, **kind)  # type: ignore[arg-type]
    assert runs == [20] + [1] * 10


@pytest.mark.parametrize("change", ["data", "model", "names", "histograms", "damage"])
def test_a_checkpoint_of_something_else_is_not_used(tmp_path: Path, change: str) -> None:
    path = tmp_path / "partial"
    means = Means(checkpoint=path, every=ALWAYS)
    kind: dict[str, object] = {"means": means, "progress": stopping_after(5)}
    with pytest.raises(Interrupted):
        calibrate.observe(mlp(), NAMES, data_of(), **kind)  # type: ignore[arg-type]
    if change == "damage":
        path.write_bytes(path.read_bytes()[:-100])
    model = tiny.read(tiny.model(MLP, {"w": W + 1})) if change == "model" else mlp()
    data = data_of(SAMPLES[::-1]) if change == "data" else data_of()
    names = NAMES[:2] if change == "names" else NAMES
    kind = {"keep": Keep(histograms=change != "histograms")}
    wanted = calibrate.observe(model, names, data, **kind)  # type: ignore[arg-type]
    assert calibrate.observe(model, names, data, means=Means(checkpoint=path), **kind).to_dict() == wanted.to_dict()  # type: ignore[arg-type]


SLOWLY = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from onnxq.calibration import calibrate
from onnxq.calibration.resume import Every
from test_resume import NAMES, data_of, mlp
def progress(n):
    print(n, flush=True)
    time.sleep(0.02)
means = calibrate.Means(checkpoint=Path({partial!r}), every=Every(samples=2))
calibrate.observe(mlp(), NAMES, data_of(), means=means, progress=progress)
"""


@pytest.mark.sweep
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_process_loses_at_most_what_a_checkpoint_is_late(whole: Observations, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    script = SLOWLY.format(path=[str(Path(__file__).parent), *filter(None, sys.path)], partial=str(partial))
    lost = []
    for wait in (3, 8, 9):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [int(process.stdout.readline() or -1) for _ in range(wait + 1)]
            os.kill(process.pid, signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        assert min(lines) >= 0
        # One more may have run between the last line and its end.
        lost.append(sum(lines) - json.loads(partial.read_text())["done"])
    assert all(-2 <= n <= 2 for n in lost), lost
    runs: list[int] = []
    found = calibrate.observe(mlp(), NAMES, data_of(), means=Means(checkpoint=partial), progress=runs.append)
    assert found.to_dict() == whole.to_dict()
    assert runs[0] >= 16


def test_checkpoints_come_after_so_many_seconds(tmp_path: Path) -> None:
    path, there = tmp_path / "partial", []

    def progress(n: int) -> None:
        if n:
            there.append(path.exists())
            time.sleep(0.01)

    means = Means(checkpoint=path, every=Every(seconds=0.1))
    calibrate.observe(mlp(), NAMES, data_of(), means=means, progress=progress)
    assert not there[0] and there[-1]


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_shards_merged_are_one_run(whole: Observations, tmp_path: Path, count: int) -> None:
    parts = []
    for number in range(count, 0, -1):
        part = calibrate.observe(mlp(), NAMES, data_of(), shard=(number, count))
        path = tmp_path / f"{number}.ranges"
        path.write_text(to_json(part.ranges("mse"), part))
        read = load_observations(path)
        assert read is not None
        parts.append((path.name, read))
    merged = merge(parts)
    assert merged.samples == whole.samples == len(SAMPLES)
    for method in collectors.names():
        if method != "moving-average":
            assert merged.ranges(method) == whole.ranges(method)
    assert merge(parts[::-1]).ranges("moving-average") == merged.ranges("moving-average")
    assert merge(parts).to_dict() == merged.to_dict()


def test_what_does_not_fit_together_is_not_merged() -> None:
    def part(
        number: int, count: int, names: list[str] = NAMES, samples: int = 30, momentum: float = 0.1
    ) -> Observations:
        data, keep = data_of(SAMPLES[:samples]), Keep(momentum=momentum)
        return calibrate.observe(mlp(), names, data, keep, shard=(number, count))

    one, two = part(1, 3), part(2, 3)
    for parts, message in [
        ([one, two], "shard 3 of 3 is missing"),
        ([replace(one, shard=(2, 10**6))], "^shard 1, 3, 4, 5, 6, 7, 8, 9, … of 1000000 is missing$"),
        ([one, two, two], "shard 2 of 3 is given twice: 'f1' and 'f2'"),
        ([one, part(2, 2)], "'f1' was made with other options than 'f0'"),
        ([one, part(2, 3, NAMES[:1])], "'f1' was made with other options than 'f0'"),
        ([one, part(2, 3, momentum=0.5)], "'f1' was made with other options than 'f0'"),
        ([one, part(2, 3, samples=29)], "'f1' was made with other data than 'f0'"),
        ([calibrate.observe(mlp(), NAMES, data_of())], "'f0' is not a shard"),
    ]:
        with pytest.raises(BadRecipe, match=message):
            merge([(f"f{i}", each) for i, each in enumerate(parts)])


def test_ranges_of_a_shard_are_not_those_of_the_data() -> None:
    part = calibrate.observe(mlp(), NAMES, data_of(), shard=(1, 3))
    assert part.ranges("minmax").data != calibrate.observe(mlp(), NAMES, data_of()).ranges("minmax").data


def test_methods_that_need_histograms_say_so_where_there_are_none() -> None:
    bare = calibrate.observe(mlp(), NAMES, data_of(), Keep(histograms=False))
    assert bare.ranges("minmax").values
    with pytest.raises(BadRecipe, match="method mse needs histograms, which were not kept"):
        bare.ranges("mse")


def test_what_is_odd_is_noted_by_name() -> None:
    text = """g (float[N] x) => (float[N] y)
    { some = Log(x)  zero = Sub(x, x)  none = Div(zero, zero)  empty = Slice(x, e, e)  y = Add(some, none) }"""
    model = tiny.read(tiny.model(text, {"e": np.zeros(1, np.int64)}))
    samples = [{"x": np.float32([1, -1, 0])}, {"x": np.float32([2, -2, 1])}]
    ranges = calibrate.observe(model, ["some", "zero", "none", "empty"], open_data(samples, inputs_of(model))).ranges(
        "mse"
    )
    assert ranges.notes == {"some": "2 NaN and 1 infinite of 6 numbers were left out", "zero": "always 0"}
    assert ranges.problems == {
        "none": "not finite on the calibration data (6 NaN, 0 infinite)",
        "empty": "never computed, or empty, on the calibration data",
    }


def test_a_sample_that_cannot_be_read_ends_calibration_with_its_reason() -> None:
    def samples() -> Iterator[dict[str, NDArray]]:
        yield SAMPLES[0]
        yield {"x": np.zeros((2, 5), np.float32)}

    with pytest.raises(BadData, match=r"sample 1: 'x' has shape \[2, 5\]"):
        calibrate.observe(mlp(), NAMES, open_data(samples, inputs_of(mlp())))
