"""Whether what is decided and printed stays the same on a busy machine: `python tests/bench/load.py [MODEL.onnx …]`.

Each model is raced against itself, and against its `w8a8-dynamic` form with every kernel kept, first as the machine is,
then with two busy processes for each processor.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import onnxq
from onnxq.checking.models import TIMING_SECONDS
from onnxq.made_up import make_up
from onnxq.model.load import load_model
from onnxq.runtime.session import Session
from onnxq.runtime.timing import race, speed_in_words
from onnxq.tuning.tune import WORTHWHILE

MODELS = Path(__file__).parents[2] / "models"


def spin() -> None:
    """Products of matrices that do not fit the caches, for ever."""
    x = np.ones((700, 700), np.float32)
    while True:
        x = x @ x
        x /= x.max()


@contextmanager
def load(processes: int) -> Iterator[None]:
    spinning = [multiprocessing.Process(target=spin, daemon=True) for _ in range(processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.terminate()


def main() -> None:
    table = Table("model", "against", "load", "printed", "faster", box=None)
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, sys.argv[1:] or [MODELS / "text_transformer.onnx", MODELS / "digits_cnn.onnx"]):
            recipe = onnxq.Recipe("w8a8-dynamic", keep_slow=True)
            quantized = onnxq.quantize(path, Path(folder) / f"{path.stem}.q.onnx", recipe).output
            feed = make_up(load_model(path), Session(path)).feeds[0]
            for what, other in (("itself", path), ("int8", quantized)):
                for busy in (0, 2 * (os.cpu_count() or 1)):
                    with load(busy):
                        sessions = [Session(path), Session(other)]
                        found = race(sessions, [feed, feed], seconds=TIMING_SECONDS, bound=WORTHWHILE)
                    words = speed_in_words(found.ratio(), found.spreads[1])
                    verdict = {True: "yes", False: "no", None: "cannot be told"}[found.is_below(WORTHWHILE)]
                    table.add_row(path.stem, what, f"{busy} busy", words, verdict)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
