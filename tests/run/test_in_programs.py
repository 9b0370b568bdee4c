"""A program that calls onnxq keeps what is its own: warnings, settings of libraries, other threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto, helper

import onnxq
from onnxq.analysis import benchmark_made
from onnxq.analysis.benchmarks.plot import save_plot
from onnxq.errors import BadRecipe
from onnxq.model.load import load_model
from onnxq.runtime import native

pytestmark = pytest.mark.usefixtures("quick")
TEXT = "g (float[n, 64] x) => (float[n, 64] y) { y = MatMul(x, w) }"
SAMPLES = [{"x": tiny.normal(1, 64, seed=seed)} for seed in range(4)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(TEXT, {"w": tiny.normal(64, 64)}), tmp_path)


def within(seconds: float, work: Callable[[], object]) -> None:
    """In a thread of its own, so that what hangs is a failure."""
    done = threading.Thread(target=work, daemon=True)
    done.start()
    done.join(seconds)
    assert not done.is_alive()


@pytest.mark.parametrize("is_function", [False, True])
def test_samples_may_be_made_by_onnxq(is_function: bool, model: Path, tmp_path: Path) -> None:
    def samples() -> Iterator[dict[str, NDArray]]:
        for i, sample in enumerate(SAMPLES):
            if i == 1:
                onnxq.quantize(model, tmp_path / "inner.onnx", "w8a8", data=SAMPLES, force=True)
            yield sample

    within(60, lambda: onnxq.quantize(model, tmp_path / "o.onnx", "w8a8", data=samples if is_function else samples()))
    assert (tmp_path / "o.onnx").exists() and (tmp_path / "inner.onnx").exists()


def test_nobody_waits_for_the_samples_of_another_thread(model: Path, tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow() -> Iterator[dict[str, NDArray]]:
        yield SAMPLES[0]
        inside.set()
        go.wait(60)
        yield from SAMPLES[1:]

    waiting = threading.Thread(target=lambda: onnxq.quantize(model, tmp_path / "a.onnx", "w8a8", data=slow()))
    waiting.start()
    try:
        assert inside.wait(30)
        within(30, lambda: onnxq.quantize(model, tmp_path / "b.onnx", "w8a8", data=SAMPLES))
        assert (tmp_path / "b.onnx").exists()
    finally:
        go.set()
        waiting.join(60)


def test_filters_of_warnings_stay(model: Path, tmp_path: Path) -> None:
    """Also where several threads read models at once."""
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: load_model(model), range(80)))
    assert list(warnings.filters) == before


def test_warnings_of_other_threads_are_not_those_of_a_folder(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / "in" / name).write_bytes(model.read_bytes())
    seen, done = [], threading.Event()

    def other() -> None:
        while not done.wait(0.01):
            try:
                warnings.warn("a secret", DeprecationWarning, stacklevel=1)
            except DeprecationWarning:  # tests have all warnings be errors
                seen.append(True)
            else:
                seen.append(False)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        onnxq.quantize_folder(tmp_path / "in", tmp_path / "out", "fp16")
    finally:
        done.set()
        thread.join()
    assert seen and all(seen)


def test_pictures_leave_the_limit_of_the_program(tmp_path: Path) -> None:
    """In a process of its own: filters are the process's."""
    pytest.importorskip("PIL")
    script = """
import io, warnings
import PIL.Image
from onnxq.samples.pictures.scaling import _pillow
warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
_pillow()
large, PIL.Image.MAX_IMAGE_PIXELS = io.BytesIO(), 100
PIL.Image.new("L", (15, 10)).save(large, "PNG")
try:
    PIL.Image.open(large)
except PIL.Image.DecompressionBombWarning:
    print("refused")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.stdout == "refused\n", done.stderr


def test_plots_leave_the_settings_of_the_program(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    found = benchmark_made(["gaussian"], ["int4"], inputs=0, sizes=[(8, 64)])
    with matplotlib.rc_context({"font.size": 20.0}):
        save_plot(found, tmp_path / "p.svg")
        assert matplotlib.rcParams["font.size"] == 20.0


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
def test_threads_may_share_options(model: Path) -> None:
    for _ in range(5):
        options = onnxruntime.SessionOptions()
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(lambda _, o=options: onnxq.session(model, o), range(8)))


@pytest.mark.parametrize("providers", ["CudaExecutionProvider", ["CPUExecutionProvider", "Cuda"], [None], ("CPU", {})])
def test_providers_that_are_none_are_named(providers: object, model: Path) -> None:
    """onnxruntime would fall back to the processor, and forget which of its optimizers are off."""
    with pytest.raises(BadRecipe, match=r"there is no provider .* in this onnxruntime; it has .*CPUExecutionProvider"):
        onnxq.session(model, providers=providers)  # type: ignore[arg-type]


def test_options_of_a_provider_that_are_none_are_not_the_models_fault(model: Path) -> None:
    with pytest.raises(BadRecipe, match="the options of CPUExecutionProvider are of type NoneType, not a dict"):
        onnxq.session(model, providers=[("CPUExecutionProvider", None)])


@pytest.mark.parametrize("providers", [None, "CPUExecutionProvider", [("CPUExecutionProvider", {})]])
def test_rules_that_are_wrong_are_off_whoever_computes(providers: object) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    zero = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [scale, zero]),
        opset_imports=[helper.make_opsetid("", 19)], ir_version=9,
    )  # fmt: skip
    assert isinstance(made, onnx.ModelProto)
    session = onnxq.session(made.SerializeToString(), providers=providers)  # type: ignore[arg-type]
    (got,) = session.run(None, {"x": np.float32([-3, -1, 1, 2])})
    assert got.tolist() == [0, 0, 1, 2]
