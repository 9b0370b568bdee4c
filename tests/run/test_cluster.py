"""On a Dask cluster everything is as on one machine, whoever dies, is slow, or is of another version."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from schedulers import QUIET, in_this_process

import onnxq
from onnxq.calibration import shards
from onnxq.calibration.find_ranges import Effort
from onnxq.cluster import dask_cluster, started
from onnxq.cluster.tasks import Task
from onnxq.errors import BadRecipe
from onnxq.output import packed_elsewhere

pytestmark = QUIET
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


def test_workers_that_do_not_see_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "_unseen", lambda sizes: next(iter(sizes)))
    with in_this_process(1) as found, pytest.raises(BadRecipe, match=r"worker tcp://\S+ cannot read '\S+model.onnx'"):
        calibrated(folder, found.scheduler_address)
