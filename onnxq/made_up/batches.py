"""Batches of any size: of pictures and sounds as many differ as are worth their time, the others are those again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

#: Of one batch that differ, at most.
DIFFERENT = 64


def batch(one: Callable[[], NDArray], count: int, most: int = DIFFERENT) -> NDArray:
    """[count, …] of what `one` makes."""
    made = np.array([one() for _ in range(min(count, most))])
    return made if count <= most else made[np.arange(count) % most]
