"""How the numbers of a parameter may lie in a constant that an exporter made of it: where they stood before a node that
only moves numbers, which it has evaluated.

    1. in another shape, with axes of 1 here and there, or repeated along axes
    2. turned, if it is a matrix
    3. some of its rows, in any order: lookups of a table
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

#: Multiplications that rows may be looked for with.
MOST_PRODUCTS = 1 << 30
#: The square of the distance to the nearest row is a part of that to the next.
CLEAR = 4.0
View = Callable[[NDArray], NDArray]


def turned(p: NDArray, shape: tuple[int, ...]) -> NDArray | None:
    """An array whose axes lie in another order, as sizes tell that all differ; None if they do not."""
    sizes, wanted = ([size for size in each if size != 1] for each in (p.shape, shape))
    if len({*sizes}) < len(sizes) or sorted(sizes) != sorted(wanted):
        return None
    return p.reshape(sizes).transpose([sizes.index(size) for size in wanted]).reshape(shape)


def views(c: NDArray, p: NDArray, *, is_in_order: bool = False) -> Iterator[View]:
    """Ways in which an array that is like `p` lies as `c`, which are all that shapes allow.

    Args:
        is_in_order: whether it is known to be neither turned nor looked up.
    """
    sizes = tuple(size for size in p.shape if size != 1)
    moving = {i: size for i, size in enumerate(c.shape) if size != 1 and not _is_equal_along(c, i)}
    every = {i: size for i, size in enumerate(c.shape) if size != 1}
    last = dict(list(every.items())[len(every) - len(sizes) :])
    if not np.ptp(c) and tuple(last.values()) == sizes:  # of one number nothing tells along which axes it is repeated
        moving = last
    for kept in (moving, every):
        wanted, here = tuple(kept.values()), tuple(size if i in kept else 1 for i, size in enumerate(c.shape))
        found = []
        if wanted == sizes:
            found.append(_spread(here, c.shape, is_turned=False))
        if len(sizes) == 2 and wanted == sizes[::-1] and not is_in_order:
            found.append(_spread(here, c.shape, is_turned=True))
        if found or kept is not moving:
            yield from found
            return
        if len(sizes) == 2 and wanted and not is_in_order:
            yield from _looked_up(c, p.reshape(sizes), kept, here)


def _is_equal_along(c: NDArray, axis: int) -> bool:
    return bool((c == c.take([0], axis)).all()) and bool(np.ptp(c))


def _spread(here: tuple[int, ...], shape: tuple[int, ...], *, is_turned: bool) -> View:
    def view(p: NDArray) -> NDArray:
        p = p.reshape([size for size in p.shape if size != 1])
        return np.broadcast_to((p.T if is_turned else p).reshape(here), shape)

    return view


def _looked_up(c: NDArray, table: NDArray, kept: dict[int, int], here: tuple[int, ...]) -> Iterator[View]:
    """Rows along each axis that is as long as one."""
    (count, n), first = table.shape, c[tuple(slice(None) if i in kept else slice(1) for i in range(c.ndim))]
    for axis in (i for i, size in kept.items() if size == n):
        moved = np.moveaxis(first, axis, -1)
        rows = moved.reshape(-1, n).astype(np.float32)
        if len(rows) * count * n > MOST_PRODUCTS:
            continue
        index = _nearest(rows, table.astype(np.float32))
        if index is None:
            continue

        def view(
            p: NDArray,
            index: NDArray = index,
            between: tuple[int, ...] = moved.shape,
            axis: int = axis,
        ) -> NDArray:
            made = np.moveaxis(p.reshape(-1, between[-1])[index].reshape(between), -1, axis)
            return np.broadcast_to(made.reshape(here), c.shape)

        yield view


def _nearest(rows: NDArray[np.float32], table: NDArray[np.float32]) -> NDArray[np.int64] | None:
    """Which row of a table each is most like; None where another one is nearly as near: rows of few numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.square(rows).sum(1)[:, None] + np.square(table).sum(1) - 2 * rows @ table.T
    if not np.isfinite(apart).all():
        return None
    index = np.argmin(apart, axis=1)
    if len(table) > 1:
        first, second = np.partition(apart, 1, axis=1)[:, :2].T
        if (second < CLEAR * first).any():
            return None
    return index
