"""The GPU kernels against float16 cuBLAS and onnxruntime-gpu: checks every answer, then times.

    python custom_ops/bench/bench_cuda.py [--quick] [--thresholds] [--output docs/cuda_results.md]

Answers are compared with float64 on fresh random numbers, outputs poisoned before. Times are medians, by CUDA events,
of graphs of products by different weights, which together overflow the L2 cache four times, as the layers of a model
do. GB/s count the bytes of weight and scales, and are set against the bandwidth that copying reaches in the same run.
Peers in onnxruntime and PyTorch are timed in the same way, a graph of many products (bench_cuda_ort.py,
bench_cuda_torch.py).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

import bench_peers
import click
import numpy as np
from bench_gpu import FLOAT16, FORMATS, PATHS, SCALES, Gpu, Matmul, Product
from numpy.typing import NDArray

from onnxq.bench_kernels import products
from onnxq.runtime import native

SHAPES = ((4096, 4096), (11008, 4096), (4096, 14336))
ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 512)
KINDS = (("int4", 32), ("int4", 128), ("int8", 32), ("nf4", 64), ("fp4", 64), ("mxfp4", 32))
#: Up to how many rows kernels for few are timed.
MOST_ROWS = {"gemv": 16, "direct": 64}
CHECKED_COLUMNS = 256
MOST_ERROR = 0.01


@dataclass
class Row:
    """One format at one shape and number of rows; seconds of each contender."""

    shape: tuple[int, int]
    M: int
    kind: tuple[str, int]
    bytes: int
    error: float
    seconds: dict[str, float] = field(default_factory=dict)


class Weights:
    """One checked weight, and as many random ones as overflow the cache."""

    def __init__(self, gpu: Gpu, format: str, block: int, shape: tuple[int, int], rng: np.random.Generator) -> None:
        self.gpu, self.shape = gpu, shape
        self.true = products.random_weight(format, block, *shape, rng)
        tiles, scales = products.tiled(self.true)
        self.bytes = tiles.nbytes + scales.nbytes
        self.scale_type = SCALES[scales.dtype]
        self.sets = [(gpu.upload(tiles), gpu.upload(scales))]
        noise = rng.integers(0, 256, tiles.nbytes + 4096, np.uint8)
        for i in range(1, gpu.sets(self.bytes)):  # each its own part of the noise: all bytes are codes
            start = i * 64 % 4096
            self.sets.append((gpu.upload(noise[start : start + tiles.nbytes]), gpu.upload(np.roll(scales, i))))

    def problem(self, M: int, x: int, y: int, index: int = 0, path: str = "auto") -> Matmul:
        weight, scales = self.sets[index]
        kind = (self.true.block, FORMATS[self.true.format], FLOAT16, self.scale_type, 0, PATHS[path])
        return Matmul(M, *self.shape, *kind, x, weight, scales, None, None, y)

    def check(self, x: NDArray, path: str = "auto") -> float:
        """Relative error of some columns against float64. Raises SystemExit where it is too large."""
        M, N = len(x), self.shape[0]
        y = np.empty((M, N), np.float16)
        address = self.gpu.room(y.nbytes)
        self.gpu.matmul(self.problem(M, self.gpu.upload(x), address, path=path))
        self.gpu.copy(y.ctypes.data, address, y.nbytes)
        columns = np.unique(np.linspace(0, N - 1, CHECKED_COLUMNS).astype(np.int64))
        wanted = x.astype(np.float64) @ self.true.rows(columns).astype(np.float64).T
        error = float(np.linalg.norm(y[:, columns] - wanted) / np.linalg.norm(wanted))
        if not (error <= MOST_ERROR and np.all(np.isfinite(y))):
            raise SystemExit(f"{self.true.format} {self.shape} M = {M} {path}: relative error {error:.2g}")
        return error

    def seconds(self, x: NDArray, repeats: int, path: str = "auto") -> float:
        address, y = self.gpu.upload(x), self.gpu.room(2 * len(x) * self.shape[0])
        problems = [self.problem(len(x), address, y, i, path) for i in range(len(self.sets))]
        return self.gpu.seconds([lambda p=p: self.gpu.matmul(p) for p in problems], repeats)  # type: ignore[misc]


def float16_seconds(gpu: Gpu, shape: tuple[int, int], many: tuple[int, ...], repeats: int) -> dict[int, float]:
    """cuBLAS on float16 weights, by M."""
    if gpu.cublas is None:
        return {}
    N, K = shape
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((N, K), np.float32).astype(np.float16)
    weights = [gpu.upload(np.roll(noise, 64 * i, axis=0)) for i in range(gpu.sets(noise.nbytes))]
    made = {}
    for M in many:
        x = gpu.upload(rng.standard_normal((M, K), np.float32).astype(np.float16))
        y = gpu.room(2 * M * N)
        products = [Product(M, N, K, K, N, FLOAT16, FLOAT16, 0, 0, x, w, y) for w in weights]
        made[M] = gpu.seconds([lambda p=p: gpu.call("product", ctypes.byref(p), gpu.cublas) for p in products], repeats)  # type: ignore[misc]
    gpu.forget()
    return made


def measure(gpu: Gpu, shape: tuple[int, int], many: tuple[int, ...], kinds: tuple, repeats: int) -> list[Row]:
    floats = float16_seconds(gpu, shape, many, repeats)
    rows = []
    for format, block in kinds:
        weights = Weights(gpu, format, block, shape, np.random.default_rng())
        for M in many:
            x = np.random.default_rng().standard_normal((M, shape[1]), np.float32).astype(np.float16)
            row = Row(shape, M, (format, block), weights.bytes, weights.check(x))
            row.seconds["ours"] = weights.seconds(x, repeats)
            if M in floats:
                row.seconds["float16"] = floats[M]
            rows.append(row)
        gpu.forget()
    return rows


def thresholds(gpu: Gpu, shape: tuple[int, int], many: tuple[int, ...], repeats: int) -> dict[str, list[int]]:
    """By format, the largest M at which the direct kernel is the fastest; of the others, the vector kernel; and that or
    the tensor-core kernel."""
    found: dict[str, list[int]] = {}
    for format, block in KINDS:
        weights = Weights(gpu, format, block, shape, np.random.default_rng())
        most = [0, 0, 0]
        for M in many:
            x = np.random.default_rng().standard_normal((M, shape[1]), np.float32).astype(np.float16)
            paths = [path for path in PATHS if path != "auto" and MOST_ROWS.get(path, M) >= M]
            paths = [path for path in paths if path != "dequantize" or gpu.cublas is not None]
            times = {path: weights.seconds(x, repeats, path) for path in paths if weights.check(x, path) >= 0}
            best = min(times, key=lambda path: times[path])
            most[0] = M if best == "direct" else most[0]
            indirect = min(times.keys() - {"direct"}, key=lambda path: times[path])
            most[1] = M if indirect == "gemv" else most[1]
            most[2] = M if indirect != "dequantize" else most[2]
            print(
                f"{format} b{block} M = {M}: " + ", ".join(f"{p} {t * 1e6:.1f} µs" for p, t in times.items()),
                flush=True,
            )
        found[format] = most
        gpu.forget()
    return found


PEERS = (
    "float16",
    "ours in ORT",
    "MatMulNBits",
    "MatMulNBits FPA_INTB",
    "MatMulBnb4",
    "torchao int4",
    "bitsandbytes",
)
HEAD = ["format", "M", "µs", "GB/s", "of copy", *(f"{name}, µs" for name in PEERS)]


def cells(row: Row, copy: float) -> list[str]:
    ours = row.seconds["ours"]

    def peer(name: str) -> str:
        seconds = row.seconds.get(name)
        return f"{seconds * 1e6:.1f} ({seconds / ours:.2f}×)" if seconds else ""

    bandwidth = row.bytes / ours
    numbers = [f"{ours * 1e6:.1f}", f"{bandwidth / 1e9:.0f}", f"{bandwidth / copy:.0%}"]
    return [f"{row.kind[0]} b{row.kind[1]}", str(row.M), *numbers, *map(peer, PEERS)]


def add_peers(rows: list[Row]) -> None:
    """Peers in processes of their own; how onnxruntime multiplies is decided by the environment when it starts."""
    folder = Path(__file__).parent
    cases: dict[tuple, list[Row]] = {}
    for row in rows:
        cases.setdefault((*row.shape, *row.kind), []).append(row)
    for script, environment in (
        ("bench_cuda_torch.py", {}),
        ("bench_cuda_ort.py", {"ORT_FPA_INTB_GEMM": "0"}),
        ("bench_cuda_ort.py", {"ORT_FPA_INTB_GEMM": "1"}),
    ):
        wanted = [",".join(map(str, (*case, *(row.M for row in each)))) for case, each in cases.items()]
        for each, times in zip(cases.values(), bench_peers.ask(str(folder / script), wanted, environment), strict=True):
            for row in each:
                for name, by in times.items():
                    fpa = environment.get("ORT_FPA_INTB_GEMM") == "1" and name == "MatMulNBits"
                    if row.M in by:
                        row.seconds[f"{name} FPA_INTB" if fpa else name] = by[row.M]


def markdown(rows: list[Row], machine: str, copy: float) -> str:
    lines = ["# What the GPU kernels measure", "", machine, ""]
    for shape in dict.fromkeys(row.shape for row in rows):
        lines += [f"## N × K = {shape[0]} × {shape[1]}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        lines += ["| " + " | ".join(cells(row, copy)) + " |" for row in rows if row.shape == shape] + [""]
    return "\n".join(lines)


@click.command()
@click.option("--quick", is_flag=True, help="One small shape, few rows: proves that everything runs.")
@click.option("--thresholds", "table", is_flag=True, help="Time every kernel at every M: the table of choose.h.")
@click.option("--shape", type=(int, int), help="N and K, instead of the three.")
@click.option("--rows", "rows_", help="Numbers of rows, separated by commas.")
@click.option(
    "--repeats",
    default=bench_peers.REPEATS,
    show_default=True,
    help="Replays of a graph of ours, of which the median is taken.",
)
@click.option("--no-peers", is_flag=True, help="Do not measure onnxruntime and PyTorch.")
@click.option("--library", type=click.Path(path_type=Path), help="libonnxq_cuda, if not the installed one.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the tables here, as Markdown.")
def main(
    quick: bool,
    table: bool,
    shape: tuple[int, int] | None,
    rows_: str | None,
    repeats: int,
    no_peers: bool,
    library: Path | None,
    output: Path | None,
) -> None:
    """Check, then time the GPU kernels."""
    library = library or native.cuda_path()
    if library is None:
        raise SystemExit("libonnxq_cuda was not built: install nvcc, then onnxq again (cmake option ONNXQ_CUDA=ON)")
    gpu = Gpu(library)
    shapes = ((256, 512),) if quick else (shape,) if shape else SHAPES
    many = tuple(int(n) for n in rows_.split(",")) if rows_ else (1, 4, 33) if quick else ROWS
    repeats = 3 if quick else repeats
    if table:
        for format, most in thresholds(gpu, shapes[0] if quick or shape else (11008, 4096), many, repeats).items():
            print(f"    {{{', '.join(map(str, most))}}},  // {format}")
        return
    copy = gpu.copy_bandwidth(1 << (20 if quick else 30))
    machine = f"{gpu.name}, {gpu.multiprocessors} multiprocessors, copying at {copy / 1e9:.0f} GB/s (read and written)."
    print(machine)
    rows = [row for each in shapes for row in measure(gpu, each, many, KINDS, repeats)]
    if not no_peers:
        add_peers(rows)
    for row in rows:
        print(f"{row.shape[0]}×{row.shape[1]}", *cells(row, copy), sep="  ", flush=True)
    if output:
        output.write_text(markdown(rows, machine, copy), encoding="utf-8")


if __name__ == "__main__":
    main()
