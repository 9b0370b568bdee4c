"""Figures as people read them, for tables and pages."""

from __future__ import annotations

from onnxq.quality import MAX_DB


def decibel(x: float) -> str:
    return "identical" if x >= MAX_DB else f"{x:.1f} dB"


def of_noise(x: float) -> str:
    """An SQNR, which outputs that are identical do not have."""
    return decibel(x) if x >= MAX_DB else f"{decibel(x)} SQNR"


def count(n: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return str(n) if n else ""


def nbytes(n: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def milliseconds(x: float) -> str:
    return f"{x:.1f} ms" if x >= 10 else f"{x:.3f} ms"
