"""A model in a process of its own: how long it takes to open and to run once, and the memory that both take.

Run as `python -P -m onnxq.benching.alone MODEL FEED THREADS`, it prints what it found as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.files.staging import scratch
from onnxq.runtime.ort.installed import require
from onnxq.runtime.session import Feed, Session

#: Seconds that it may take.
PATIENCE = 600.0
#: Of what `ru_maxrss` counts: bytes on macOS, else kilobytes.
_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Alone:
    """Milliseconds, and the bytes by which the process grew at most."""

    load_ms: float
    first_ms: float
    peak_bytes: int


def alone(model: Path, feed: Feed, threads: int) -> Alone:
    """
    Raises:
        BadModel: the process ended without an answer.
    """
    with scratch() as folder:
        for number, x in enumerate(feed.values()):
            np.save(folder / f"{number}.npy", _plain(x))
        types = {name: str(x.dtype) for name, x in feed.items()}
        (folder / "types.json").write_text(json.dumps(types), encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        words = [sys.executable, "-P", "-m", "onnxq.benching.alone", str(model.resolve()), str(folder), str(threads)]
        try:
            found = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True, env=environment)
            return Alone(**json.loads(found.stdout.strip().splitlines()[-1]))
        except (subprocess.SubprocessError, OSError, ValueError, IndexError):
            raise BadModel(f"'{model}' did not run in a process of its own") from None


def _measure(model: str, folder: str, threads: str) -> None:
    types = json.loads(Path(folder, "types.json").read_text(encoding="utf-8"))
    feed = {name: _as(np.load(Path(folder, f"{i}.npy")), dtype) for i, (name, dtype) in enumerate(types.items())}
    require()  # importing onnxruntime takes memory and time of its own
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is that from now on
    before = _peak()
    start = time.perf_counter()
    session = Session(model, threads=int(threads))
    loaded = time.perf_counter()
    session.run(feed)
    ran = time.perf_counter()
    times = {"load_ms": 1e3 * (loaded - start), "first_ms": 1e3 * (ran - loaded)}
    print(json.dumps(times | {"peak_bytes": _peak() - before}))


def _peak() -> int:
    """The most bytes that this process has had. Linux counts what it was forked off from in `ru_maxrss`."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def _plain(x: NDArray) -> NDArray:
    """An array of types that files of numpy know."""
    return x.view(np.uint16) if x.dtype == ml_dtypes.bfloat16 else x.astype(np.str_) if x.dtype.kind == "O" else x


def _as(x: NDArray, dtype: str) -> NDArray:
    return x.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else x.astype(object) if dtype == "object" else x


if __name__ == "__main__":
    _measure(*sys.argv[1:4])
