"""Figures as people read them, for tables and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnxq.quality import MAX_DB
from onnxq.samples.trials import GIVEN


def decibel(x: float) -> str:
    return "identical" if x >= MAX_DB else f"{x:.1f} dB"


def of_noise(x: float) -> str:
    """An SQNR, which outputs that are identical do not have."""
    return decibel(x) if x >= MAX_DB else f"{decibel(x)} SQNR"


def judged_on(
    inputs: str,
    outputs: Mapping[str, float | None],
    kinds: Mapping[str, float | None],
    worst_sample: float | None,
    *,
    proves: bool,
) -> str:
    """What an SQNR is of, to stand behind it: the inputs; or, where it is not of the user's own samples, what it is of,
    and what those have. The arguments are attributes of a `Check`."""
    known = {kind: x for kind, x in kinds.items() if x is not None}
    lowest_kind = min(known, key=known.__getitem__, default=GIVEN)
    named = {f"output '{name}'": x for name, x in outputs.items() if x is not None}
    lowest = [min(named, key=named.__getitem__)] if len(named) > 1 else []
    worst = math.nan if worst_sample is None else worst_sample
    each = f", each {decibel(worst)} or better" if worst < MAX_DB else ""
    if proves and lowest_kind != GIVEN:
        own = decibel(known[GIVEN]) if GIVEN in known else "not compared"
        return f"lowest: {', '.join([*lowest, lowest_kind])}; the data: {own} on {inputs}{each}"
    lowest += [lowest_kind] if len(known) > 1 and lowest_kind != GIVEN else []
    where = f"{';' if each else ','} lowest: {', '.join(lowest)}" if lowest else ""
    return f"on {inputs}{each}{where}"


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
