"""What a row of docs/library.md is, and what its check is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

W = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32) + 0.3
#: Library, what it calls something, what is called here, and a check of that against the formula.
ROWS: list[tuple[str, str, str, Callable[[], None]]] = []


def row(group: str, theirs: str, ours: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(check: Callable[[], None]) -> Callable[[], None]:
        ROWS.append((group, theirs, ours, check))
        return check

    return add


def same(a: object, b: object, tolerance: float = 0.0) -> None:
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


def absmax(w: NDArray, block: int) -> NDArray:
    return np.abs(w.reshape(w.shape[0], -1, block)).max(axis=2)


def nearest(x: NDArray, levels: NDArray) -> NDArray:
    """The index of the nearest level, by looking at all."""
    return np.abs(x[..., None].astype(np.float64) - levels).argmin(axis=-1)
