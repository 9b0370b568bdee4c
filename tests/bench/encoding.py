"""How fast weights are encoded, against the peers: `python tests/bench/encoding.py [--quick] [--gigabytes 1]`.

Every answer is compared before anything is timed: ours with the plain numpy reference on a part of the weight, and the
peers' packed bytes with ours. Times are medians of runs taken in turns, each of them the second of two: memory that the
machine has given back since and has to find again would cost more than the encoding. They end with the bytes that go to
disk (codes packed two a byte, scales), so that all do the same work. The ceiling is the memory bandwidth of reading the
weight with the same number of threads. Peers that are not installed are left out (`pip install onnxq[bench]`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.runtime import native

THREADS = native.cores()
K = 4096
Run = Callable[[], object]


@dataclass
class Case:
    """One row of the table: a way of encoding `w`, and the peer's way of doing the same."""

    label: str
    ours: Run
    peer_name: str = ""
    peer: Run | None = None


def encoded(w: NDArray, word: str, axis: int) -> QuantizedTensor:
    return formats.quantize(w, word, Granularity(axis, formats.get(word).default_block or 32))


def check_reference(w: NDArray, word: str, axis: int) -> None:
    """The compiled library's answer is numpy's."""
    part = np.ascontiguousarray(w[:256, :512])
    fast = encoded(part, word, axis)
    with mock.patch.object(native, "library", return_value=None):
        slow = encoded(part, word, axis)
    for a, b in ((fast.codes, slow.codes), (fast.scales, slow.scales), (fast.zero_points, slow.zero_points)):
        assert (a is None) == (b is None)
        assert a is None or b is None or a.tobytes() == b.tobytes(), word


def onnxruntime_int4(w: NDArray, k: int, n: int) -> tuple[Run, NDArray, NDArray] | None:
    """onnxruntime's symmetric encoding of [K, N] in blocks of 32, and where it leaves its bytes and scales."""
    try:
        from onnxruntime.capi._pybind_state import quantize_matmul_4bits
    except ImportError:
        return None
    packed, scales = np.zeros((n, k // 32, 16), np.uint8), np.zeros(n * k // 32, np.float32)
    zeros = np.zeros((n, -(-k // 64)), np.uint8)
    return lambda: quantize_matmul_4bits(packed, w, scales, zeros, 32, n, k, True), packed, scales


def bitsandbytes_nf4(w: NDArray) -> Callable[[], tuple[NDArray, NDArray]] | None:
    """bitsandbytes' encoding in blocks of 64: (bytes, absmax)."""
    try:
        import torch
        from bitsandbytes.functional import quantize_4bit
    except ImportError:
        return None
    tensor = torch.from_numpy(w)

    def run() -> tuple[NDArray, NDArray]:
        packed, state = quantize_4bit(tensor, blocksize=64, quant_type="nf4")
        return packed.numpy().reshape(-1), state.absmax.numpy()

    return run


def cases(w: NDArray) -> Iterator[Case]:
    """Answers are compared here."""
    n, k = w.shape
    for word in ("int4", "uint4", "nf4", "q4_0", "q8_0", "mxfp4", "int8"):
        check_reference(w, word, 1)
    columns = w.reshape(k, n)  # the same numbers, read as [K, N], as ONNX stores the weights of MatMul
    check_reference(columns, "int4", 0)
    int4 = Case("int4, block 32, [K, N]", lambda: layouts.matmul_nbits(encoded(columns, "int4", 0)))
    peer = onnxruntime_int4(columns, k, n)
    if peer is not None:
        run, packed, scales = peer
        run()
        q = encoded(columns, "int4", 0)
        # Theirs multiplies by 1 / scale and rounds half up: numbers within an ulp of a half may go the other way.
        assert (layouts.matmul_nbits(q) != packed).mean() < 1e-5, "onnxruntime's bytes are others"
        assert np.array_equal(layouts.scales_by_row(q).reshape(-1), scales)
        int4.peer_name, int4.peer = "onnxruntime", run
        del q
    yield int4
    yield Case("int4, block 32, [N, K]", lambda: layouts.matmul_nbits(encoded(w, "int4", 1)), int4.peer_name, int4.peer)
    nf4 = Case("nf4, block 64", lambda: layouts.matmul_bnb4(encoded(w, "nf4", 1)))
    theirs = bitsandbytes_nf4(w)
    if theirs is not None:
        q = encoded(w, "nf4", 1)
        packed, absmax = theirs()
        differ = layouts.matmul_bnb4(q) != packed
        # Theirs multiplies by 1 / absmax: numbers within an ulp of the middle of two levels may go the other way.
        assert differ.mean() < 1e-5, "bitsandbytes' bytes are others"
        assert q.scales is not None
        assert np.array_equal(q.scales.reshape(-1), absmax)
        nf4.peer_name, nf4.peer = "bitsandbytes", theirs
        del q, packed, differ
    yield nf4
    for word in ("uint4", "q4_0", "q8_0", "mxfp4", "int8"):
        yield Case(f"{word}, codes only", lambda word=word: encoded(w, word, 1))


def in_turns(runs: list[Run], rounds: int) -> list[tuple[float, float]]:
    """Median seconds of each, and of its threads together: the latter hardly depend on what else the machine does."""
    taken: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, times in zip(runs, taken, strict=True):
            run()
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return [(statistics.median(w for w, _ in times), statistics.median(c for _, c in times)) for times in taken]


def read_all(w: NDArray) -> None:
    """Every byte is read once, by all threads."""
    pieces = np.array_split(w.reshape(-1).view(np.int64), THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(np.max, pieces))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="32 MB and two rounds: that it runs, not how fast")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of float32 weights")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    size, rounds = (0.032, 2) if options.quick else (options.gigabytes, options.rounds)
    n = max(512, int(size * 1e9 / 4 / K) // 64 * 64)
    rng = np.random.default_rng(0)
    w = np.empty((n, K), np.float32)
    for i in range(0, n, 64):
        w[i : i + 64] = rng.standard_normal((64, K), dtype=np.float32)
    gigabytes = w.nbytes / 1e9
    if native.library() is None:
        print("the compiled library was not built: these are numpy's times")
    table = Table("weight", "GB/s of input", "GB a core second", "of reading", "peer", "its GB/s", "ratio")
    for case in cases(w):
        runs: list[Run] = [case.ours, lambda: read_all(w), *([case.peer] if case.peer else [])]
        (ours, cpu), (read, _), *peers = in_turns(runs, rounds)
        speeds = [f"{gigabytes / ours:.2f}", f"{gigabytes / cpu:.2f}", f"{read / ours:.0%}"]
        beside = [[case.peer_name, f"{gigabytes / wall:.2f}", f"{wall / ours:.1f}x"] for wall, _ in peers]
        table.add_row(case.label, *speeds, *(beside[0] if beside else ["", "", ""]))
    Console().print(table)
    print(
        f"{gigabytes:.2f} GB of float32, {THREADS} threads, medians of {rounds} rounds in turns; reading: numpy's max"
    )


if __name__ == "__main__":
    main()
