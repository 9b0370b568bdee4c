"""A process that is killed, or a disk that fails, at any point where a file changes: nothing is lost or mixed up.

The points are those that a run passes (`onnxq/files/faults.py`); each is found by letting one run pass them all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kill_folder
import pytest
from kill_cases import CASES, calibrate, quantize
from kill_folder import EVERY, Case, Driver, copy, hashes_of_inputs, names_in
from sweeps import at_night, swept

#: Where a failure is no reason to fail: what is removed there is nobody's any more, and the next run tries again.
CLEANING = {"staging.sweep", "staging.remove", "publish.old_data", "checkpoint.remove"}
#: What every run of the tests tries. The sweep takes the others, which pass more points, and `night` those that write
#: by the same functions as one of them.
ALWAYS = {"new model"}


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with kill_folder.driver() as made:
        yield made


def lines(folder: Path) -> list[tuple[str, str]]:
    """The points that the last run passed, and in which of its processes."""
    log = folder.with_suffix(".log")
    found = [line.split() for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    return [(point, process) for point, process in found]


def passed(folder: Path) -> list[str]:
    return [point for point, _ in lines(folder)]


def faults_of(points: list[tuple[str, str]], is_like_another: bool) -> Iterator[tuple[str, str, int]]:
    """SIGKILL at each point, the first, second and last time a process passes it; errors at the first and last time.
    Where another case writes by the same functions, SIGKILL the last time, and one error or the other."""
    times: dict[str, int] = {}
    for (point, _), count in Counter(points).items():
        times[point] = max(count, times.get(point, 0))
    for number, (point, count) in enumerate(times.items()):
        if is_like_another:
            yield "kill", point, count
            if not point.startswith("task."):
                yield ("ENOSPC", "EIO")[number % 2], point, count
            continue
        for time_ in sorted({1, min(2, count), count}):
            yield "kill", point, time_
        if not point.startswith("task."):  # where nothing is written
            yield "ENOSPC", point, 1
            yield "EIO", point, count


def test_what_is_always_tried_is_there() -> None:
    assert set(CASES) >= ALWAYS


@pytest.mark.parametrize(
    "name",
    [
        (pytest.param if name in ALWAYS else at_night if case.is_like_another else swept)(name)
        for name, case in CASES.items()
    ],
)
def test_nothing_is_lost_wherever_it_ends(name: str, tmp_path: Path, driver: Driver) -> None:
    case = CASES[name]
    for module in (*case.needs, *(["highspy"] if "--budget" in case.argv else [])):
        pytest.importorskip(module)
    template, whole = tmp_path / "template", tmp_path / "whole"
    case.prepare(template, driver)
    old, inputs = case.content(template), hashes_of_inputs(template)
    copy(template, whole)
    code, said = driver.run(whole, case.argv, case.patches)
    assert code == 0, said
    new, wanted = case.content(whole), names_in(whole)
    assert new is not None and new != old
    assert not any(staged in path for path in wanted for staged in (".onnxq-", ".partial", ".search"))
    tried = 0
    for action, point, time_ in faults_of(lines(whole), case.is_like_another):
        if not point.startswith(case.points):
            continue
        where = f"{action} {point} {time_}"
        folder = copy(template, tmp_path / f"{action}-{point}-{time_}")
        code, said = driver.run(folder, case.argv, case.patches, where)
        found = case.content(folder)
        assert found in (old, new) or (found is None and case.may_be_gone), where
        assert hashes_of_inputs(folder) == inputs, where
        if "ranges" in name and found == old:
            require_progress(folder, where)
        if action == "kill":
            # Of several processes, one does what another was killed at, or says in a sentence that it was.
            is_done_again = code == 0 and "--jobs" in case.argv and found == new
            ended = code == 1 and "processes ended early" in said
            assert code == -signal.SIGKILL or is_done_again or ended, (where, code, said)
        else:
            require_sentence(code, said, action, where, point in CLEANING)
            if point not in CLEANING and "--jobs" not in case.argv:  # whose others are interrupted anywhere
                assert not list(folder.glob(".onnxq-*")), where
        if action == "kill" or point in CLEANING or "--jobs" in case.argv:
            force = [] if "-f" in case.argv or found is None else ["-f"]
            code, said = driver.run(folder, [*case.argv, *force], case.patches)
            assert code == 0, (where, said)
            assert case.content(folder) == new, where
            assert names_in(folder) == wanted, where
        shutil.rmtree(folder)
        tried += 1
    assert tried > (3 if case.is_like_another else 8 if case.points else 20)


def test_where_two_folders_cannot_be_exchanged_the_old_one_is_kept_beside(tmp_path: Path, driver: Driver) -> None:
    case, patches = CASES["folder of models"], {"onnxq.output.place.EXCHANGE": ""}
    folder = tmp_path / "f"
    case.prepare(folder, driver)
    old = case.content(folder)
    code, _ = driver.run(folder, case.argv, patches, "kill folder.aside_moved")
    assert code == -signal.SIGKILL and case.content(folder) is None
    (kept,) = folder.glob("out.old-*")
    assert driver.run(folder, case.argv, patches)[0] == 0
    assert case.content(folder) not in (None, old)
    shutil.rmtree(folder / "out")
    kept.rename(folder / "out")
    assert case.content(folder) == old


def require_sentence(code: int, said: str, action: str, where: str, is_cleaning: bool) -> None:
    assert "Traceback" not in said, (where, said)
    if is_cleaning:
        assert code == 0, (where, said)
        return
    last = said.splitlines()[-1]
    words = "no space left on the disk" if action == "ENOSPC" else "cannot be written: Input/output error"
    assert code == 1 and last.startswith("onnxq: ") and words in last, (where, code, said)


def require_progress(folder: Path, where: str) -> None:
    """What was saved before the end is there: the samples seen, or everything."""
    points = passed(folder)
    saved = sum(point == "write.moved" for point in points)  # before the ranges are, only progress is written
    parts = sorted(folder.glob("out.ranges.partial*"))
    assert len(parts) >= bool(saved), where
    if len(parts) == 1 and parts[0].name == "out.ranges.partial":
        table = json.loads(parts[0].read_text(encoding="utf-8"))
        assert table["finished"] or table["done"] >= EVERY * saved, where


def test_progress_that_is_whole_is_not_calibrated_again(tmp_path: Path, driver: Driver) -> None:
    """A kill between calibration and its ranges: the next run only chooses and writes."""
    for number, more in enumerate(([], ["--jobs", "2"])):
        folder = tmp_path / str(number)
        kill_folder.make_inputs(folder)
        argv = calibrate(*more)
        code, said = driver.run(folder, argv, {})
        saves = passed(folder).count("checkpoint.save")
        (folder / "out.ranges").unlink()
        writes = passed(folder).count("write.begin")
        assert saves == writes - 1
        # Processes count their own points: with several, the one before the ranges cannot be told by its number.
        fault = "kill checkpoint.remove" if more else f"kill write.move {writes}"
        code, said = driver.run(folder, argv, {}, fault)
        assert code == -signal.SIGKILL, said
        (folder / "out.ranges").unlink(missing_ok=True)
        code, said = driver.run(folder, argv, {})
        assert code == 0, said
        assert "checkpoint.save" not in passed(folder)
        assert names_in(folder) == {*kill_folder.NAMES, "out.ranges"}


@pytest.mark.parametrize("point", ["publish.model", "save.model", swept("publish.sync"), swept("publish.model_moved")])
def test_two_runs_for_one_output(point: str, tmp_path: Path, driver: Driver) -> None:
    """One is halted, the other runs from its beginning to its end, the first goes on: the result is one of both."""
    case = CASES["model with data over one with data"]
    template = tmp_path / "template"
    case.prepare(template, driver)
    results = []
    for scheme in ("w8a16", "nf4"):
        folder = copy(template, tmp_path / scheme)
        assert driver.run(folder, quantize(scheme, "-f"), case.patches)[0] == 0
        results.append(case.content(folder))
    folder = copy(template, tmp_path / "both")
    first = driver.start(folder, quantize("w8a16", "-f"), case.patches, f"STOP {point}")
    wait_until_halted(first)
    code, said = driver.run(folder, quantize("nf4", "-f"), case.patches)
    assert code == 0, said
    assert case.content(folder) in results
    os.kill(first, signal.SIGCONT)
    assert driver.wait(first) == 0
    assert case.content(folder) in results
    if point in ("publish.sync", "save.model"):  # otherwise the first held the folder, and the second swept nothing
        assert len(names_in(folder)) == len(names_in(template))
    assert driver.run(folder, quantize("w8a16", "-f"), case.patches)[0] == 0
    assert case.content(folder) == results[0]


def wait_until_halted(process: int) -> None:
    until = time.monotonic() + 30
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_folder_of_a_run_that_lives_is_never_swept(tmp_path: Path, driver: Driver) -> None:
    folder = tmp_path / "f"
    kill_folder.make_inputs(folder)
    first = driver.start(folder, quantize("w8a16"), {}, "STOP save.model")
    wait_until_halted(first)
    (staged,) = folder.glob(".onnxq-*")
    assert driver.run(folder, ["plan", "in.onnx", "-o", "p.json"], {})[0] == 0
    assert staged.is_dir()
    os.kill(first, signal.SIGCONT)
    assert driver.wait(first) == 0
    assert Case([], "out.onnx").content(folder)
    assert not list(folder.glob(".onnxq-*"))


def test_what_came_into_being_meanwhile_is_kept(tmp_path: Path, driver: Driver) -> None:
    folder = tmp_path / "f"
    kill_folder.make_inputs(folder)
    first = driver.start(folder, quantize("w8a16"), kill_folder.BESIDE, "STOP save.model")
    wait_until_halted(first)
    (folder / "out.onnx").write_text("precious")
    os.kill(first, signal.SIGCONT)
    assert driver.wait(first) == 1
    assert "came into being meanwhile" in folder.with_suffix(".said").read_text()
    assert (folder / "out.onnx").read_text() == "precious"
    assert names_in(folder) == {*kill_folder.NAMES, "out.onnx"}
