"""Many threads on one session, many sessions, and sessions that go away while others run."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernels
import nodes
import numpy as np
import pytest
from kernels import weight
from nodes import FLOAT16, activations

import onnxq
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

W = weight("int4", 300, 200, 32)


@pytest.fixture(params=kernels.isas(), autouse=True)
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXQ_FORCE_ISA", request.param)


def session(**arguments: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxq.session(nodes.matmul(W, **arguments).SerializeToString(), options)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """work(0) … work(count - 1), all at once; the first exception is raised."""
    start = threading.Barrier(count)

    def begin(i: int) -> None:
        start.wait()
        work(i)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(begin, i) for i in range(count)]:
            done.result(timeout=60)


@pytest.mark.parametrize("type", [np.float32, np.float16])
def test_many_threads_on_one_session(type: type) -> None:
    """Each gets what it gets alone, to the last bit, whatever the others' shapes are."""
    shared = session(**({} if type == np.float32 else {"type": FLOAT16}))
    inputs = [activations((1 + i * 5, 200), seed=i).astype(type) for i in range(8)]
    alone = [shared.run(None, {"x": x})[0] for x in inputs]

    def work(i: int) -> None:
        for _ in range(10):
            np.testing.assert_array_equal(shared.run(None, {"x": inputs[i]})[0], alone[i])

    in_threads(8, work)


def test_many_threads_on_dense_weights() -> None:
    """Products of bfloat16, in sessions of their own and in one, some of which are the first to ask for thresholds."""
    w = weight("bfloat16", 200, 300, 32)
    model = nodes.dense(w).SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    shared, x = onnxq.session(model, options), activations((21, w.K))
    alone = shared.run(None, {"x": x})[0]

    def work(i: int) -> None:
        used = shared if i % 2 else onnxq.session(model)
        for _ in range(10):
            np.testing.assert_array_equal(used.run(None, {"x": x})[0], alone)

    in_threads(6, work)


def test_two_sessions_at_once() -> None:
    both = [session(), session(activations="exact")]
    x = activations((9, 200))
    alone = [each.run(None, {"x": x})[0] for each in both]

    def work(i: int) -> None:
        for _ in range(20):
            np.testing.assert_array_equal(both[i % 2].run(None, {"x": x})[0], alone[i % 2])

    in_threads(4, work)


@pytest.mark.sweep
def test_sessions_come_and_go_while_one_runs() -> None:
    stays, x = session(), activations((9, 200))
    alone = stays.run(None, {"x": x})[0]

    def work(i: int) -> None:
        for _ in range(5):
            if i == 0:
                for _ in range(10):
                    np.testing.assert_array_equal(stays.run(None, {"x": x})[0], alone)
            else:
                gone = session()
                np.testing.assert_array_equal(gone.run(None, {"x": x})[0], alone)
                del gone
                gc.collect()

    in_threads(3, work)


def test_the_library_is_unloaded_and_loaded_again(tmp_path: Path) -> None:
    """A process of its own, which never opens the library with ctypes: with the last session it leaves memory."""
    (tmp_path / "model.onnx").write_bytes(nodes.matmul(W).SerializeToString())
    code = """if True:
        import gc, sys, numpy as np, onnxruntime as ort
        def run():
            options = ort.SessionOptions()
            options.register_custom_ops_library(sys.argv[2])
            session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
            del options
            assert loaded()
            return session.run(None, {"x": np.ones((5, 200), np.float32)})[0]
        def loaded():
            return sys.argv[2] in open("/proc/self/maps").read()
        first = run()
        for _ in range(5):
            gc.collect()
            assert not loaded(), "still mapped"
            assert np.array_equal(run(), first)
    """
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    command = [sys.executable, "-c", code, str(tmp_path / "model.onnx"), str(native.path())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
