"""Tasks done by whoever does them: what arrives is checked, what was done is kept, and what dies is done again."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from onnxq import cluster
from onnxq.cluster import engine, tasks
from onnxq.cluster.processes import Processes
from onnxq.cluster.tasks import Outcome, Task, perform, versions
from onnxq.errors import BadData, BadOutput, BadRecipe, Bug
from onnxq.files import cache
from onnxq.files.cache import Cache


def doubled(number: int) -> bytes:
    return bytes([2 * number])


def refuses(number: int) -> bytes:
    raise BadData(f"number {number} is wrong")


def fails(number: int) -> bytes:
    return bytes([number // 0])


def task_of(number: int, function: Callable[[int], bytes] = doubled) -> Task:
    return Task(function, (number,), cluster.named(function, number), f"number {number}")


class Here:
    """Does tasks when they are submitted, and damages some results."""

    workers = 2
    dashboard = ""

    def __init__(self, cache: Cache | None = None, damaged: int = 0) -> None:
        self.cache, self.damaged, self.done = cache, damaged, 0

    def submit(self, task: Task, progress: Callable[[int], None]) -> Future[Outcome]:
        outcome = perform(task.function, task.given(), versions())
        self.done += 1
        if self.damaged:
            self.damaged -= 1
            outcome = outcome._replace(payload=outcome.payload + b"!")
        future: Future[Outcome] = Future()
        future.set_result(outcome._replace(seconds=9.0))
        return future

    def check(self) -> None: ...

    def unseen(self, *paths: str | Path) -> str:
        return f"worker far away cannot read '{paths[0]}'"

    def close(self) -> None: ...


def test_results_come_in_order_and_progress_adds_up() -> None:
    told: list[int] = []
    found = cluster.results(Here(), map(task_of, range(20)), told.append)
    assert list(found) == [bytes([2 * i]) for i in range(20)]
    assert sum(told) == 20


def test_no_more_tasks_are_under_way_than_are_soon_done() -> None:
    engine = Here()
    found = cluster.results(engine, map(task_of, range(20)))
    assert next(found) == b"\0"
    assert engine.done <= 6


def test_what_arrives_damaged_is_asked_for_again() -> None:
    engine = Here(damaged=2)
    assert list(cluster.results(engine, [task_of(4)])) == [b"\x08"]
    assert engine.done == 3
    with pytest.raises(BadOutput, match="number 4 arrived damaged 3 times"):
        list(cluster.results(Here(damaged=3), [task_of(4)]))


def test_errors_of_workers_are_those_of_this_process() -> None:
    with pytest.raises(BadData, match=r"^number 3 is wrong$"):
        list(cluster.results(Here(), [task_of(3, refuses)]))
    with pytest.raises(Bug, match="ZeroDivisionError"):
        list(cluster.results(Here(), [task_of(3, fails)]))


def answer(kind: str, payload: bytes) -> Outcome:
    return Outcome(kind, payload, "", 0.0, "worker tcp://a")


WRONG = [b"5", b"null", b"{", b"[1]", b"[" * 99999, b"\xff", b'[[1, 2], ["a", 3]]']


@pytest.mark.parametrize("payload", [*WRONG, b'["NothingToDo", "all is well"]', b'["Exit", "x"]'])
def test_answers_that_are_none_of_ours(payload: bytes) -> None:
    for found in (tasks.error_of(answer(tasks.ERROR, payload)), tasks.refusal_of(answer(tasks.REFUSED, payload))):
        assert type(found) is BadRecipe
        assert str(found).startswith("worker tcp://a sent something else than ")


def test_a_refusal_by_the_same_versions_is_none() -> None:
    same = tasks.refusal_of(answer(tasks.REFUSED, json.dumps(versions()).encode()))
    assert str(same).startswith("worker tcp://a sent something else than why it refused a task")


@pytest.mark.parametrize(
    "said",
    [
        None,
        (),
        ("tcp://a",),
        ("tcp://a", "done", "text", "x", 0.0),
        ("tcp://a", "weird", b"x", "x", 0.0),
        ("tcp://a", ["done"], b"x", "x", 0.0),
        ("tcp://a", "done", b"x", 5, 0.0),
        ("tcp://a", "done", b"x", "x", "long"),
        ("tcp://a", "done", b"x", "x", 0.0, 1),
        (5, "done", b"x", "x", 0.0),
    ],
    ids=str,
)
def test_what_is_no_outcome(said: object) -> None:
    with pytest.raises(BadRecipe, match=r"^(worker tcp://a|a worker) sent something else than what becomes of a task"):
        tasks.received(said)
    outcome = perform(doubled, (1,), versions())
    assert tasks.received(tasks.as_values("tcp://a", outcome)) == ("tcp://a", outcome._replace(who="worker tcp://a"))


def never_gives(result: bytes, who: str) -> bytes:
    raise cluster.unlike("a number", who)


def test_what_a_task_does_not_give_is_not_kept(tmp_path: Path) -> None:
    engine = Here(Cache(tmp_path, 1 << 20))
    task = dataclasses.replace(task_of(5), read=never_gives)
    with pytest.raises(BadRecipe, match="a worker sent something else than a number"):
        list(cluster.results(engine, [task]))
    assert engine.cache is not None and engine.cache.get(task.name) is None


def gives_one(result: bytes, who: str) -> bytes:
    return result if len(result) == 1 else never_gives(result, who)


def test_what_was_kept_and_a_task_does_not_give_is_done_anew(tmp_path: Path) -> None:
    kept = Cache(tmp_path, 1 << 20)
    task = dataclasses.replace(task_of(5), read=gives_one)
    kept.put(task.name, b"two")
    assert engine.kept(kept, task) is None and kept.get(task.name) is None
    kept.put(task.name, b"two")
    assert list(cluster.results(Here(kept), [task])) == [b"\n"]
    assert engine.kept(kept, task) == (b"\n", b"\n")


def test_a_worker_with_other_versions_does_nothing() -> None:
    outcome = perform(doubled, (1,), versions() | {"onnxq": "0.0.1"})
    assert outcome.kind == tasks.REFUSED
    older = answer(tasks.REFUSED, json.dumps(versions() | {"onnxq": "0.0.1"}).encode())
    wanted = f"worker tcp://a has onnxq 0.0.1 and this machine onnxq {versions()['onnxq']}: results would differ"
    assert str(tasks.refusal_of(older)).startswith(wanted)


def test_what_was_done_is_kept_for_the_next_time(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    first = Here(cache)
    found = cluster.results(first, map(task_of, range(3)))
    next(found)
    found.close()  # as Ctrl-C does
    second = Here(cache)
    assert len(list(cluster.results(second, map(task_of, range(3))))) == 3
    assert second.done < 3


def test_a_name_holds_for_the_same_work_only() -> None:
    names = {cluster.named(doubled, 1), cluster.named(doubled, 2), cluster.named(refuses, 1)}
    assert len(names) == 3 and cluster.named(doubled, 1) in names


@pytest.mark.parametrize("said", ["x", "-1", "", "9" * 5000])
def test_a_size_of_the_cache_that_is_none(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXQ_CACHE_SIZE", said)
    with pytest.raises(BadRecipe, match=r"ONNXQ_CACHE_SIZE is '.{0,40}', not a number of bytes"):
        cache.usual()


def test_somebody_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(BadRecipe, match="no home folder for what is downloaded: set XDG_CACHE_HOME"):
        cache.usual()


def test_a_cache_keeps_no_more_than_it_may_and_nothing_damaged(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    for i in range(20):
        cache.put(f"{i:032x}", bytes(180))
        os.utime(tmp_path / f"{i:032x}", (i, i))
    assert cache.nbytes() <= 1000
    assert cache.get(f"{0:032x}") is None and cache.get(f"{19:032x}") == bytes(180)
    (tmp_path / f"{19:032x}").write_bytes(b"damaged")
    assert cache.get(f"{19:032x}") is None
    cache.put(f"{1:032x}", bytes(2000))
    assert cache.get(f"{1:032x}") is None
    with pytest.raises(ValueError):
        cache.get("../../etc/passwd")


def test_what_others_put_into_the_folder_of_a_cache_stays(tmp_path: Path) -> None:
    cache, name = Cache(tmp_path / "kept", 1000), f"{1:032x}"
    (tmp_path / "kept" / "folder").mkdir(parents=True)
    (tmp_path / "kept" / "notes.txt").write_bytes(bytes(900))
    os.utime(tmp_path / "kept" / "notes.txt", (0, 0))
    for i in range(20):
        cache.put(f"{i:032x}", bytes(180))
    assert cache.get(f"{19:032x}") is not None and cache.nbytes() <= 1000
    assert (tmp_path / "kept" / "notes.txt").stat().st_size == 900 and (tmp_path / "kept" / "folder").is_dir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / f"{2:032x}").write_bytes(bytes(900))
    Cache(tmp_path / "link", 1000).put(name, bytes(180))
    assert [path.name for path in (tmp_path / "photos").iterdir()] == [f"{2:032x}"]


def test_a_relative_place_for_caches_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache.folder() == tmp_path / ".cache" / "onnxq" / "content"


def test_files_that_workers_do_not_see_are_named() -> None:
    with pytest.raises(BadRecipe, match=r"worker far away cannot read 'm.onnx': put it where all machines see it"):
        cluster.require_readable(Here(), "m.onnx")


def pid_of(number: int) -> bytes:
    return os.getpid().to_bytes(8, "little")


def dies_once(folder: str) -> bytes:
    try:
        Path(folder, "died").touch(exist_ok=False)
    except FileExistsError:
        return b"done"
    os.kill(os.getpid(), 9)
    raise AssertionError


def dies(number: int) -> bytes:
    os.kill(os.getpid(), 9)
    raise AssertionError


def counted(folder: str, number: int) -> bytes:
    with Path(folder, "done").open("a") as file:
        file.write(f"{number}\n")
    return bytes([number])


def joined(number: int, needed: tuple[bytes, ...]) -> bytes:
    return b"".join(needed) + bytes([number])


def needing(folder: Path, number: int) -> Task:
    """A task of one that all need, and of one that every second one needs; each of arguments made when it is sent."""
    needs = [
        Task(counted, lambda i=i: (str(folder), i), cluster.named(counted, i), "this") for i in (7, 8 + number % 2)
    ]
    return Task(joined, (number,), cluster.named(joined, number), f"number {number}", needs=tuple(needs))


def sleeps(folder: str) -> bytes:
    Path(folder, "began").touch()
    time.sleep(60)
    raise AssertionError


def runs_a_program(number: int) -> bytes:
    """As a data function may, whose program reads what there is to read and writes."""
    os.write(1, b"a line\n")
    return subprocess.run(["cat"], capture_output=True, timeout=20).stdout + bytes([number])


def test_programs_that_a_task_starts_disturb_nothing() -> None:
    engine = Processes(1)
    try:
        assert list(cluster.results(engine, [task_of(i, runs_a_program) for i in range(3)])) == [b"\0", b"\1", b"\2"]
    finally:
        engine.close()


def test_a_task_whose_process_dies_is_done_by_another(tmp_path: Path) -> None:
    engine = Processes(2)
    try:
        task = Task(dies_once, (str(tmp_path),), "a" * 40, "this")
        assert list(cluster.results(engine, [task, task_of(1)])) == [b"done", b"\2"]
        pids = set(cluster.results(engine, [task_of(i, pid_of) for i in range(4)]))
        assert len(pids) <= 2 and os.getpid().to_bytes(8, "little") not in pids
        with pytest.raises(BadRecipe, match="processes ended early while they did number 7"):
            list(cluster.results(engine, [task_of(7, dies)]))
    finally:
        engine.close()


def test_what_several_tasks_need_is_done_once(tmp_path: Path) -> None:
    engine = Processes(2)
    try:
        found = list(cluster.results(engine, [needing(tmp_path, i) for i in range(6)]))
    finally:
        engine.close()
    assert found == [bytes([7, 8 + i % 2, i]) for i in range(6)]
    assert sorted((tmp_path / "done").read_text().split()) == ["7", "8", "9"]


def test_what_is_wrong_with_a_task_is_told_by_those_that_need_it() -> None:
    engine = Processes(1)
    try:
        for number in (1, 2):
            task = Task(joined, (number,), cluster.named(joined, number), "this", needs=(task_of(3, refuses),))
            with pytest.raises(BadData, match=r"^number 3 is wrong$"):
                list(cluster.results(engine, [task]))
    finally:
        engine.close()


def test_what_was_measured_in_time_is_measured_again(tmp_path: Path) -> None:
    engine = Here(Cache(tmp_path, 1 << 20))
    task = dataclasses.replace(task_of(5), is_kept=False)
    assert [list(cluster.results(engine, [task])) for _ in range(2)] == [[b"\n"]] * 2
    assert engine.done == 2


def test_processes_end_while_they_work(tmp_path: Path) -> None:
    engine = Processes(1)
    engine.submit(Task(sleeps, (str(tmp_path),), "b" * 40, "this"), lambda done: None)
    while not (tmp_path / "began").exists():
        time.sleep(0.01)
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 20
