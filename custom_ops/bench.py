"""The kernels against onnxruntime's own: checks every answer, then times all in turns.

    python custom_ops/bench.py [--quick] [--threads 2] [--isa avx2] [--output docs/kernel_results.md]

Every number comes through an onnxruntime session, ours and theirs, in the same run: product after product in turns,
so that whatever else the machine does meets all of them, and so that no weight is left in the cache by its last turn,
as in a model that is larger than the cache. Every thread stays on one processor. Reported are medians. Ceilings are
measured at the same moments: reading as many bytes as a weight has, and the peak of the processor's multipliers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import onnx
import onnxruntime
import products
from numpy.typing import NDArray

import onnxq
from onnxq import native

SHAPES = ((4096, 4096), (11008, 4096), (4096, 14336))  # N × K: projections and both halves of a 7-billion-parameter MLP
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
FORMATS = (("int4", 32), ("int4", 128), ("int8", 32), ("nf4", 64), ("fp4", 64), ("mxfp4", 32))
CPUS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
CHECKED_COLUMNS = 128
#: Relative error of a product against float64. Level 4 rounds activations to 8 bits in blocks as large as the weight's.
MOST = {"fast": 0.01, "exact": 1e-5, "level 4": 0.03, "float": 1e-5}


@dataclass
class Contender:
    name: str
    accuracy: str  # a key of MOST
    run: Callable[[NDArray], NDArray]
    weight: products.Weight
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


@dataclass
class Row:
    """One format at one shape and number of rows."""

    shape: tuple[int, int]
    M: int
    format: str
    medians: dict[str, float]
    ceilings: dict[str, float]
    bytes: int

    def ratio(self, peer: str) -> float | None:
        return self.medians[peer] / self.medians["ours"] if peer in self.medians else None


def contenders(format: str, block: int, shape: tuple[int, int], threads: int) -> list[Contender]:
    w = products.random_weight(format, block, *shape, np.random.default_rng([*shape, block]))
    made = [("ours", "fast", products.ours(w, "fast"))]
    if format in ("int4", "int8"):
        made.append(("ORT level 4", "level 4", products.matmul_nbits(w, 4)))
    if (format, block) == ("int4", 32):
        made.append(("ours exact", "exact", products.ours(w, "exact")))
        made.append(("ORT exact", "exact", products.matmul_nbits(w, 0)))
        made.append(("ORT float", "float", products.matmul(w)))
    if format in ("nf4", "fp4"):
        made.append(("ORT Bnb4", "exact", products.matmul_bnb4(w)))
    return [Contender(name, accuracy, _runner(model, threads), w) for name, accuracy, model in made]


def _runner(model: onnx.ModelProto, threads: int) -> Callable[[NDArray], NDArray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # A pool that goes on spinning after its turn would take the processor from the next one.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads > 1 and hasattr(os, "sched_getaffinity"):  # onnxruntime counts processors from 1; the first is our own
        others = [str(cpu + 1) for cpu in sorted(CPUS)[1:threads]]
        options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(others))
    session = onnxq.session(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def check(contender: Contender, x: NDArray[np.float32]) -> float:
    """The relative error of some columns against float64. Raises SystemExit where it is too large."""
    N = len(contender.weight.codes)
    columns = np.unique(np.linspace(0, N - 1, CHECKED_COLUMNS).astype(np.int64))
    wanted = x.astype(np.float64) @ contender.weight.rows(columns).astype(np.float64).T
    error = float(np.linalg.norm(contender.run(x)[:, columns] - wanted) / np.linalg.norm(wanted))
    if not error <= MOST[contender.accuracy]:
        raise SystemExit(f"{contender.name} {contender.weight.format} {x.shape}: relative error {error:.2g}")
    return error


def time_in_turns(all_: list[Contender], x: NDArray[np.float32], seconds: float, between: Callable[[], None]) -> None:
    for contender in all_:
        contender.seconds.clear()
    rounds, end, order = 0, time.perf_counter() + seconds, np.random.default_rng(0)
    while rounds < 5 or (time.perf_counter() < end and rounds < 100):
        for contender in order.permutation(np.array(all_, object)):
            begin = time.perf_counter()
            contender.run(x)
            contender.seconds.append(time.perf_counter() - begin)
        between()
        rounds += 1


def _run_on(cpus: set[int]) -> None:
    """This thread, and those it starts. Not before the library has counted the processors: at its first product."""
    if cpus:
        os.sched_setaffinity(0, cpus)


class Ceilings:
    """Bytes and operations per second, sampled while others are timed. Medians for reading, the best for arithmetic."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.library = ctypes.CDLL(str(native.path()))
        self.library.onnxq_peak.restype = self.library.onnxq_read_seconds.restype = ctypes.c_double
        self.reads: dict[int, list[float]] = {}
        self.buffers: dict[int, NDArray[np.uint8]] = {}
        self.peaks = {what: self._peak(what) for what in ("fma", "vnni", "amx")}

    def _peak(self, what: str) -> float:
        return float(self.library.onnxq_peak(what.encode(), ctypes.c_int32(self.threads)))

    def start(self, sizes: set[int]) -> None:
        self.buffers = {size: np.ones(size, np.uint8) for size in sizes}
        self.reads = {size: [] for size in sizes}

    def sample(self) -> None:
        _run_on(CPUS)
        for size, buffer in self.buffers.items():
            data = ctypes.c_char_p(buffer.ctypes.data)
            seconds = self.library.onnxq_read_seconds(data, ctypes.c_int64(size), ctypes.c_int32(self.threads))
            self.reads[size].append(seconds)
        for what in self.peaks:
            self.peaks[what] = max(self.peaks[what], self._peak(what) if len(self.reads[size]) % 8 == 0 else 0.0)
        _run_on(set(sorted(CPUS)[:1]))

    def read(self, size: int) -> float:
        seconds = float(np.median(self.reads[size]))
        return size / seconds if seconds else 0.0


