"""How long GPTQ of one layer takes, and how much memory: `python tests/bench/gptq.py [--size 4096] [--word int4]`.

The layer's input has few directions of much variance, as those of networks have. Each run is a process of its own, with
one thread and with all; before times are printed, their codes are compared, which have to be the same, and the error
of the outputs with that of codes by the weight alone, which has to be larger. Times are the least of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from onnxq import algorithms, formats
from onnxq.formats import Granularity
from onnxq.runtime import native
from onnxq.summaries.evidence import Layer, add_input
from onnxq.summaries.gram import Gram

DIRECTIONS = 256


def one_run(size: int, word: str, *, follows: bool) -> dict[str, object]:
    """What one process measures."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((size, size)) * size**-0.5).astype(np.float32)
    base = rng.standard_normal((DIRECTIONS, size)).astype(np.float32)

    def rows(count: int) -> NDArray[np.float32]:
        x = rng.standard_normal((count, DIRECTIONS)).astype(np.float32) @ base / 16
        return (x + 0.3 * rng.standard_normal((count, size)).astype(np.float32))[:, None]

    gram, other = Gram.empty(1, size, follows=follows), rows(512)
    for _ in range(8):
        x = rows(size // 2)
        if follows:
            gram.update_pair(x, x * np.float32(1.01))
        else:
            gram.update(x)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "evidence.npz"
        add_input(file, 0, gram if follows else gram.rounded(), [other], [other] if follows else ())
        del gram, x
        layer, granularity = Layer(1, 1, file, (0,), follows), Granularity(0, 32)
        before, start, spent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), os.times()
        q = algorithms.WITH_DATA["gptq"](w, formats.get(word), granularity, layer=layer)
        seconds, after = time.perf_counter() - start, os.times()
    assert q.scales is not None
    plain = formats.quantize(w, word, granularity)
    errors = [float(np.square(other[:, 0] @ (each.dequantize() - w)).mean()) for each in (q, plain)]
    return {
        "seconds": seconds,
        "cpu": after.user + after.system - spent.user - spent.system,
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "codes": blake2b(q.codes.tobytes() + q.scales.tobytes()).hexdigest(),
        "gain": errors[1] / errors[0],
    }


def measured(threads: int, options: argparse.Namespace) -> dict[str, float]:
    """The best of the rounds, all with the same codes, better ones than without data."""
    environment = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
    command = [sys.executable, __file__, "--size", str(options.size), "--word", options.word, "--one"]
    runs = [
        json.loads(subprocess.check_output(command + ["--follows"] * options.follows, env=environment))
        for _ in range(options.rounds)
    ]
    assert len({run["codes"] for run in runs}) == 1, "the same data give other codes"
    assert runs[0]["gain"] > 1, "data make it worse"
    return min(runs, key=lambda run: run["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--word", default="int4")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--follows", action="store_true", help="behind quantized layers: gptaq")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(options.size, options.word, follows=options.follows)))
        return
    table = Table("threads", "seconds", "CPU seconds", "MB more", "error of rtn / gptq")
    codes = set()
    for threads in sorted({1, native.cores()}):
        found = measured(threads, options)
        codes.add(found["codes"])
        table.add_row(
            str(threads), *(f"{found[name]:.1f}" for name in ("seconds", "cpu", "megabytes")), f"{found['gain']:.1f}"
        )
    assert len(codes) == 1, "other codes on other numbers of threads"
    Console().print(f"{options.size} × {options.size}, {options.word} in blocks of 32", table)


if __name__ == "__main__":
    main()
