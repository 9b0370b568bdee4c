"""One product, written for onnxq and for onnxruntime's own kernels; checked, then timed in turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxq.bench_kernels import products
from onnxq.runtime import library
from onnxq.runtime.ort import installed

if TYPE_CHECKING:
    import onnxruntime

CPUS: frozenset[int] = frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ())
CHECKED_COLUMNS = 128
#: Relative error of a product against float64. Level 4 rounds activations to 8 bits in blocks as large as the weight's.
MOST = {"fast": 0.01, "exact": 1e-5, "level 4": 0.03, "float": 1e-5}
FORCE = "ONNXQ_FORCE_ISA"
#: Smaller weights are multiplied several times in a run, as in a model, where the pool's threads are awake already.
ENOUGH_BYTES, MOST_COPIES = 1 << 22, 16


@dataclass
class Contender:
    name: str
    accuracy: str  # a key of MOST
    run: Callable[[NDArray], list[NDArray]]
    weight: products.Weight
    copies: int  # products in a run
    clock: Callable[[], float]  # of one thread its own, which other programs do not disturb
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def contenders(
    format: str, block: int, shape: tuple[int, int], threads: int, *, exact: bool = True, beside: Sequence[str] = ()
) -> list[Contender]:
    """Ours first.

    Args:
        exact: `exact` products and float beside int4 in blocks of 32.
        beside: kernels of ours that are measured too, forced.
    """
    w = products.random_weight(format, block, *shape, np.random.default_rng([*shape, block]))
    copies = max(1, min(MOST_COPIES, ENOUGH_BYTES // w.bytes))
    fast = products.ours(w, "fast", copies)
    made = [("ours", "fast", fast, ""), *((f"ours {isa}", "fast", fast, isa) for isa in beside)]
    if format in ("int4", "int8"):
        made.append(("ORT level 4", "level 4", products.matmul_nbits(w, 4, copies), ""))
    if (format, block) == ("int4", 32) and exact:
        made.append(("ours exact", "exact", products.ours(w, "exact", copies), ""))
        made.append(("ORT exact", "exact", products.matmul_nbits(w, 0, copies), ""))
    if ((format, block) == ("int4", 32) and exact) or format in products.DENSE:
        made.append(("ORT float", "float", products.matmul(w, copies), ""))
    if format in ("nf4", "fp4"):
        made.append(("ORT Bnb4", "exact", products.matmul_bnb4(w, copies), ""))
    clock = time.thread_time if threads == 1 else time.perf_counter
    return [
        Contender(name, accuracy, _runner(model, threads, isa), w, copies, clock) for name, accuracy, model, isa in made
    ]


def _runner(model: onnx.ModelProto, threads: int, isa: str) -> Callable[[NDArray], list[NDArray]]:
    session = session_of(model, threads, isa)
    return lambda x: session.run(None, {"x": x})


def session_of(model: onnx.ModelProto, threads: int, isa: str) -> onnxruntime.InferenceSession:
    """Whose threads stay where they are and wait without spinning; "" for `isa`: the kernel that it takes anyway."""
    options = installed.require().SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # A pool that goes on spinning after its turn would take the processor from the next one.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads > 1 and CPUS:  # onnxruntime counts processors from 1; the first is our own
        others = [str(cpu + 1) for cpu in sorted(CPUS)[1:threads]]
        options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(others))
    with _forced(isa):
        return library.session(model.SerializeToString(), options, ["CPUExecutionProvider"])


@contextmanager
def _forced(isa: str) -> Iterator[None]:
    """Sessions made meanwhile compute with this kernel; "": with the one they would take anyway."""
    before = os.environ.get(FORCE)
    if isa:
        os.environ[FORCE] = isa
    try:
        yield
    finally:
        if isa:
            os.environ.pop(FORCE)
        if isa and before is not None:
            os.environ[FORCE] = before


def check(contender: Contender, x: NDArray[np.float32]) -> float:
    """The relative error of some columns against float64. Raises SystemExit where it is too large."""
    N = len(contender.weight.codes)
    columns = np.unique(np.linspace(0, N - 1, CHECKED_COLUMNS).astype(np.int64))
    wanted = x.astype(np.float64) @ contender.weight.rows(columns).astype(np.float64).T
    found = [products.columns_of(y, copy)[:, columns] for copy, y in enumerate(contender.run(x))]
    error = max(np.linalg.norm(y - wanted) / np.linalg.norm(wanted) for y in found)
    if not error <= MOST[contender.accuracy]:
        raise SystemExit(f"{contender.name} {contender.weight.format} {x.shape}: relative error {error:.2g}")
    return float(error)


def time_in_turns(
    all_: Sequence[Contender], x: NDArray[np.float32], seconds: float, between: Callable[[], None] = lambda: None
) -> None:
    for contender in all_:
        contender.seconds.clear()
    rounds, end, order = 0, time.perf_counter() + seconds, np.random.default_rng(0)
    while rounds < 5 or (time.perf_counter() < end and rounds < 100):
        for index in order.permutation(len(all_)):
            contender = all_[index]
            begin = contender.clock()
            contender.run(x)
            contender.seconds.append((contender.clock() - begin) / contender.copies)
        between()
        rounds += 1