def measure(shapes: tuple, rows: tuple, threads: int, seconds: float, ceilings: Ceilings) -> Iterator[Row]:
    for shape in shapes:
        by_format = {f"{format} b{block}": contenders(format, block, shape, threads) for format, block in FORMATS}
        everyone = [contender for group in by_format.values() for contender in group]
        for M in rows:
            x = np.random.default_rng(M).standard_normal((M, shape[1]), np.float32)
            for contender in everyone:
                check(contender, x)
            _run_on(set(sorted(CPUS)[:1]))
            ceilings.start({contender.weight.bytes for contender in everyone})
            time_in_turns(everyone, x, seconds * (3 if M <= 8 else 1), ceilings.sample)
            for name, group in by_format.items():
                size = group[0].weight.bytes
                measured = {"read": ceilings.read(size), **ceilings.peaks}
                yield Row(shape, M, name, {c.name: c.median for c in group}, measured, size)


PEERS = ("ORT level 4", "ORT exact", "ORT Bnb4", "ORT float")
HEAD = ["format", "M", "ours, ms", "GB/s", "of read", "TFLOP/s", "of peak", *(f"{peer}, ms" for peer in PEERS)]


def cells(row: Row, ours: str = "ours") -> list[str]:
    N, K = row.shape
    seconds = row.medians[ours]
    bandwidth, flops = row.bytes / seconds, 2.0 * row.M * N * K / seconds
    peak = row.ceilings["fma"] if ours == "ours exact" else max(row.ceilings["vnni"], row.ceilings["amx"])
    peak = peak or row.ceilings["fma"]

    def share(part: float, whole: float) -> str:
        return f"{part / whole:.0%}" if whole else "?"

    def peer(name: str) -> str:
        if name not in row.medians:
            return ""
        return f"{row.medians[name] * 1e3:.3f} ({row.medians[name] / seconds:.2f}×)"

    name = row.format + (" exact" if ours == "ours exact" else "")
    numbers = [f"{seconds * 1e3:.3f}", f"{bandwidth / 1e9:.1f}", share(bandwidth, row.ceilings["read"])]
    numbers += [f"{flops / 1e12:.3f}", share(flops, peak)]
    return [name, str(row.M), *numbers, *(peer(name) for name in PEERS)]


