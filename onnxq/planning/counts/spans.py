"""Between which bounds numbers lie that come from integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph

#: Digits of the numbers of float16 and of bfloat16: whole ones of so many bits are exact.
HALF, BFLOAT16 = 11, 8
#: Bits of those that fractions need to survive with two digits.
FRACTION = 7
#: Constants of more numbers are not looked into.
MOST_NUMBERS = 1 << 16


@dataclass(frozen=True)
class Span:
    """`low` ≤ x ≤ `high` for each number x of a tensor, all of them whole numbers if `whole`.

    Attributes:
        by_size: they are infinite only as sizes are, which places are counted up to and sums are over: means of them
            are no larger than one of them.
    """

    low: float
    high: float
    whole: bool
    by_size: bool = True

    def fits(self, digits: int) -> bool:
        """Whether none of them is rounded by so much, to binary `digits`, that what counts would miscount."""
        return max(-self.low, self.high) <= 2.0 ** (digits if self.whole else digits - FRACTION)

    @property
    def is_wide(self) -> bool:
        """Whether they lie as far apart as most of them are large, so that a layer can tell them from each other in few
        digits: pixels are, and places in a picture of any size are not."""
        return 2 * (self.high - self.low) >= max(-self.low, self.high) < math.inf

    def joined(self, other: Span) -> Span:
        """What is either in this or in that."""
        whole, by_size = self.whole and other.whole, self.by_size and other.by_size
        return Span(min(self.low, other.low), max(self.high, other.high), whole, by_size)


ANY, ANY_WHOLE = Span(-math.inf, math.inf, False, by_size=False), Span(-math.inf, math.inf, True, by_size=False)
COUNT = Span(0, math.inf, True)
SWITCH = Span(0, 1, True)
#: Of types with so few numbers that float16 holds them all.
OF_TYPE = {
    ir.DataType.BOOL: SWITCH,
    ir.DataType.UINT8: Span(0, 255, True),
    ir.DataType.INT8: Span(-128, 127, True),
    ir.DataType.UINT4: Span(0, 15, True),
    ir.DataType.INT4: Span(-8, 7, True),
}


def of_tensor(tensor: ir.TensorProtocol) -> Span:
    """The numbers of a constant."""
    is_number = tensor.dtype in graph.FLOATS or tensor.dtype.is_integer() or tensor.dtype is ir.DataType.BOOL
    is_short = is_number and tensor.size <= MOST_NUMBERS
    w = tensor.numpy().astype(np.float64) if is_short else np.empty(0)
    if not w.size or not np.isfinite(w).all():
        return OF_TYPE.get(tensor.dtype, ANY_WHOLE if tensor.dtype.is_integer() else ANY)
    return Span(float(w.min()), float(w.max()), bool(np.array_equal(w, np.rint(w))))


def total(a: Span, most: float = math.inf) -> Span:
    """Sums of any number of them, or of at most so many."""
    return Span(min(0.0, _product(a.low, most)), max(0.0, _product(a.high, most)), a.whole, a.by_size)


def added(a: Span, b: Span) -> Span:
    return Span(a.low + b.low, a.high + b.high, a.whole and b.whole, a.by_size and b.by_size)


def negated(a: Span) -> Span:
    return Span(-a.high, -a.low, a.whole, a.by_size)


def absolute(a: Span) -> Span:
    least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return Span(least, max(-a.low, a.high), a.whole, a.by_size)


def exponential(a: Span) -> Span:
    with np.errstate(over="ignore"):
        return Span(float(np.exp(a.low)), float(np.exp(a.high)), False, by_size=False)


def multiplied(a: Span, b: Span) -> Span:
    corners = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Span(min(corners), max(corners), a.whole and b.whole, a.by_size and b.by_size)


def divided(a: Span, b: Span, *, whole: bool) -> Span:
    """Rounded to whole numbers in either direction, if `whole`."""
    if b.low <= 0 <= b.high:
        return Span(-math.inf, math.inf, whole, by_size=b.whole and a.by_size and b.by_size)
    inverse = Span(min(1 / b.low, 1 / b.high), max(1 / b.low, 1 / b.high), False, b.by_size)
    found = multiplied(a, inverse)
    return Span(float(np.floor(found.low)), float(np.ceil(found.high)), True, found.by_size) if whole else found


def rest(a: Span, b: Span, *, has_sign_of_a: bool) -> Span:
    """What a division leaves."""
    most, whole = max(-b.low, b.high), a.whole and b.whole
    low, high = (-most if a.low < 0 else 0.0, most if a.high > 0 else 0.0) if has_sign_of_a else (b.low, b.high)
    return Span(min(low, 0.0), max(high, 0.0), whole, b.by_size)


def clipped(a: Span, low: Span | None, high: Span | None) -> Span:
    least = a.low if low is None else max(a.low, low.low)
    most = a.high if high is None else min(a.high, high.high)
    is_whole = a.whole and (low is None or low.whole) and (high is None or high.whole)
    return Span(min(least, most), max(least, most), is_whole, a.by_size)


def _product(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y
