"""Peers of bench_cuda.py run in processes of their own: what they are asked, and what they answer.

A case is `N,K,format,block,M,M,…` on the command line. The answer is one line of JSON for each: seconds of one product
by the peer's name and M.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.bench_kernels import products

#: Bytes of all weights of a case together, far more than any L2 cache.
TOTAL = 200 << 20
#: Replays of a graph, of which the median is taken.
REPEATS = 30
#: Relative error that float16 and bfloat16 arithmetic may make.
MOST_ERROR = 0.03
#: Seconds a process gets.
PATIENCE = 240
Times = dict[str, dict[int, float]]
#: Seconds of one product with so many rows.
Timer = Callable[[int], float]
#: By name, what makes ready the products by as many weights as it is given and times them.
Peers = Callable[[products.Weight, int], Iterator[tuple[str, Callable[[], Timer]]]]


def check(y: NDArray, x: NDArray, w: products.Weight) -> None:
    """Some columns of y [M, N] against x [M, K] · wᵀ in float64.

    Raises:
        ValueError: they are wrong.
    """
    columns = np.unique(np.linspace(0, len(w.codes) - 1, 128).astype(np.int64))
    wanted = x.astype(np.float64) @ w.rows(columns).astype(np.float64).T
    error = np.linalg.norm(y[:, columns] - wanted) / np.linalg.norm(wanted)
    if not error <= MOST_ERROR:
        raise ValueError(f"M = {len(x)}: relative error {error:.2g}")


def answer(peers: Peers) -> None:
    """Measure the cases of the command line. What fails or is wrong is said on the standard error, and left out."""
    for case in sys.argv[1:]:
        N, K, format, block, *rows = case.split(",")
        w = products.random_weight(format, int(block), int(N), int(K), np.random.default_rng())
        times: Times = {}
        for name, prepare in peers(w, max(2, math.ceil(TOTAL / w.bytes))):
            try:
                timer = prepare()
                for M in map(int, rows):
                    times.setdefault(name, {})[M] = timer(M)
            except Exception as error:  # those of onnxruntime and of PyTorch share no base class
                print(f"{name}, {format} b{block}, {N} × {K}: {error}", file=sys.stderr, flush=True)
        print(json.dumps(times), flush=True)


def ask(script: str, cases: list[str], environment: dict[str, str] | None = None) -> Iterator[Times]:
    """What `script` measures, case by case; nothing of those that it does not come to."""
    command = [sys.executable, script, *cases]
    try:
        done = subprocess.run(
            command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=PATIENCE
        )
        out, problems = done.stdout, done.stderr.splitlines()
    except subprocess.TimeoutExpired as error:
        out, problems = (error.stdout or b"").decode(), [f"no answer in {PATIENCE} s"]
    for line in problems[-8:]:
        print(f"{Path(script).name}: {line}", flush=True)
    answers = parse(out)
    yield from answers
    yield from [{}] * (len(cases) - len(answers))


def parse(text: str) -> list[Times]:
    """What `answer` printed, among whatever else."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [{name: {int(M): t for M, t in by.items()} for name, by in line.items()} for line in lines]
