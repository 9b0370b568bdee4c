"""On a Dask cluster everything is as on one machine, whoever dies, is slow, or is of another version."""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

import onnxq
from onnxq import cluster
from onnxq.calibration import shards
from onnxq.calibration.find_ranges import Effort
from onnxq.cluster import dask_cluster, open_engine, started
from onnxq.cluster.tasks import Task, versions
from onnxq.errors import BadData, BadRecipe, MissingRuntime
from onnxq.output import packed_elsewhere

distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TEXT = """g (float[n, 96] x) => (float[n, 48] y) {
    h = MatMul(x, w) r = Relu(h) s = Sigmoid(r) m = MatMul(s, u) t = Tanh(m) y = MatMul(t, v)
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    weights = {"w": tiny.normal(96, 128), "u": tiny.normal(128, 64, seed=1), "v": tiny.normal(64, 48, seed=2)}
    tiny.save(tiny.model(TEXT, weights), folder)
    x = np.random.default_rng(0).standard_normal((41, 1, 96)).astype(np.float32)
    np.savez(folder / "data.npz", x=x * np.linspace(0.1, 3, 41, dtype=np.float32)[:, None, None])
    return folder


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_elsewhere, "LEAST_BYTES", 1)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", params=[1, 2, 7])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    """A scheduler with so many workers, all in this process."""
    with in_this_process(request.param) as found:
        yield found.scheduler_address


def in_this_process(workers: int) -> Any:
    options = {"processes": False, "protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    return distributed.LocalCluster(n_workers=workers, threads_per_worker=1, silence_logs="CRITICAL", **options)


def calibrated(folder: Path, word: str | None, method: str = "auto", jobs: int = 1) -> Any:
    """The file of ranges that `quantize` leaves."""
    path = Path(f"{word and 'cluster'}{jobs}{method}.ranges")
    path.unlink(missing_ok=True)
    recipe = onnxq.Recipe("w8a8", calibration=method, keep_slow=True, effort="quick")
    options = {"data": str(folder / "data.npz"), "check": False, "force": True}
    onnxq.quantize(
        folder / "model.onnx", "q.onnx", recipe, ranges=path, effort=Effort(jobs=jobs, cluster=word), **options
    )
    return json.loads(path.read_text())


def quantized(
    folder: Path, word: str | None, recipe: onnxq.Recipe, data: bool = True, target: str = "ort-cpu"
) -> bytes:
    options = {"data": str(folder / "data.npz") if data else None, "check": False, "force": True, "target": target}
    onnxq.quantize(folder / "model.onnx", "q.onnx", recipe, effort=Effort(cluster=word), **options)
    return Path("q.onnx").read_bytes()


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What tasks were sent to a cluster."""
    found: list[str] = []
    send = dask_cluster.DaskCluster.submit

    def submit(self: dask_cluster.DaskCluster, task: Task, progress: Any) -> Any:
        found.append(task.what)
        return send(self, task, progress)

    monkeypatch.setattr(dask_cluster.DaskCluster, "submit", submit)
    return found


@pytest.mark.parametrize("method", ["percentile", "moving-average:0.3", "minmax"])
def test_ranges_are_those_of_one_process(folder: Path, scheduler: str, method: str, sent: list[str]) -> None:
    assert calibrated(folder, scheduler, method) == calibrated(folder, None, method)
    assert sent


def test_processes_find_the_same(folder: Path) -> None:
    assert calibrated(folder, None, "auto", jobs=2) == calibrated(folder, None)


@pytest.mark.parametrize(
    ("recipe", "data", "target"),
    [
        (onnxq.Recipe("w4a16", keep_slow=True), False, "ort-cpu"),
        (onnxq.Recipe("nf4_dq", keep_slow=True), False, "onnxq"),
        (onnxq.Recipe("q4_k", keep_slow=True, block_size=None), False, "onnxq"),
        (onnxq.Recipe("w4a16", algorithm="gptq", keep_slow=True), True, "ort-cpu"),
        (onnxq.Recipe("w4a16", keep_slow=True), True, "onnx"),
        (onnxq.Recipe("w8a8", keep_slow=True), True, "ort-cpu"),
    ],
    ids=["4 bits", "nested", "super blocks", "gptq", "following", "8 bits"],
)
def test_models_are_those_of_one_process(
    folder: Path, scheduler: str, recipe: onnxq.Recipe, data: bool, target: str, sent: list[str]
) -> None:
    found = quantized(folder, scheduler, recipe, data, target)
    assert found == quantized(folder, None, recipe, data, target)
    # Those of 8 bits were made before, to look at what they do to the means of outputs.
    assert {"'w'", "'u'", "'v'"} <= set(sent) or recipe.scheme == "w8a8"


def less(table: dict[str, Any]) -> None:
    table["summaries"].popitem()


def more(table: dict[str, Any]) -> None:
    table["summaries"]["more"] = next(iter(table["summaries"].values()))


def another_shard(table: dict[str, Any]) -> None:
    table["shard"][1] += 1


