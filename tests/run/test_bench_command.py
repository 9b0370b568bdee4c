"""`onnxq bench`: intervals that hold what they say, answers compared, caches fed back, memory seen where taken."""

from __future__ import annotations

import json
import os
import platform
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq.benching import alone, generation, on_workers
from onnxq.benching.bench import bench
from onnxq.benching.result import BenchReport, Cell, How, Median, ModelBench
from onnxq.benching.throughput import batched
from onnxq.benching.turns import LEAST, in_turns, median_of, ratio_of
from onnxq.cli import _console, main
from onnxq.cli import bench as command
from onnxq.errors import BadData, BadModel, BadRecipe
from onnxq.runtime.machine import this_machine
from onnxq.runtime.session import Feed, Session
from onnxq.samples.sampling import Sampling

TEXT = "m (float[n, 64] x) => (float[n, 32] y) { h = MatMul (x, w)  y = Relu (h) }"
#: Looks words up, and adds to each all words before it, which it keeps.
CACHED = """m (int64[batch, sequence] input_ids, float[batch, past_sequence, 8] past_0_key)
    => (float[batch, total, 8] logits, float[batch, total, 8] present_0_key) {
    word = Gather (table, input_ids)  present_0_key = Concat <axis = 1> (past_0_key, word)
    logits = CumSum (present_0_key, one)
}"""


def two(folder: Path) -> tuple[Path, Path]:
    w = tiny.normal(64, 32)
    a = tiny.save(tiny.model(TEXT, {"w": w}), folder, "a.onnx")
    return a, tiny.save(tiny.model(TEXT, {"w": w + np.float32(0.01) * tiny.normal(64, 32, seed=1)}), folder, "b.onnx")


def test_the_interval_holds_the_median() -> None:
    """Of 95 in 100 series of numbers that are anything but normally distributed."""
    draws = np.random.default_rng(0).exponential(1.0, (2000, 25))
    found = [median_of(list(row)) for row in draws]
    held = np.mean([each.low <= np.log(2) <= each.high for each in found])
    assert 0.94 < held < 0.995 and found[0].runs == 25
    assert median_of([3.0]) == median_of([3.0]) and median_of([1.0, 2.0, 9.0]).median == 2.0
    assert ratio_of([2.0] * 9, [4.0] * 9).high == 0.5


def test_names_and_figures_stay_whole_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of long runs and of many a second, without exponents."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(_console, "PIPED_WIDTH", 80)
    slow, many = Median(1234.5, 1230.1, 1250.2, 9), [Cell(1, 1, Median(1, 1, 1, 9), 102_198.4)]
    ratio, peak = Median(0.49, 0.48, 0.51, 9), 123_400_000
    models = [
        ModelBench(f"/a/{name}.onnx", 10**9, slow, ratio, 1234.5, 2345.6, peak, 102.5, many)
        for name in ("digits_torch", "digits_torch.w8a8", "digits_torch.w4a8")
    ]
    command._show(BenchReport(models, "1 sample", 1, "a machine", ""))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for model in models:
        name = Path(model.model).name
        rows = [" ".join(line) for line in lines if name in line]
        times, costs, rate, *_ = (row.partition(name)[2].strip() for row in rows)
        assert times == "1234.5 ms 1230.1 … 1250.2 0.49 (0.48 … 0.51) 102.5 dB"
        assert costs == "1234.5 ms 2345.6 ms 123.4 MB 1.0 GB"
        assert rate == "102198"


def test_models_take_turns() -> None:
    seen: list[str] = []
    times = in_turns([lambda: seen.append("a"), lambda: seen.append("b")], 1e-9)
    assert seen == ["a", "b"] * (LEAST + 1) and [len(each) for each in times] == [LEAST, LEAST]


