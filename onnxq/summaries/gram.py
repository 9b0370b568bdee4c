"""What the data say about a layer's input: the products of its elements, summed over all rows; and a few rows.

Of a layer y = x · W with rows x of K numbers, the error that other weights W + D make is the sum of (x · D)² over the
rows, which is the trace of Dᵀ · H · D with the Gram matrix H = Σ xᵀ · x. So H is all that choosing codes needs of any
number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Gram:
    """The Gram matrix of a layer's input.

    Attributes:
        sums: [groups, K, K] float32; of a layer without groups one matrix.
        rows: how many were added.
    """

    sums: NDArray[np.float32]
    rows: int = 0

    @classmethod
    def empty(cls, groups: int, k: int) -> Gram:
        return cls(np.zeros((groups, k, k), np.float32))

    def update(self, x: NDArray) -> None:
        """Add [rows, groups, K]; rows that hold a number that is not finite are left out."""
        x = finite_rows(x)
        self.rows += len(x)
        with np.errstate(over="ignore", invalid="ignore"):  # whose reader has to look at that
            if x.shape[1] == 1:
                flat = x[:, 0]
                self.sums[0] += flat.T @ flat
            else:
                self.sums += np.matmul(x.transpose(1, 2, 0), x.transpose(1, 0, 2))

    def merged(self, other: Gram) -> Gram:
        """Of the rows of both.

        Raises:
            ValueError: the other one is of another layer's shape.
        """
        if self.sums.shape != other.sums.shape:
            raise ValueError(
                f"Gram matrices of shapes {self.sums.shape} and {other.sums.shape} are of different layers"
            )
        return Gram(self.sums + other.sums, self.rows + other.rows)


def finite_rows(x: NDArray) -> NDArray[np.float32]:
    """[rows, groups, K] as float32, without those rows that hold a number that is not finite."""
    x = np.ascontiguousarray(x, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(x.sum(axis=(1, 2)))
    return x if is_finite.all() else x[np.isfinite(x).all(axis=(1, 2))]


def spread_out(x: NDArray, count: int) -> NDArray:
    """At most `count` of the rows of `x`, evenly spread over all of them."""
    if len(x) <= count:
        return x
    return x[np.linspace(0, len(x) - 1, count).astype(np.intp)]