@pytest.mark.parametrize("lie", [less, more, another_shard])
def test_what_a_worker_saw_of_something_else_is_refused(
    folder: Path, lie: Callable[[dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.wraps(real := shards.observe_shard)
    def lies(*arguments: Any) -> bytes:
        lie(table := json.loads(real(*arguments)))
        return json.dumps(table).encode()

    monkeypatch.setattr(shards, "observe_shard", lies)
    said = "sent something else than what it saw of the shard and the activations that it was asked for"
    with in_this_process(1) as found, pytest.raises(BadRecipe, match=said):
        calibrated(folder, found.scheduler_address)


def shorter(head: dict[str, Any], body: bytes) -> bytes:
    head["lengths"][-1] -= 4
    return body[:-4]


def infinitely_long(head: dict[str, Any], body: bytes) -> bytes:
    head["lengths"][0] = math.inf
    return body


def chosen_infinitely_often(head: dict[str, Any], body: bytes) -> bytes:
    head["chosen"] = {"gptq": math.inf}
    return body


@pytest.mark.parametrize("lie", [shorter, infinitely_long, chosen_infinitely_often])
def test_other_parts_of_a_weight_are_refused_and_not_kept(
    folder: Path, lie: Callable[[dict[str, Any], bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster.engine, "KEEP_BYTES_A_SECOND", 1e12)
    recipe = onnxq.Recipe("w4a16", keep_slow=True)

    @functools.wraps(real := packed_elsewhere.packed_parts)
    def lies(*arguments: Any) -> bytes:
        found = real(*arguments)
        start = 4 + int.from_bytes(found[:4], "little")
        head = json.loads(found[4:start])
        body = lie(head, found[start:])
        said = json.dumps(head).encode()
        return len(said).to_bytes(4, "little") + said + body

    with in_this_process(1) as found:
        with monkeypatch.context() as lying:
            lying.setattr(packed_elsewhere, "packed_parts", lies)
            with pytest.raises(BadRecipe, match=r"sent something else than (a packed weight|the parts of a weight)"):
                quantized(folder, found.scheduler_address, recipe, data=False)
        assert quantized(folder, found.scheduler_address, recipe, data=False) == quantized(folder, None, recipe, False)


def test_evidence_is_sent_to_workers_that_do_not_see_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = onnxq.Recipe("w4a16", algorithm="gptq", keep_slow=True)
    wanted = quantized(folder, None, recipe)
    monkeypatch.setattr(
        dask_cluster.DaskCluster, "unseen", lambda self, *paths: next((str(p) for p in paths if "npz" in str(p)), "")
    )
    with in_this_process(2) as found:
        assert quantized(folder, found.scheduler_address, recipe) == wanted


def test_workers_that_die_lose_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process ends with its third task, done and not yet sent."""
    wanted = calibrated(folder, None)
    monkeypatch.setenv("ONNXQ_FAULT", "kill task.done 3")
    monkeypatch.setenv("ONNXQ_FAULT_LOG", "points.log")
    assert calibrated(folder, "local:2") == wanted
    processes = {line.split()[1] for line in Path("points.log").read_text().splitlines() if line.startswith("task.")}
    assert len(processes) > 2


SLOW = """import numpy as np, pathlib, time
def rows():
    for i in range(12):
        yield {"x": np.full((1, 96), i + 1, np.float32)}
"""


def test_an_interrupted_command_ends_at_once_and_goes_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["calibrate", str(folder / "model.onnx"), "-s", "w8a8", "--data", "slow:rows", "-o", "r.ranges"]
    wait = "import onnxq.cluster.tasks as t, time; old = t.faults.point\n"
    wait += "def slow(name):\n    old(name)\n    time.sleep(1.0 * (name == 'task.begin'))\nt.faults.point = slow\n"
    (tmp_path / "sitecustomize.py").write_text(wait)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
        "ONNXQ_FAULT_LOG": str(tmp_path / "log"),
    }
    command = [sys.executable, "-m", "onnxq", *words, "--cluster", "local:1"]
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - whatever started the tests
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    until = time.monotonic() + 90
    kept = tmp_path / "cache" / "onnxq" / "content"
    while not (kept.is_dir() and len(list(kept.glob("[!.]*"))) >= 2) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said.splitlines()[-1]) == (130, "onnxq: interrupted")
    (tmp_path / "sitecustomize.py").unlink()
    (tmp_path / "log").unlink()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "log").read_text().count("task.begin") <= 2  # of four, of which two were kept
    assert json.loads(Path("r.ranges").read_text())["values"]


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


def test_workers_here_are_started_for_what_takes_longer_than_to_send_it(
    folder: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process has the same cores: what is compiled is encoded as fast as it is written."""
    alone = quantized(folder, None, onnxq.Recipe("w4a16", algorithm="mse", keep_slow=True), data=False)
    with monkeypatch.context() as patch:
        patch.setattr(started, "local_cluster", None)
        recipe = onnxq.Recipe("w4a16", algorithm="mse", keep_slow=True)
        assert quantized(folder, "local:1", recipe, data=False) == alone
    assert not sent
    slow = onnxq.Recipe("w4a16", algorithm="hqq", keep_slow=True)
    assert quantized(folder, "local:1", slow, data=False) == quantized(folder, None, slow, data=False)
    assert sent


def test_a_cluster_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingRuntime, match=r"pip install 'onnxq\[cluster\]'"), open_engine("local:2"):
        pass
    with pytest.raises(BadRecipe, match="give one of them"), open_engine("local:2", 2):
        pass
    assert versions()["onnxq"]


def test_workers_that_do_not_see_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "_unseen", lambda sizes: next(iter(sizes)))
    with in_this_process(1) as found, pytest.raises(BadRecipe, match=r"worker tcp://\S+ cannot read '\S+model.onnx'"):
        calibrated(folder, found.scheduler_address)
