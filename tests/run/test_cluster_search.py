"""A search on a Dask cluster measures the plans that it would measure here, and finds the same front, to the bit."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from schedulers import QUIET, in_this_process

import onnxq
from onnxq.calibration.find_ranges import Effort
from onnxq.cluster import dask_cluster, started
from onnxq.errors import BadModel, BadRecipe
from onnxq.job import open_job
from onnxq.output import messages, model_elsewhere, packed_elsewhere
from onnxq.runtime.session import Session
from onnxq.searching import plans_elsewhere, space
from onnxq.summaries.evidence import Layer, add_arrays
from onnxq.summaries.ranges import NO_RANGES

pytest.importorskip("highspy")
pytestmark = [pytest.mark.usefixtures("quick"), *QUIET]
TEXT = """m (float[n, 64] x) => (float[n, 24] y) {
    a = MatMul (x, w0)  b = Relu (a)  c = MatMul (b, w1)  d = Relu (c)  e = MatMul (d, w2)  f = Add (e, b)
    g = Relu (f)  y = MatMul (g, w3)
}"""
FORMATS = ("uint2/64", "int3/32", "uint4/32", "int8", "float16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose weights lie in a file beside it, and samples of it."""
    made = tmp_path_factory.mktemp("search")
    weights = {
        "w0": tiny.normal(64, 128),
        "w1": tiny.normal(128, 128, seed=1) / 16,
        "w2": tiny.normal(128, 128, seed=2) / 8,
        "w3": tiny.normal(128, 24, seed=3) * 2,
    }
    onnx.save_model(tiny.model(TEXT, weights), made / "model.onnx", save_as_external_data=True, location="model.data")
    x = np.random.default_rng(0).standard_normal((40, 1, 64)).astype(np.float32)
    np.savez(made / "data.npz", x=x)
    return made


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_elsewhere, "LEAST_BYTES", 1)
    monkeypatch.setattr(model_elsewhere, "INLINE_BYTES", 64)
    monkeypatch.setattr(plans_elsewhere, "LEAST_SECONDS", 0.0)
    monkeypatch.setitem(space.RUNS, "quick", (0.0, 24, 24))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", params=[1, 2, 7])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    """A scheduler with so many workers, all in this process."""
    with in_this_process(request.param) as found:
        yield found.scheduler_address


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each weight was packed, and how many plans were measured, by workers in this process."""
    found: Counter[str] = Counter()
    pack, figure = packed_elsewhere.packed_parts, plans_elsewhere.figures_of

    @functools.wraps(pack)
    def packs(message: bytes, *needed: Any) -> bytes:
        encoding, parts = messages.opened(message, *needed)
        found[f"{encoding.tensor.name} {encoding.format.name} {encoding.granularity} {len(parts)}"] += 1
        return pack(message, *needed)

    @functools.wraps(figure)
    def figures(*arguments: Any) -> bytes:
        found["plans"] += 1
        return figure(*arguments)

    monkeypatch.setattr(packed_elsewhere, "packed_parts", packs)
    monkeypatch.setattr(plans_elsewhere, "figures_of", figures)
    return found


def searched(folder: Path, word: str | None, **how: Any) -> dict[str, Any]:
    how = {"target": "onnxq", "data": str(folder / "data.npz"), "formats": FORMATS, "points": 3} | how
    recipe = how.pop("recipe", onnxq.Recipe(effort="quick", algorithm="mse"))
    found = onnxq.search(how.pop("model", folder / "model.onnx"), recipe, effort=Effort(cluster=word), **how)
    return json.loads(found.to_json())


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"recipe": onnxq.Recipe(effort="quick")},
        {"target": "ort-cpu", "formats": ("uint4/32", "int8", "w8a8")},
        {"data": None, "formats": ("uint4/32+hqq", "int8", "nf4")},
    ],
    ids=["quick codes", "codes by data", "activations", "made-up inputs"],
)
def test_the_front_is_that_of_one_process(folder: Path, scheduler: str, how: Any, done: Counter[str]) -> None:
    alone = searched(folder, None, **how)
    assert not done
    assert searched(folder, scheduler, **how) == alone
    plans = done.pop("plans")
    assert 3 < plans == alone["runs"]
    assert done and max(done.values()) <= 2  # once for all plans; and once more, for the file of a point
    assert searched(folder, scheduler, **how) == alone
    assert not done["plans"]  # all of them were kept


