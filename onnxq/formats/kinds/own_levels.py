"""Formats whose table of levels is the user's: x ≈ scale · level[code] / max|level|, the nearest one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import CodeArray, Fit, FloatArray, Format, Granularity, QuantizedTensor, Rule, ScaleArray
from onnxq.formats.kinds import arguments, codebook
from onnxq.formats.kinds.double import Double

#: As many as codes of 8 bits tell apart.
MOST = 256


class OwnLevels(Format):
    """Codes index `levels`; the scale of a group is its largest magnitude over that of the levels.

    No operator of a graph knows them: they are for arrays.
    """

    code_type = np.dtype(np.uint8)

    def __init__(self, word: str, levels: FloatArray, block: int | None) -> None:
        self.name = f"{word} of own levels"
        self.bits = max(1, (len(levels) - 1).bit_length())
        self.default_block = block
        self.levels, self.tables = levels, codebook.plain_tables(levels)
        self.largest = np.float32(np.abs(levels).max())
        if self.largest == 1:  # the compiled library's scales are largest magnitudes
            self.rule = Rule(Fit.LEVELS)

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray, None]:
        with np.errstate(over="ignore"):
            scales = codebook.fit(w, granularity) / self.largest
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
        return codebook.encode(self, w, granularity, scales, self.tables)

    def decode(self, q: QuantizedTensor) -> FloatArray:
        assert self.levels is not None
        return codebook.decode(q, self.levels)


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
