"""What the data say about a layer's input: the products of its elements, summed over all rows; and a few rows.

Of a layer y = x · W with rows x of K numbers, the error that other weights W + D make is the sum of (x · D)² over the
rows, which is the trace of Dᵀ · H · D with the Gram matrix H = Σ xᵀ · x. So H is all that choosing codes needs of any
number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Rows of the samples held back that are kept of a layer's input.
HELD_ROWS = 512
#: What rounding of sums in float32 may add to a product, as a factor, and take from a sum of squares.
_WITHIN, _ROUNDED_AWAY = 1.05, 1e-37
_ROWS_AT_ONCE = 256


@dataclass(eq=False)
class Gram:
    """The Gram matrix of a layer's input.

    Attributes:
        sums: [groups, K, K]; of a layer without groups one matrix. While samples are added float64, so that neither
            their order nor how they are shared among machines matters; `rounded` makes them float32.
        rows: how many were added.
        cross: [groups, K, K], where layers before are quantized already: products of each row and what it is in float.
    """

    sums: NDArray[np.floating]
    rows: int = 0
    cross: NDArray[np.float32] | None = None

    @classmethod
    def empty(cls, groups: int, k: int, *, follows: bool = False) -> Gram:
        """Of no rows.

        Args:
            follows: whether layers before are quantized.
        """
        if follows:
            return cls(np.zeros((groups, k, k), np.float32), cross=np.zeros((groups, k, k), np.float32))
        return cls(np.zeros((groups, k, k)))

    def rounded(self) -> Gram:
        """The same as float32 numbers."""
        with np.errstate(over="ignore"):
            return Gram(self.sums.astype(np.float32), self.rows, self.cross)

    def update_pair(self, x: NDArray, in_float: NDArray) -> None:
        """Add [rows, groups, K] as quantized layers leave them, and as float layers do."""
        assert self.cross is not None
        x, in_float = finite_pairs(x, in_float)
        self.update(x)
        with np.errstate(over="ignore", invalid="ignore"):
            self.cross += np.matmul(x.transpose(1, 2, 0), in_float.transpose(1, 0, 2))

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

    @property
    def is_possible(self) -> bool:
        """Whether there are rows with such products, but for rounding; those of large numbers may be infinite, or none.

        Each is as its mirror image, and within the product of both lengths (Cauchy-Schwarz).
        """
        for sums in self.sums:
            squares = np.diagonal(sums).astype(np.float64)
            if not (squares >= 0).all():
                return False
            lengths = np.sqrt(squares + _ROUNDED_AWAY)
            for start in range(0, len(sums), _ROWS_AT_ONCE):
                part = slice(start, start + _ROWS_AT_ONCE)
                x, mirrored = sums[part].astype(np.float64), sums[:, part].T.astype(np.float64)
                with np.errstate(invalid="ignore"):
                    most = lengths[part, None] * lengths
                    is_wrong = (np.abs(x) > _WITHIN * most) | (np.abs(x - mirrored) > (_WITHIN - 1) * most)
                if (is_wrong & np.isfinite(x) & np.isfinite(mirrored) & np.isfinite(most)).any():
                    return False
        return True

    def merged(self, other: Gram) -> Gram:
        """Of the rows of both.

        Raises:
            ValueError: the other one is of another layer's shape.
        """
        if self.sums.shape != other.sums.shape:
            raise ValueError(
                f"Gram matrices of shapes {self.sums.shape} and {other.sums.shape} are of different layers"
            )
        cross = None if self.cross is None or other.cross is None else self.cross + other.cross
        return Gram(self.sums + other.sums, self.rows + other.rows, cross)


def finite_rows(x: NDArray) -> NDArray[np.float32]:
    """[rows, groups, K] as float32, without those rows that hold a number that is not finite."""
    x = np.ascontiguousarray(x, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(x.sum(axis=(1, 2)))
    return x if is_finite.all() else x[np.isfinite(x).all(axis=(1, 2))]


def finite_pairs(x: NDArray, other: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both [rows, groups, K] as float32, without those rows in which either holds a number that is not finite."""
    x, other = (np.ascontiguousarray(each, np.float32) for each in (x, other))
    finite = np.isfinite(x).all(axis=(1, 2)) & np.isfinite(other).all(axis=(1, 2))
    return (x, other) if finite.all() else (x[finite], other[finite])


def spread_out(x: NDArray, count: int) -> NDArray:
    """At most `count` of the rows of `x`, evenly spread over all of them."""
    if len(x) <= count:
        return x
    return x[np.linspace(0, len(x) - 1, count).astype(np.intp)]
