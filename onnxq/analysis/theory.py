"""What theory says of uniform quantization: the figures that measured ones are held against.

Source: Bennett, Spectra of Quantized Signals (1948): the error of a fine uniform quantizer is uniformly distributed
over one step s, its power s²/12.
"""

from __future__ import annotations

import math

#: dB for each bit, and for a full-scale sine on top of that: 20·log10(2) and 10·log10(3/2).
PER_BIT = 20 * math.log10(2)
SINE = 10 * math.log10(1.5)


def max_error(scale: float) -> float:
    """The largest error of a number that is not clipped: half a step.

    Args:
        scale: the distance of neighbouring levels; the error is in its unit.
    """
    return scale / 2


def noise_power(scale: float) -> float:
    """Mean squared error of numbers spread evenly over each step: s²/12.

    Args:
        scale: the distance of neighbouring levels.
    """
    return scale * scale / 12


def sine_sqnr(bits: float) -> float:
    """6.02·b + 1.76 dB: a sine that fills the range of 2^b steps.

    Args:
        bits: of a code.
    """
    return PER_BIT * bits + SINE


def uniform_sqnr(bits: float) -> float:
    """6.02·b dB: numbers spread evenly over a range of 2^b steps.

    Args:
        bits: of a code.
    """
    return PER_BIT * bits


def levels_sqnr(levels: int) -> float:
    """20·log10(L − 1) dB: evenly spread numbers whose range ends on the outermost of L levels, so has L − 1 steps.

    This is where formats put their levels: the largest weight lies on the largest code. At 8 bits it is 0.03 dB below
    `uniform_sqnr`, at 2 bits 2.5 dB.

    Raises:
        ValueError: fewer than two levels.
    """
    if levels < 2:
        raise ValueError(f"{levels} levels: at least 2 are needed")
    return 20 * math.log10(levels - 1)


def effective_bits(sqnr: float) -> float:
    """How many bits would give a full-scale sine this SQNR: the inverse of `sine_sqnr`.

    Args:
        sqnr: in dB.
    """
    return (sqnr - SINE) / PER_BIT