def errors(threads: int) -> list[str]:
    """Lines of a table: what `fast` costs."""
    N, K, M = 512, 4096, 16
    lines = ["| format | normal activations | 12 channels 30 times as large |", "|---|---|---|"]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((M, K), np.float32)
    outliers = x.copy()
    outliers[:, rng.choice(K, 12, replace=False)] *= 30
    for format, block in FORMATS:
        ours = contenders(format, block, (N, K), threads)[0]
        lines.append(f"| {format} b{block} | {check(ours, x):.4f} | {check(ours, outliers):.4f} |")
    return lines


def markdown(rows: list[Row], machine: str, errors: list[str]) -> str:
    lines = ["# What the kernels measure", "", machine, ""]
    for shape in dict.fromkeys(row.shape for row in rows):
        lines += [f"## N × K = {shape[0]} × {shape[1]}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        mine = [row for row in rows if row.shape == shape]
        exact = [row for row in mine if "ours exact" in row.medians]
        for name in dict.fromkeys(row.format for row in mine):
            lines += ["| " + " | ".join(cells(row)) + " |" for row in mine if row.format == name]
        lines += ["| " + " | ".join(cells(row, "ours exact")) + " |" for row in exact]
        lines.append("")
    about = "Relative error (Frobenius norm) against float64 of 16 rows by 512 outputs, K = 4096, with `fast`:"
    return "\n".join([*lines, "## Errors", "", about, "", *errors, ""])


def describe(threads: int, ceilings: Ceilings) -> str:
    cpu = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    library = ceilings.library
    library.onnxq_isas.restype = ctypes.c_char_p
    forced = os.environ.get("ONNXQ_FORCE_ISA")
    peaks = ", ".join(f"{what} {peak / 1e12:.2f} T/s" for what, peak in ceilings.peaks.items() if peak)
    kernel = forced or library.onnxq_isas().decode().split()[0]
    return (
        f"{cpu}, {threads} threads, {platform.system()}, onnxruntime {onnxruntime.__version__}; "
        f"kernel {kernel}. Measured peaks: {peaks}.\n\n"
        "Medians of products in turns through onnxruntime sessions, weights not in the cache; every answer was checked "
        "against float64 first. In brackets: their time over ours. *of read*: of the bandwidth at which as many bytes "
        "are read at the same moments; *of peak*: of the multipliers' peak (8 bits; for exact, float32). "
        "Written by `python custom_ops/bench.py`."
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


@click.command()
@click.option("--quick", is_flag=True, help="One small shape, few rows: proves that everything runs.")
@click.option("--threads", default=2, show_default=True)
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    help="For one number of rows at one shape; three times that for few rows.",
)
@click.option("--shape", type=(int, int), help="N and K, instead of the three.")
@click.option("--rows", help="Numbers of rows, separated by commas.")
@click.option("--isa", help="Force this kernel.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the tables here, as Markdown.")
def main(
    quick: bool,
    threads: int,
    seconds: float,
    shape: tuple[int, int] | None,
    rows: str | None,
    isa: str | None,
    output: Path | None,
) -> None:
    """Check, then time the kernels against onnxruntime's own."""
    if isa:
        os.environ["ONNXQ_FORCE_ISA"] = isa
    if native.path() is None:
        raise SystemExit("build and install the library first: pip install .")
    shapes = ((256, 512),) if quick else (shape,) if shape else SHAPES
    many = (1, 4, 33) if quick else tuple(int(n) for n in rows.split(",")) if rows else ROWS
    ceilings = Ceilings(threads)
    done = []
    print(*(lost := errors(threads)), sep="\n")
    print("  ".join(HEAD))
    for row in measure(shapes, many, threads, 0.05 if quick else seconds, ceilings):
        done.append(row)
        for ours in ("ours", "ours exact"):
            if ours in row.medians:
                print(f"{row.shape[0]}×{row.shape[1]}", *cells(row, ours), sep="  ", flush=True)
    if output:
        output.write_text(markdown(done, describe(threads, ceilings), lost), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