def test_a_file_within_a_budget_is_that_of_one_process(folder: Path, done: Counter[str]) -> None:
    made = []
    with in_this_process(2) as found:
        for word in (None, found.scheduler_address):
            recipe = onnxq.Recipe(effort="quick")
            how = {"data": str(folder / "data.npz"), "budget": "bits=3.4", "formats": FORMATS, "target": "onnxq"}
            onnxq.quantize(folder / "model.onnx", "q.onnx", recipe, effort=Effort(cluster=word), force=True, **how)
            made.append(Path("q.onnx").read_bytes())
    assert made[0] == made[1] and done["plans"] > 3


def test_evidence_goes_to_workers_that_do_not_see_it_once(
    folder: Path, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = onnxq.Recipe(effort="quick")
    alone = searched(folder, None, recipe=recipe)
    real, read = messages.evidence_bytes, []
    monkeypatch.setattr(messages, "evidence_bytes", lambda layer: (read.append(layer.numbers), real(layer))[1])
    monkeypatch.setattr(
        dask_cluster.DaskCluster, "unseen", lambda self, *paths: next((str(p) for p in paths if "npz" in str(p)), "")
    )
    with in_this_process(2) as found:
        assert searched(folder, found.scheduler_address, recipe=recipe) == alone
    assert len(read) == len(set(read)) == 4 and done["plans"]


def killing(log: Path, counts: list[int]) -> threading.Thread:
    """Ends the worker that worked last, once workers have passed so many points."""

    def watch() -> None:
        for count in counts:
            workers: list[int] = []
            while len(workers) < count:
                time.sleep(0.002)
                passed = log.read_text().splitlines() if log.exists() else []
                workers = [process for line in passed if (process := int(line.split()[1])) != os.getpid()]
            os.kill(workers[-1], signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_workers_that_die_lose_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One while weights are packed, one while plans are measured; with each goes what it had packed."""
    alone = searched(folder, None)
    monkeypatch.setenv("ONNXQ_FAULT_LOG", str(tmp_path / "log"))
    thread = killing(tmp_path / "log", [20, 70])
    assert searched(folder, "local:2") == alone
    thread.join(1)
    assert not thread.is_alive()


def test_an_interrupted_search_ends_at_once_and_goes_on(folder: Path, tmp_path: Path) -> None:
    alone = searched(folder, None, formats=("uint2", "uint4", "int8"), recipe=onnxq.Recipe(effort="quick"))
    wait = "import onnxq.cluster.tasks as t, time; old = t.faults.point\n"
    wait += "def slow(name):\n    old(name)\n    time.sleep(0.5 * (name == 'task.begin'))\nt.faults.point = slow\n"
    wait += "import onnxq.searching.space as s\ns.RUNS['quick'] = (0.0, 24, 24)\n"
    wait += "import onnxq.searching.plans_elsewhere as p\np.LEAST_SECONDS = 0.0\n"
    (tmp_path / "sitecustomize.py").write_text(wait)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
        "ONNXQ_FAULT_LOG": str(tmp_path / "log"),
    }
    words = ["search", str(folder / "model.onnx"), "--data", str(folder / "data.npz"), "--effort", "quick", "--json"]
    words += ["-t", "onnxq", "--points", "3", "--cluster", "local:2"]
    words += ["--formats", "uint2", "--formats", "uint4", "--formats", "int8"]
    command = [sys.executable, "-m", "onnxq", *words]
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - whatever started the tests
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    )
    until = time.monotonic() + 200
    kept = tmp_path / "cache" / "onnxq" / "content"
    small = lambda: [path for path in kept.glob("[!.]*") if path.stat().st_size < 200]  # noqa: E731 - figures of a plan
    while not (kept.is_dir() and len(small()) >= 5) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.splitlines()[-1]) == (130, "onnxq: interrupted")
    known = len(json.loads(Path("model.onnx.search").read_text())["plans"])
    assert known >= 4
    (tmp_path / "sitecustomize.py").write_text(wait.replace("0.5", "0.0"))
    (tmp_path / "log").unlink()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    front = json.loads(again.stdout)
    assert front["points"] == alone["points"] and not Path("model.onnx.search").exists()
    begun = (tmp_path / "log").read_text().count("task.begin")
    assert begun < alone["runs"] - known + 25


def test_workers_here_are_not_started_for_what_is_measured_faster_than_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans_elsewhere, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(started, "local_cluster", None)
    assert searched(folder, "local:2", formats=("uint4/32", "int8")) == searched(
        folder, None, formats=("uint4/32", "int8")
    )


def test_a_worker_without_the_compiled_library_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = plans_elsewhere.figures_of
    for has, said in ((True, "lacks the compiled library of onnxq, which this machine has"), (False, "has a compiled")):
        monkeypatch.setattr(plans_elsewhere.native, "path", lambda has=has: None if has else Path("library"))
        with pytest.raises(BadRecipe, match=said):
            real(b"", has, (b"",))


@pytest.mark.parametrize("said", ["0x1p+99999", "inf", "nan", "-0x1p+0", "0x1p+1000"])
def test_figures_that_cannot_be_are_refused(folder: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(plans_elsewhere.figures_of)
    def lies(*arguments: Any) -> bytes:
        return json.dumps([said, "0x1p+0", None, None]).encode()

    monkeypatch.setattr(plans_elsewhere, "figures_of", lies)
    with in_this_process(1) as found, pytest.raises(BadRecipe, match="sent something else than figures of a plan"):
        searched(folder, found.scheduler_address)


def test_errors_of_a_plan_are_told_as_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(real := plans_elsewhere.figures_of)
    def refused(*arguments: Any) -> bytes:
        raise BadModel("onnxruntime refuses the model: it is a test")

    monkeypatch.setattr(plans_elsewhere, "figures_of", refused)
    with in_this_process(1) as found, pytest.raises(BadModel, match=r"^onnxruntime refuses the model: it is a test$"):
        searched(folder, found.scheduler_address)
    assert real is not refused


def test_a_model_in_a_store_is_read_by_workers_from_there(folder: Path, done: Counter[str]) -> None:
    """Also what stays in float."""
    fsspec = pytest.importorskip("fsspec")
    rules = (onnxq.Rule("keep", open_job(folder / "model.onnx").plan.choices.popitem()[0]),)
    kept = {"formats": ("uint4/32", "int8"), "recipe": onnxq.Recipe("auto", rules, algorithm="mse", effort="quick")}
    for name in ("model.onnx", "model.data"):
        fsspec.filesystem("memory").pipe_file(f"/searched/{name}", (folder / name).read_bytes())
    alone = searched(folder, None, **kept)
    with in_this_process(2) as found:
        there = searched(folder, found.scheduler_address, model="memory://searched/model.onnx", **kept)
    assert there["points"] == alone["points"] and done["plans"]


class Sees:
    """An engine whose workers see every file."""

    def unseen(self, *paths: object) -> str:
        return ""


def test_a_model_that_is_sent_is_the_model(tmp_path: Path) -> None:
    """With constants in its file, of the process, of subgraphs, in types of 4 bits; and strings."""
    text = """m (float[n, 64] x, bool c) => (float[n, 64] y) {
        a = MatMul (x, w0)  b = MatMul (a, w1)  h = Add (b, k)
        y = If (c) <then_branch = t () => (float[n, 64] p) { p = MatMul (h, w2) },
                    else_branch = e () => (float[n, 64] q) { q = Sub (h, k) }>
    }"""
    weights = {name: tiny.normal(64, 64, seed=i) for i, name in enumerate(("w0", "w1", "w2"))}
    tiny.save(tiny.model(text, weights | {"k": tiny.normal(64, seed=9)}), tmp_path)
    job = open_job(tmp_path / "model.onnx", onnxq.Recipe("w4a16", algorithm="hqq"), "onnxq")
    plan = job.plan.replacing(c for c in open_job(job.path, onnxq.Recipe("fp16"), "onnxq").plan if c.node.endswith("b"))
    rewritten = lambda: job.rewritten(plan, NO_RANGES)  # noqa: E731 - used up each time
    sent = model_elsewhere.Sender(Sees()).sent(rewritten())
    assert sent.name == model_elsewhere.Sender(Sees()).sent(rewritten()).name and sent.needs
    needed = [task.function(*task.given()) for task in sent.needs]
    found = model_elsewhere.received(sent.message, needed)
    assert ir.to_proto(found) == ir.to_proto(rewritten())
    feed = {"x": tiny.normal(5, 64), "c": np.array(True)}
    for got, wanted in zip(Session(found).run(feed), Session(rewritten()).run(feed), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_codes_by_other_data_have_another_name(tmp_path: Path) -> None:
    """Though the evidence lies where that of the other data lay."""
    names = []
    for seed, file in ((1, "a.npz"), (2, "a.npz"), (1, "b.npz")):
        (tmp_path / file).unlink(missing_ok=True)
        gram = tiny.normal(1, 8, 8, seed=seed)
        add_arrays(tmp_path / file, 3, {"gram": gram, "rows": tiny.normal(4, 1, 8), "count": np.array(seed)})
        names.append(messages.named(Layer(1, 1, tmp_path / file, (3,))).digest)
    assert names[0] != names[1] and names[0] == names[2]
