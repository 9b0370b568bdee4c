"""A folder with inputs and what an earlier run left there, the command that changes it, and who runs that."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import tiny
from numpy.typing import NDArray

from onnxq.checkpoints.gguf_file import Gguf
from onnxq.output import write
from onnxq.runtime.own_files.adapter_file import read_adapter_file, write_adapter_file
from onnxq.runtime.session import Session

HERE = Path(__file__).parent
TEXT = "g (float[N, 64] x) => (float[N, 48] y) { [up] a = MatMul(x, w)  b = Relu(a)  [down] y = MatMul(b, v) }"
CONSTANTS = {"w": tiny.normal(64, 128), "v": tiny.normal(128, 48, seed=1)}
FEED = {"x": tiny.normal(3, 64, seed=2)}
#: All weights are beside the model, as if it were large.
BESIDE = {"onnxq.output.write.SINGLE_FILE_BYTES": 0}
#: Samples, all but those that are held back, and how often progress is saved.
SAMPLES, EVERY = 16, 3


class Driver:
    """See kill_driver.py."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "kill_driver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )

    def _ask(self, request: Mapping[str, object]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))

    def start(self, folder: Path, argv: list[str], patches: Mapping[str, object], fault: str = "") -> int:
        log, temporary = folder.with_suffix(".log"), folder.with_name(f"{folder.name}.tmp")
        # Its own: what other processes leave in the system's would be swept in some runs.
        temporary.mkdir(exist_ok=True)
        environment = {"ONNXQ_FAULT_LOG": str(log), "ONNXQ_FAULT": fault, "TMPDIR": str(temporary)}
        patches = {"onnxq.files.staging.PATIENCE": 0.3, "onnxq.cluster.processes.PATIENCE": 1.0, **patches}
        output = str(folder.with_suffix(".said"))
        argv = [word.replace("{here}", str(folder)) for word in argv]
        request = {"argv": argv, "cwd": str(folder), "env": environment, "patches": patches, "output": output}
        return self._ask(request)

    def wait(self, process: int) -> int:
        return self._ask({"wait": process})

    def run(self, folder: Path, argv: list[str], patches: Mapping[str, object], fault: str = "") -> tuple[int, str]:
        """The exit status and what was said."""
        said = folder.with_suffix(".said")
        said.unlink(missing_ok=True)
        folder.with_suffix(".log").unlink(missing_ok=True)
        code = self.wait(self.start(folder, argv, patches, fault))
        return code, said.read_text(encoding="utf-8")

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def driver() -> Iterator[Driver]:
    made = Driver()
    try:
        yield made
    finally:
        made.close()


def make_inputs(folder: Path) -> None:
    """A model with external weights, samples, and a checkpoint of packed weights for it."""
    folder.mkdir()
    proto = tiny.model(TEXT, CONSTANTS)
    (folder / "parts").mkdir()
    onnx.save(proto, folder / "parts" / "a.onnx")
    (folder / "parts" / "config.json").write_text("{}")
    onnx.save(proto, folder / "in.onnx", save_as_external_data=True, location="in.weights", size_threshold=0)
    x = tiny.normal(SAMPLES, 1, 64, seed=3)
    np.savez(folder / "data.npz", x=x)
    np.savez(folder / "pairs.npz", x=x, y=tiny.normal(SAMPLES, 1, 48, seed=4))
    rng = np.random.default_rng(0)
    packed = {"up": (128, 64), "down": (48, 128)}
    tensors: dict[str, NDArray] = {}
    for name, (n, k) in packed.items():
        tensors[f"{name}.weight_4bit"] = rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
        tensors[f"{name}.scales_4bit"] = (rng.random((n, k // 32)) * 0.02 + 0.01).astype(np.float16)
    np.savez(folder / "weights.npz", **tensors)  # type: ignore[arg-type]
    for number, name in enumerate(ADAPTERS):
        arrays = {}
        for node, (n, k) in packed.items():
            arrays[f"{node}.lora_A"] = tiny.normal(k, 2, seed=number)
            arrays[f"{node}.lora_B"] = tiny.normal(2, n, seed=number + 5)
        write_adapter_file(folder / name, arrays)


ADAPTERS = ("a.onnx_adapter", "b.onnx_adapter")
CALIBRATION = ["--data", "data.npz", "--calibration", "mse", "--checkpoint-every", str(EVERY)]
INPUTS = (
    "in.onnx",
    "in.weights",
    "data.npz",
    "pairs.npz",
    "weights.npz",
    "parts/a.onnx",
    "parts/config.json",
    *ADAPTERS,
)
#: All that lies there before anything is run.
NAMES = (*INPUTS, "parts")


@dataclass(frozen=True)
class Case:
    """A command and what its output is.

    Attributes:
        before: commands whose results are there already, each with the fault that ends it.
        output: the file that is to change.
        patches, before_patches: what is set in the program, by name.
        points: how points begin at which it is ended; parts of a folder are what other cases are.
        is_like_another: it writes by the same functions as another case, other content: it is ended once at each point.
        may_be_gone: of several files, which nobody can replace in one step: for a moment there are neither.
        needs: modules without which the command does nothing.
    """

    argv: list[str]
    output: str
    before: list[tuple[list[str], str]] = field(default_factory=list)
    patches: Mapping[str, object] = field(default_factory=dict)
    before_patches: Mapping[str, object] = field(default_factory=dict)
    points: str | tuple[str, ...] = ""
    is_like_another: bool = False
    may_be_gone: bool = False
    needs: tuple[str, ...] = ()

    def prepare(self, folder: Path, driver: Driver) -> None:
        make_inputs(folder)
        for argv, fault in self.before:
            code, said = driver.run(folder, argv, self.before_patches, fault)
            assert code == (-9 if fault else 0), said

    def content(self, folder: Path) -> str | None:
        """What the output says: of a model, what it computes; None if there is none.

        Raises:
            Exception: it is neither whole nor absent.
        """
        path = folder / self.output
        if not path.exists() or (path.is_dir() and self.may_be_gone and not (path / "adapter_config.json").exists()):
            return None
        if path.name.endswith(".index.json"):
            files = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
            return json.dumps([_hash(folder / name) for name in files])
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return json.dumps({name: hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in arrays.files})
        if path.suffix == ".onnx_adapter":
            return json.dumps({name: x.tolist() for name, x in sorted(read_adapter_file(path).items())})
        if path.suffix == ".gguf":
            return json.dumps([*Gguf(path), _hash(path)])
        if path.is_dir():
            files = [each for each in sorted(path.rglob("*.*")) if each.is_file() and ".onnxq-" not in str(each)]
            return json.dumps({str(each.relative_to(path)): _hash(each) for each in files})
        if path.suffix == ".onnx":
            for data in write.own_data(path):
                assert data.is_file()
            (y,) = Session(path).run(FEED)
            assert np.isfinite(y).all()
            return hashlib.sha256(np.asarray(y).tobytes()).hexdigest()
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            assert text.rstrip().endswith("</html>")
            return text.partition("<title>")[2].partition("</title>")[0]
        return json.dumps(_without_times(json.loads(path.read_text(encoding="utf-8"))), sort_keys=True)


def _without_times(value: object) -> object:
    """What a JSON says that is the same in each run."""
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if not key.endswith("_ms")}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def hashes_of_inputs(folder: Path) -> dict[str, str]:
    return {name: _hash(folder / name) for name in INPUTS}


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def copy(template: Path, to: Path) -> Path:
    shutil.copytree(template, to)
    return to
