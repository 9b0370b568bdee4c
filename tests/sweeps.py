"""Which cases every run of the tests takes, which the sweep (`pytest -m sweep`), which only a night (`-m night`)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Mapping, Sequence

import pytest


def values_of(item: pytest.Function) -> dict[int, Hashable]:
    """What each `parametrize` of a test gives this one, as something that is the same in others with the same."""
    found: dict[int, Hashable] = {}
    left = dict(item.callspec.params)
    for i, mark in enumerate(item.iter_markers("parametrize")):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        found[i] = tuple(id(left.pop(name.strip())) for name in names)
    return found | {len(found) + i: id(value) for i, value in enumerate(left.values())}  # of fixtures


def covering(rows: Sequence[Mapping[int, Hashable]], size: int) -> set[int]:
    """Which rows hold, together, every `size` values that any row holds. Greedy, and always the same ones."""
    if any(len(row) < size for row in rows):
        return set(range(len(rows)))
    groups = [set(itertools.combinations(row.items(), size)) for row in rows]
    missing: set[object] = set().union(*groups)
    order = random.Random(0).sample(range(len(rows)), len(rows))
    taken: set[int] = set()
    for least in range(max(map(len, groups), default=0), 0, -1):
        for i in order:
            if len(groups[i] & missing) >= least:
                taken.add(i)
                missing -= groups[i]
    return taken


def swept(*values: object, id: str | None = None) -> object:
    """A case of `parametrize` that the sweep takes: others pass the same code, and this one takes a second or so."""
    return pytest.param(*values, id=id, marks=pytest.mark.sweep)


def at_night(*values: object, id: str | None = None) -> object:
    """A case of `parametrize` that only `pytest -m night` takes: one of hundreds, or as long as twenty others."""
    return pytest.param(*values, id=id, marks=pytest.mark.night)
