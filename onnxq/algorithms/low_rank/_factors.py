"""Shared by the ways of low rank: the two matrices, and the best ones of a rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Factors(NamedTuple):
    """[K, rank] and [rank, N], whose product is added to a weight."""

    a: NDArray[np.float32]
    b: NDArray[np.float32]

    def evened(self) -> Factors:
        """The same product with columns of `a` as large as the rows of `b` they meet, so that few bits serve both."""
        sizes = np.abs(self.a).max(axis=0, initial=0), np.abs(self.b).max(axis=1, initial=0)
        known = (sizes[0] > 0) & (sizes[1] > 0)
        by = np.sqrt(np.where(known, sizes[1], 1) / np.where(known, sizes[0], 1)).astype(np.float32)
        return Factors(self.a * by, self.b / by[:, None])


def leading(m: NDArray[np.float64], rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[K, rank] with orthonormal columns and [rank, N], whose product is nearest to `m` [K, N] of all of that rank.

    By the eigenvectors of the smaller of m · mᵀ and mᵀ · m (Eckart & Young, 1936); signs are such that the largest
    number of each column is positive.
    """
    rank = min(rank, *m.shape)
    is_wide = m.shape[0] <= m.shape[1]
    _, vectors = np.linalg.eigh(m @ m.T if is_wide else m.T @ m)
    chosen = vectors[:, ::-1][:, :rank]
    if not is_wide:
        chosen, _ = np.linalg.qr(m @ chosen)
    largest = np.take_along_axis(chosen, np.abs(chosen).argmax(axis=0, keepdims=True), axis=0)
    chosen = chosen * np.where(largest < 0, -1.0, 1.0)
    return chosen, chosen.T @ m
