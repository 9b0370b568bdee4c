"""What was measured, as text and as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnxq.bench_kernels.ceilings import Ceilings
from onnxq.bench_kernels.contenders import FORCE
from onnxq.runtime.ort import installed

PEERS = ("ORT level 4", "ORT exact", "ORT Bnb4", "ORT float")
HEAD = ["format", "M", "ours, ms", "GB/s", "of read", "TFLOP/s", "of peak", *(f"{peer}, ms" for peer in PEERS)]


@dataclass
class Row:
    """One format at one shape and number of rows."""

    shape: tuple[int, int]
    M: int
    format: str
    medians: dict[str, float]
    bytes: int
    ceilings: dict[str, float] = field(default_factory=dict)

    def ratios(self) -> dict[str, float]:
        """How many times as long as ours everyone else took, `exact` products of ours excepted."""
        others = {name: seconds for name, seconds in self.medians.items() if name not in ("ours", "ours exact")}
        return {name: seconds / self.medians["ours"] for name, seconds in others.items()}


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


def markdown(rows: Sequence[Row], machine: str, errors: Sequence[str]) -> str:
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


def sweep_line(row: Row) -> str:
    ratios = "  ".join(f"{name} {ratio:.2f}×" for name, ratio in row.ratios().items())
    return f"{row.shape[0]}×{row.shape[1]}  {row.format}  M={row.M}  {row.medians['ours'] * 1e6:.1f} µs  {ratios}"


def sweep_summary(rows: Sequence[Row]) -> list[str]:
    """Lines of a table: of every shape and format the least advantage over each peer, and where it is."""
    lines = ["| N × K | format | against | least | at M = | rows below 1 |", "|---" * 6 + "|"]
    for key in dict.fromkeys((row.shape, row.format) for row in rows):
        mine = [row for row in rows if (row.shape, row.format) == key]
        for peer in mine[0].ratios():
            least = min(mine, key=lambda row: row.ratios()[peer])
            below = [str(row.M) for row in mine if row.ratios()[peer] < 1]
            cells = [f"{key[0][0]} × {key[0][1]}", key[1], peer, f"{least.ratios()[peer]:.2f}×", str(least.M)]
            lines.append("| " + " | ".join([*cells, ", ".join(below) or "none"]) + " |")
    return lines


def describe(threads: int, ceilings: Ceilings) -> str:
    library = ceilings.library
    peaks = ", ".join(f"{what} {peak / 1e12:.2f} T/s" for what, peak in ceilings.peaks.items() if peak)
    kernel = os.environ.get(FORCE) or library.onnxq_isas().decode().split()[0]
    return (
        f"{processor()}, {threads} threads, {platform.system()}, onnxruntime {installed.require().__version__}; "
        f"kernel {kernel}. Measured peaks: {peaks}.\n\n"
        "Medians of products in turns through onnxruntime sessions, weights not in the cache; every answer was checked "
        "against float64 first. In brackets: their time over ours. *of read*: of the bandwidth at which as many bytes "
        "are read at the same moments; *of peak*: of the multipliers' peak (8 bits; for exact, float32). "
        "Written by `python -m onnxq.bench_kernels`."
    )


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
