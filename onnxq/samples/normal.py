"""Mean and deviation that numbers are normalized by, of images as of sounds."""

from __future__ import annotations

from collections.abc import Iterable

#: Deviations, and sizes of means, from which on float32 holds whatever pixels or samples become.
LEAST, MOST = 1e-12, 1e12
#: What is said of settings that are none of these.
RANGE = "none beyond 1e±12"


def are_means(numbers: Iterable[float]) -> bool:
    return all(abs(x) <= MOST for x in numbers)


def are_deviations(numbers: Iterable[float]) -> bool:
    return all(LEAST <= x <= MOST for x in numbers)
