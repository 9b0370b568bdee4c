"""What a cluster of any size would take: `python tests/bench/schedule.py [--measure]`.

A model of the schedule: tasks go out in order, at most `AHEAD` for each worker beyond what came back; a worker reads
what it needs at its own speed, all of them together no faster than the store; it computes; its result comes through
the one line of the process that started it, which takes results in their order and writes them. `--measure` runs a
small model on local clusters and prints what the same rules say of the tasks that were really done; without, the costs
of one unit below are used for a model of 140 GB.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from onnxq.cluster import engine
from onnxq.cluster.engine import AHEAD


@dataclass(frozen=True)
class Work:
    """One task: bytes that its worker reads, seconds that it computes, bytes of its result."""

    read: float
    seconds: float
    result: float


@dataclass(frozen=True)
class Place:
    """Bytes a second: of a worker's line to the store, of the store, of the line and disk of whoever started it all;
    seconds that a task costs besides, and that a cluster takes to start."""

    worker: float
    store: float
    client: float
    task: float = 0.01
    start: float = 0.0


def seconds(works: Sequence[Work], workers: int, place: Place) -> float:
    """What all tasks take on so many workers."""
    rate = min(place.worker, place.store / workers)
    free = [place.start] * workers
    heapq.heapify(free)
    came: list[float] = []  # when the result of each task was written
    for i, work in enumerate(works):
        sent = came[i - AHEAD * workers] if i >= AHEAD * workers else place.start
        begins = max(heapq.heappop(free), sent)
        done = begins + place.task + work.read / rate + work.seconds
        heapq.heappush(free, done)
        came.append(max(done, came[-1] if came else 0.0) + work.result / place.client)
    return came[-1]


def bound(works: Sequence[Work], workers: int, place: Place) -> str:
    """What takes longest by itself."""
    read = sum(work.read for work in works)
    by = {
        "workers": sum(work.seconds + place.task for work in works) / workers + read / workers / place.worker,
        "the store": read / place.store,
        "the line that takes results": sum(work.result for work in works) / place.client,
    }
    return max(by, key=lambda what: by[what])


#: Seconds a byte of float16 that a worker takes: what `scale.py` took in one process on two busy processors.
ROUNDING, BY_DATA = 48e-9, 11e-6


def large(seconds_a_byte: float) -> tuple[list[Work], Place]:
    """140 GB of float16 in weights of 90 MB, each a task."""
    one = 90e6
    works = [Work(one, one * seconds_a_byte, one * 0.28) for _ in range(round(140e9 / one))]
    return works, Place(worker=200e6, store=10e9, client=500e6, start=5.0)


#: Of the model that `--measure` quantizes: 11 million weights, a few seconds of one processor.
SMALL = {"layers": 2, "width": 512, "hidden": 1408, "vocabulary": 4096}
#: Which takes as long a byte as to choose codes by data, and needs none.
RECIPE = {"scheme": "w4a16", "algorithm": "hqq", "keep_slow": True}


def measure() -> None:
    """The same tasks, as they were and as the rules say. Each run starts a cluster of its own, and finds no results of
    those before it."""
    import os
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    import llama

    found: list[Work] = []
    table = Table("workers", "tasks", "measured", "by the rules", "ratio", box=None)
    result = engine._Running.result

    def noted(self: engine._Running) -> bytes | None:
        outcome = self.future.result() if self.future is not None and self.future.done() else None
        if outcome is not None:
            found.append(Work(0.0, outcome.seconds, len(outcome.payload)))
        return result(self)

    engine._Running.result = noted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as name:
        model = llama.write_llama(Path(name), **SMALL)
        nothing = llama.write_llama(Path(tempfile.mkdtemp(dir=name)), layers=1, width=64, hidden=64, vocabulary=64)
        for workers in (1, 2):
            os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=name)
            start = quantized(nothing, workers)
            found.clear()
            took = quantized(model, workers)
            said = seconds(found, workers, Place(1e12, 1e12, 500e6, start=start))
            table.add_row(str(workers), str(len(found)), f"{took:.1f} s", f"{said:.1f} s", f"{said / took:.2f}")
            print(f"{workers} workers: {took:.1f} s", file=sys.stderr, flush=True)
    Console(width=100).print(table)


def quantized(model: Path, workers: int) -> float:
    """Seconds that it takes on a local cluster, which starts and ends with it."""
    import onnxq
    from onnxq.calibration.find_ranges import Effort

    effort, start = Effort(cluster=f"local:{workers}"), time.perf_counter()
    onnxq.quantize(model, model.with_name("out.onnx"), onnxq.Recipe(**RECIPE), check=False, force=True, effort=effort)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        measure()
        return
    table = Table("codes", "workers", "minutes", "times as fast", "bound by", box=None)
    for what, cost in (("rounded", ROUNDING), ("by data", BY_DATA)):
        works, place = large(cost)
        alone = seconds(works, 1, place)
        for workers in (1, 2, 4, 8, 16, 32, 64, 100):
            took = seconds(works, workers, place)
            words = f"{took / 60:.1f}", f"{alone / took:.1f}", bound(works, workers, place)
            table.add_row(what, str(workers), *words)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