def test_everything_is_measured(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    words = ["--seconds", "0.01", "--batch", "1", "--batch", "3", "--threads", "1"]
    found = CliRunner().invoke(main, ["bench", str(a), str(b), "--json", *words, "--report", str(tmp_path / "r.json")])
    assert found.exit_code == 0, found.output
    table = json.loads(found.stdout)
    assert json.loads((tmp_path / "r.json").read_text()) == table
    first, second = table["models"]
    assert first["ratio"] is None and first["sqnr"] is None and 0.1 < second["ratio"]["median"] < 10
    assert second["sqnr"] == pytest.approx(40, abs=3)  # of noise a hundredth of the weights
    for row in (first, second):
        assert row["nbytes"] == Path(row["model"]).stat().st_size and row["generation"] is None
        assert 0 < row["ms"]["low"] <= row["ms"]["median"] <= row["ms"]["high"]
        assert row["load_ms"] > 0 and row["first_ms"] > 0 and row["peak_bytes"] > 0
        assert [(cell["batch"], cell["threads"]) for cell in row["throughput"]] == [(1, 1), (3, 1)]
        assert {each["op"] for each in row["operators"]} >= {"MatMul"} or row["operators"][0]["op"].startswith("Fused")
        assert sum(each["share"] for each in row["operators"]) == pytest.approx(1)


@pytest.mark.sweep
def test_memory_is_that_of_the_model(tmp_path: Path) -> None:
    w = tiny.normal(2048, 2048)
    path = tiny.save(tiny.model(TEXT.replace("64", "2048").replace("32]", "2048]"), {"w": w}), tmp_path)
    found = alone.alone(path, {"x": np.zeros((1, 2048), np.float32)}, 1)
    assert w.nbytes < found.peak_bytes < 8 * w.nbytes


def test_batches(tmp_path: Path) -> None:
    session = Session(two(tmp_path)[0])
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    made = batched(session, {"x": x}, 3)
    assert made is not None and made["x"].shape == (3, 64) and (made["x"] == x[0]).all()
    fixed = Session(tiny.save(tiny.model(TEXT.replace("[n,", "[2,"), {"w": tiny.normal(64, 32)}), tmp_path))
    assert batched(fixed, {"x": x}, 3) is None and batched(fixed, {"x": x}, 1) is not None
    with pytest.raises(
        BadModel, match="its inputs alone take more than any machine has: name fewer samples by --batch"
    ):
        batched(session, {"x": x}, 10**20)


def test_presents_are_fed_back(tmp_path: Path) -> None:
    """Every model reads its own cache: what it says at last is the sum of all words that went in."""
    table = tiny.normal(32, 8)
    path = tiny.save(tiny.model(CACHED, {"table": table, "one": np.array(1, np.int64)}), tmp_path)
    feeds, pairs = generation.conversation(onnx_model(path))
    assert pairs == {"past_0_key": "present_0_key"} and len(feeds) == generation.STEPS + 1
    assert [feed["input_ids"].shape[1] for feed in feeds] == [generation.PROMPT] + [1] * generation.STEPS

    class Recorded(Session):
        last: NDArray

        def run(self, feed: Feed, outputs: object = None) -> list[NDArray]:
            found = super().run(feed)
            self.last = found[0][0, -1]
            return found

    blank = [feed | {"past_0_key": feed["past_0_key"] * 0} for feed in feeds]
    sessions = [Recorded(path), Recorded(path)]
    found = generation.generation(sessions, blank, pairs)
    words = np.concatenate([feed["input_ids"][0] for feed in feeds])
    for session, told in zip(sessions, found, strict=True):
        np.testing.assert_allclose(session.last, table[words].sum(0), rtol=1e-4, atol=1e-4)
        assert told.steps == generation.STEPS and told.tokens_per_second == pytest.approx(1e3 / told.step_ms.median)


def onnx_model(path: Path) -> object:
    return tiny.read(onnx.load(path))


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra 'cluster'")
    a, _ = two(tmp_path)
    other = tiny.save(
        tiny.model(TEXT.replace(" x)", " z)").replace("(x,", "(z,"), {"w": tiny.normal(64, 32)}), tmp_path
    )
    with pytest.raises(BadModel, match="cannot be compared"):
        bench([a, other])
    for wrong in ({"threads": ()}, {"batches": ()}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(BadRecipe):
            bench([a], **wrong)
    found = CliRunner().invoke(main, ["bench", str(a), "--report", str(a)])
    assert found.exit_code == 1 and "is read, so it cannot be the output" in found.output


# -- on a cluster ------------------------------------------------------------------------------------------------------


def on_a_cluster(*words: str) -> dict[str, Any]:
    pytest.importorskip("distributed")
    found = CliRunner().invoke(
        main, ["bench", *words, "--json", "--seconds", "0.01", "--batch", "1", "--cluster", "local:2"]
    )
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


@pytest.mark.sweep
def test_each_model_has_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is measured anew by each command; times of one machine are compared, and so are answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ONNXQ_FAULT_LOG", str(tmp_path / "log"))
    a, b = two(tmp_path)
    np.savez(tmp_path / "data.npz", x=tiny.normal(6, 1, 64))
    alone = bench([a, b], Sampling(tmp_path / "data.npz"), seconds=0.01)
    for times in (1, 2):
        table = on_a_cluster(str(a), str(b), "--data", str(tmp_path / "data.npz"))
        assert (tmp_path / "log").read_text().count("task.done") == 2 * times
        assert (table["inputs"], table["machine"]) == ("6 samples", f"{platform.node()}: {this_machine()}")
        first, second = table["models"]
        assert second["sqnr"] == pytest.approx(alone.models[1].sqnr) and first["sqnr"] is first["ratio"] is None
        wanted = second["ms"]["median"] / first["ms"]["median"]
        assert second["ratio"]["median"] == pytest.approx(wanted)
        assert second["ratio"]["low"] <= wanted <= second["ratio"]["high"]
        assert [row["model"] for row in (first, second)] == [str(a), str(b)]
        assert all(row["peak_bytes"] > 0 and row["operators"] and row["throughput"] for row in (first, second))
        assert any("ratios are of medians" in note for note in table["notes"])


@pytest.mark.sweep
def test_times_of_two_machines_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = two(tmp_path)
    found = []
    for path, host in ((a, "one"), (b, "two"), (b, "one")):
        made = msgspec.json.decode(
            on_workers.model_bench(str(path), None if path is a else str(a), Sampling(), How((1,), (1,), 0.01)),
            type=on_workers._Found,
        )
        made.host, made.place = host, f"{host} {made.place}"
        found.append(made)
    report = on_workers._joined([a, b, a], found)
    assert [row.ratio is None for row in report.models] == [True, True, False]
    assert report.machine == "several machines"
    apart = [note for note in report.notes if "are not compared" in note]
    assert len(apart) == 1 and f"'{b}' was measured on two: " in apart[0] and f"'{a}' on one: " in apart[0]
    monkeypatch.setenv("COLUMNS", "300")
    command._show(report)
    shown = capsys.readouterr().out
    assert "machine" in shown and "two: " in shown and "note: " in shown


@pytest.mark.sweep
def test_one_worker_of_a_machine_measures_at_a_time(tmp_path: Path) -> None:
    """Though it is another process."""
    pytest.importorskip("fcntl")
    text = "import sys, time; from onnxq.benching.on_workers import _alone_here\nwith _alone_here():\n"
    text += "    print('in', flush=True); sys.stdin.readline()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    start = lambda: subprocess.Popen(  # noqa: E731
        [sys.executable, "-c", text], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    first = start()
    assert first.stdout is not None and first.stdout.readline() == "in\n"
    second = start()
    assert second.stdout is not None and not select.select([second.stdout], [], [], 3)[0]
    first.communicate("\n")
    assert second.stdout.readline() == "in\n"
    second.communicate("\n")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_times_that_a_worker_cannot_have_measured(count: int) -> None:
    made = ModelBench("a.onnx", 1, Median(0.0, 0.0, 0.0, 0))
    report = BenchReport([made] * count, "", 1, "", "")
    for result in (b"x", b"[" * 99999, msgspec.json.encode(on_workers._Found(report, "here", "host"))):
        with pytest.raises(BadRecipe, match="worker tcp://a sent something else than times of a model"):
            on_workers._read(result, "worker tcp://a")


def test_what_a_cluster_cannot_measure_is_told(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra 'cluster'")
    a, _ = two(tmp_path)
    other = tiny.save(
        tiny.model(TEXT.replace("x)", "z)").replace("(x,", "(z,").replace(" x)", " z)"), {"w": tiny.normal(64, 32)}),
        tmp_path,
        "c.onnx",
    )
    with pytest.raises(BadModel, match="the models cannot be compared"):
        bench([a, other], cluster="local:1")
    with pytest.raises(BadData, match="several processes can only share data that each can open"):
        bench([a], Sampling([{"x": np.zeros((1, 64), np.float32)}]), cluster="local:1")
    with pytest.raises(BadRecipe, match="--cluster 'slurm' is none of"):
        bench([a], cluster="slurm")
