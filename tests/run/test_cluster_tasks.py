"""Tasks on a Dask cluster are done once, by whom they may be, whoever dies, is slow, or is of another version."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from schedulers import QUIET, distributed, in_this_process

from onnxq import cluster
from onnxq.cluster import dask_cluster, open_engine
from onnxq.cluster.tasks import Task, versions
from onnxq.errors import BadData, BadRecipe, MissingRuntime

pytestmark = QUIET


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def slow_on_the_first(number: int) -> bytes:
    if distributed.get_worker().name == 0:
        time.sleep(0.2)
    return bytes([number])


def tasks(function: Any, count: int) -> list[Task]:
    return [Task(function, (i,), cluster.named(function, i), f"number {i}") for i in range(count)]


def test_a_slow_worker_is_waited_for_and_not_given_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "_alone", _Free())
    with in_this_process(2) as found, open_engine(found.scheduler_address) as engine:
        assert engine is not None
        assert list(cluster.results(engine, tasks(slow_on_the_first, 12))) == [bytes([i]) for i in range(12)]


class _Free:
    """In the place of a lock: workers that share a process here would have one of their own."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def doubled(number: int) -> bytes:
    return bytes([2 * number])


def refuses(number: int) -> bytes:
    raise BadData(f"number {number} is wrong")


def test_a_worker_with_an_older_onnxq_is_refused(tmp_path: Path) -> None:
    (tmp_path / "older.py").write_text("import onnxq.version\nonnxq.version.__version__ = '0.0.1'\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    with in_this_process(0) as found:
        words = [found.scheduler_address, "--no-nanny", "--no-dashboard", "--nthreads", "1", "--preload", "older"]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", *words]
        older = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            with open_engine(found.scheduler_address) as engine:
                assert engine is not None
                engine._client.wait_for_workers(1, 60)  # type: ignore[attr-defined]
                with pytest.raises(
                    BadRecipe, match=r"has onnxq 0\.0\.1 and this machine onnxq .*: results would differ"
                ):
                    list(cluster.results(engine, tasks(bytes_of, 1)))
            found.scale(1)
            with open_engine(found.scheduler_address) as engine:
                assert engine is not None
                engine._client.wait_for_workers(2, 60)  # type: ignore[attr-defined]
                assert list(cluster.results(engine, tasks(bytes_of, 9))) == [bytes(i) for i in range(9)]
        finally:
            older.kill()
            older.wait()


bytes_of = bytes  # which a worker that does not have this file knows too


def test_a_scheduler_that_is_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "GONE", 0.5)
    with in_this_process(1) as found, open_engine(found.scheduler_address) as engine:
        assert engine is not None
        results = cluster.results(engine, tasks(slow_on_the_first, 12))
        next(results)
        found.close()
        with pytest.raises(BadRecipe, match=r"the scheduler of 'tcp://.*' is gone: start it again"):
            list(results)


def noted(folder: str, number: int) -> bytes:
    Path(folder, f"{number} {time.monotonic_ns()} {os.getpid()}").touch()
    return bytes([number])


def joined(number: int, needed: tuple[bytes, ...]) -> bytes:
    return b"".join(needed) + bytes([number])


def needing(folder: Path, count: int) -> list[Task]:
    """Tasks that all need the same two, of which one needs another one."""
    inner = Task(noted, (str(folder), 1), cluster.named(noted, 1), "the first")
    outer = Task(joined, (2,), cluster.named(joined, 2), "the second", needs=(inner,))
    given = Task(cluster.as_given, lambda: (b"!",), cluster.named(cluster.as_given, "!"), "the third", is_kept=False)
    names = [cluster.named(joined, [i]) for i in range(count)]
    return [Task(joined, (i,), name, f"number {i}", needs=(outer, given)) for i, name in enumerate(names, 9)]


def test_what_several_tasks_need_is_done_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster.engine, "KEEP_BYTES_A_SECOND", 1e12)
    (tmp_path / "notes").mkdir()
    with in_this_process(2) as found:
        for count in (5, 6):
            with open_engine(found.scheduler_address) as engine:
                assert engine is not None
                made = list(cluster.results(engine, needing(tmp_path / "notes", count)))
                assert made == [b"\1\2!" + bytes([i]) for i in range(9, 9 + count)]
                inner = needing(tmp_path / "notes", 1)[0].needs[0].needs[0]
                until = time.monotonic() + 20
                while engine.cache is not None and engine.cache.get(inner.name) is None and time.monotonic() < until:
                    time.sleep(0.01)
    assert len(list((tmp_path / "notes").iterdir())) == 1


def gives_two(result: bytes, who: str) -> bytes:
    if len(result) == 2:
        return result
    raise cluster.unlike("two numbers", who)


