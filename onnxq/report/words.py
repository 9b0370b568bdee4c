"""Figures as people read them, for tables and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from onnxq.errors import amount
from onnxq.quality import MAX_DB
from onnxq.samples.trials import GIVEN


def decibel(x: float) -> str:
    return "identical" if x >= MAX_DB else f"{x:.1f} dB"


def judged(x: float, *, of_faint: bool) -> str:
    """The figure by which outputs are judged: an SQNR, which outputs that are identical do not have, nor faint ones,
    which count as more than they are."""
    return decibel(x) if of_faint or x >= MAX_DB else f"{decibel(x)} SQNR"


class Judged(Protocol):
    """What of a `Check`, or of a report's summary of one, is said of its error; attributes are those of the former."""

    @property
    def inputs(self) -> str: ...
    @property
    def proves(self) -> bool: ...
    @property
    def sqnr(self) -> float | None: ...
    @property
    def worst_sample(self) -> float | None: ...
    @property
    def faint_samples(self) -> int: ...
    @property
    def outputs(self) -> Mapping[str, float | None]: ...
    @property
    def kinds(self) -> Mapping[str, float | None]: ...
    @property
    def faint(self) -> Mapping[str, tuple[float, float]]: ...


def error(of: Judged) -> str:
    """The figure by which the outputs are judged; of faint ones `judged_on` says the SQNR."""
    return "–" if of.sqnr is None else judged(of.sqnr, of_faint=_lowest_kind(of) in of.faint)


def judged_on(of: Judged) -> str:
    """What an error is of, to stand behind it: the inputs; or, where it is not of the user's own samples, what it is
    of, and what those have."""
    kind, faint = _lowest_kind(of), {kind: _as_it_is(*each) for kind, each in of.faint.items()}
    named = {f"output '{name}'": x for name, x in of.outputs.items() if x is not None}
    lowest = [min(named, key=named.__getitem__)] if len(named) > 1 else []
    worst = math.nan if of.worst_sample is None else of.worst_sample
    but = f" but for {amount(of.faint_samples, 'faint one')}" if of.faint_samples else ""
    own = f"{of.inputs}{faint.get(GIVEN, '')}" + (f", each {decibel(worst)} or better{but}" if worst < MAX_DB else "")
    if of.proves and kind != GIVEN:
        of_data = of.kinds.get(GIVEN)
        words = "not compared" if of_data is None else decibel(of_data)
        return f"lowest: {', '.join([*lowest, kind + faint.get(kind, '')])}; the data: {words} on {own}"
    lowest += [kind + faint.get(kind, "")] if len(of.kinds) > 1 and kind != GIVEN else []
    mark = ";" if worst < MAX_DB else ","
    return f"on {own}" + (f"{mark} lowest: {', '.join(lowest)}" if lowest else "")


def _lowest_kind(of: Judged) -> str:
    known = {kind: x for kind, x in of.kinds.items() if x is not None}
    return min(known, key=known.__getitem__, default=GIVEN)


def _as_it_is(sqnr: float, below: float) -> str:
    """What faint outputs have for themselves, behind what they are of."""
    return f" ({decibel(sqnr)} SQNR, of outputs {below:.0f} dB fainter than usual)"


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
