"""Shared by the formats whose codes index a table, x ≈ scale · table[code]; and those whose table is the user's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import arguments
from onnxq.formats.kinds import fast as _fast
from onnxq.formats.kinds.double import Double

#: As many as codes of 8 bits tell apart.
MOST = 256


class Tables(NamedTuple):
    """How the level of a number is found: a number takes the code `order[i]` if it is above exactly `i` middles."""

    levels: FloatArray  # in ascending order
    middles: FloatArray  # one fewer
    order: NDArray[np.uint8]


def plain_tables(levels: FloatArray) -> Tables:
    """For levels in any order: the nearest one; halfway between two the lower one."""
    order = np.argsort(levels, kind="stable")
    ascending = levels[order]
    return Tables(ascending, (ascending[1:] + ascending[:-1]) / np.float32(2), order.astype(np.uint8))


def signed_tables(magnitudes: FloatArray, negative_zero: int) -> Tables:
    """For levels of a sign (in bit 3) and one of 8 `magnitudes`: the nearest one; halfway that of smaller magnitude.

    Args:
        negative_zero: the code of numbers below zero that are nearest to it.
    """
    code = np.argsort(magnitudes, kind="stable")
    positive = magnitudes[code]
    middles = (positive[1:] + positive[:-1]) / np.float32(2)
    # "Above" the number next below a middle is "at or above" the middle itself.
    below = np.nextafter(np.append(-middles[::-1], np.float32(0)), np.float32(-np.inf))
    order = np.concatenate([8 + code[:0:-1], [negative_zero], code])
    return Tables(np.concatenate([-positive[::-1], positive]), np.append(below, middles), order.astype(np.uint8))


def fit(w: FloatArray, granularity: Granularity) -> FloatArray:
    """The largest magnitude of each block; 0 for a block of zeros, which then decodes to exactly 0."""
    groups, axes = granularity.groups(w)
    return np.max(np.abs(groups), axis=axes, initial=0).astype(np.float32)


def encode(
    format: Format, w: FloatArray, granularity: Granularity, scales: ScaleArray | None, tables: Tables
) -> QuantizedTensor:
    """The code that `tables` give for each weight over its scale; scales that are None are those of `fit`."""
    fast = _fast.encode(format, w, granularity, tables) if scales is None else None
    if fast is not None:
        return fast
    if scales is None:
        scales = fit(w, granularity)
    return QuantizedTensor(format, granularity, codes(w, granularity, scales, tables), scales)


def codes(w: FloatArray, granularity: Granularity, scales: ScaleArray, tables: Tables) -> NDArray[np.uint8]:
    """As `encode`, the codes alone."""
    # Where the absmax is zero, any divisor leaves zeros; where it is subnormal, the quotient stays in [-1, 1].
    divisor = scales.astype(np.float32, copy=False)
    divisor = granularity.spread(np.where(divisor == 0, np.float32(1), divisor), w.shape)
    return tables.order[np.searchsorted(tables.middles, w / divisor, side="left")]


def decode(q: QuantizedTensor, levels: FloatArray) -> FloatArray:
    """scale · level, in float32.

    Raises:
        ValueError: a code that indexes no level.
    """
    scales = arguments.present(q.scales, "scales").astype(np.float32, copy=False)
    try:
        found = levels[q.codes]
    except IndexError:
        raise ValueError(f"code {int(q.codes.max())} indexes none of the {len(levels)} levels") from None
    with np.errstate(over="ignore", invalid="ignore"):  # of a file whose scales are infinite, or no numbers
        return found * q.granularity.spread(scales, q.shape)


class OwnLevels(Format):
    """Codes index `levels`; the scale of a group is its largest magnitude over that of the levels.

    No operator of a graph knows them: they are for arrays.
    """

    code_type = np.dtype(np.uint8)

    def __init__(self, word: str, levels: FloatArray, block: int | None) -> None:
        self.name = f"{word} of own levels"
        self.bits = max(1, (len(levels) - 1).bit_length())
        self.default_block = block
        self.levels, self.tables = levels, plain_tables(levels)
        self.largest = np.float32(np.abs(levels).max())
        if self.largest == 1:  # the compiled library's scales are largest magnitudes
            self.rule = Rule(Fit.LEVELS)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        with np.errstate(over="ignore"):
            scales = fit(w, granularity) / self.largest
        if not np.isfinite(scales).all():
            raise BadModel(f"weights over {self.largest:g}, the largest of the levels, have no scale in float32")
        return scales, None

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        assert self.tables is not None
        if scales is None and self.rule is None:
            scales, _ = self.fit(w, granularity)
        return encode(self, w, granularity, scales, self.tables)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        assert self.levels is not None
        return decode(q, self.levels)


def with_levels(format: Format, levels: ArrayLike) -> Format:
    """`format`, one whose codes index a table, with other levels.

    Raises:
        BadRecipe: its codes are no such, or these are not 2 to 256 finite numbers, one of them not zero.
    """
    if format.levels is None or format.scale_type != np.float32:
        raise BadRecipe(f"{format.name} takes no levels: choose nf4, fp4, nf4_dq or nf4_dq_bnb")
    try:
        with np.errstate(over="ignore"):
            table = np.array(arguments.numbers(levels, "table of levels"), np.float32)
    except ValueError as error:
        raise BadRecipe(str(error)) from None
    tiny = float(np.finfo(np.float32).tiny)
    if table.ndim != 1 or not 2 <= table.size <= MOST or not np.isfinite(table).all() or np.abs(table).max() < tiny:
        raise BadRecipe(f"levels are 2 to {MOST} finite numbers, not all of them zero, not {table.size} like these")
    base = OwnLevels((format.base or format).name, table, format.default_block)
    return format.over(base, f"{format.name} of own levels") if isinstance(format, Double) else base