def test_what_was_kept_for_several_tasks_and_is_wrong_is_done_anew(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with in_this_process(1) as found, open_engine(found.scheduler_address) as engine:
        assert engine is not None and engine.cache is not None
        (task,) = needing(tmp_path / "notes", 1)
        needs = (replace(task.needs[0], read=gives_two), task.needs[1])
        engine.cache.put(needs[0].name, b"wrong")
        assert list(cluster.results(engine, [replace(task, needs=needs)])) == [b"\1\2!\t"]


def test_what_a_dead_worker_had_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process ends with its ninth task, and what others need with it."""
    monkeypatch.setenv("ONNXQ_FAULT", "kill task.done 9")
    monkeypatch.setenv("ONNXQ_FAULT_LOG", str(tmp_path / "points.log"))
    (tmp_path / "notes").mkdir()
    with open_engine("local:2") as engine:
        assert engine is not None
        made = list(cluster.results(engine, needing(tmp_path / "notes", 14)))
    assert made == [b"\1\2!" + bytes([i]) for i in range(9, 23)]
    assert len({line.split()[1] for line in (tmp_path / "points.log").read_text().splitlines()}) > 2


def test_what_arrives_damaged_at_another_task_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    real, damaged = dask_cluster.perform, []

    def perform(function: Any, *rest: Any) -> Any:
        outcome = real(function, *rest)
        if function is noted and not damaged:
            damaged.append(True)
            return outcome._replace(payload=b"\5")
        return outcome

    monkeypatch.setattr(dask_cluster, "perform", perform)
    with in_this_process(1) as found, open_engine(found.scheduler_address) as engine:
        assert engine is not None
        assert list(cluster.results(engine, needing(tmp_path / "notes", 3))) == [
            b"\1\2!" + bytes([i]) for i in (9, 10, 11)
        ]
    assert len(list((tmp_path / "notes").iterdir())) == 2


def test_errors_of_workers_are_told_as_they_are() -> None:
    with in_this_process(1) as found, open_engine(found.scheduler_address) as engine:
        assert engine is not None
        with pytest.raises(BadData, match=r"^number 0 is wrong$"):
            list(cluster.results(engine, tasks(refuses, 3)))


def answers_text(*arguments: Any) -> tuple:
    return "tcp://a", "done", "text", "x", 0.0


def refuses_as_nobody(*arguments: Any) -> tuple:
    payload = json.dumps({"onnxq": "0.0.1"}).encode()
    return "tcp://nobody:1", "refused", payload, "", 0.0


def fails_untold(*arguments: Any) -> tuple:
    """With a traceback that cannot be pickled, in the place of which Dask sends a text."""
    exec("raise ValueError('lost')", {"__name__": threading.Lock()})
    raise AssertionError


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (answers_text, "^worker tcp://a sent something else than what becomes of a task"),
        (refuses_as_nobody, "^worker tcp://nobody:1 has "),
        (fails_untold, "^Dask could not do number 0: .*lost"),
    ],
)
def test_a_worker_that_is_not_ours_is_not_waited_for(
    answer: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "_on_worker", answer)
    with in_this_process(1) as found, open_engine(found.scheduler_address) as engine:
        assert engine is not None
        with pytest.raises(BadRecipe, match=sentence):
            engine.submit(next(iter(tasks(doubled, 1))), lambda done: None).result(60)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("tcp://127.0.0.1:9", "no Dask scheduler answers at 'tcp://127.0.0.1:9'"),
        ("slurm", "--cluster 'slurm' is none of tcp://host:port"),
        ("no_such_module:Cluster", "--cluster 'no_such_module:Cluster' failed with ModuleNotFoundError"),
        ("json:Cluster", "--cluster 'json:Cluster': 'json' has no 'Cluster'"),
        ("json:loads", "--cluster 'json:loads' is called without anything, but takes 's', "),
        ("os:getcwd", "--cluster 'os:getcwd' makes '/"),
        ("json:JSONDecoder", "--cluster 'json:JSONDecoder' makes something of type JSONDecoder, not a Dask cluster"),
        ("sys:exit", "--cluster 'sys:exit', called without anything, failed with SystemExit"),
        ("tls://127.0.0.1:9", "no Dask scheduler answers at 'tls://127.0.0.1:9': TLS expects"),
        ("local:0", "--cluster 'local:0' is none of"),
    ],
)
def test_clusters_that_are_none(word: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT", 1.0)
    with pytest.raises(BadRecipe) as found, open_engine(word):
        pass
    assert sentence in str(found.value)
    # One that is left to the garbage collector may be closed while another begins, and waits for ever for its lock.
    clients = [each for each in gc.get_objects() if type(each) is distributed.Client]
    assert {each.status for each in clients} <= {"closed"}


def test_a_cluster_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingRuntime, match=r"pip install 'onnxq\[cluster\]'"), open_engine("local:2"):
        pass
    with pytest.raises(BadRecipe, match="give one of them"), open_engine("local:2", 2):
        pass
    assert versions()["onnxq"]


STRANGERS = r"""
import contextlib, socket, time, distributed
from onnxq.cluster import started
with contextlib.ExitStack() as closing:
    cluster, _ = started.local_cluster(distributed, 1, closing)
    host, port = cluster.scheduler_address.removeprefix("tcp://").split(":")
    for sent in (b"", b"GET / HTTP/1.0", bytes(999), bytes(range(256)), 3 * (b"\2" + bytes(7)) + b"\xff" * 16):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    with distributed.Client(cluster) as client:
        time.sleep(1)
        print(client.submit(abs, -3).result())
""".replace("\\\\", "\\")


def test_what_strangers_send_to_the_port_is_not_printed() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", STRANGERS], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("3\n", "")
