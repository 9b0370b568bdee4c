"""Single figures that judge a quantization: bounds, sensitivity, outliers, compression, and which one is best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from onnxq import formats
from onnxq.analysis.statistics import ErrorStats
from onnxq.analysis.sweeps import ScalePoint
from onnxq.analysis.tensor import tensor_error
from onnxq.errors import NothingToDo, OnnxqError
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.quality import MAX_DB

Key = TypeVar("Key")


def error_within_bounds(wanted: ArrayLike, got: ArrayLike, step: ArrayLike, *, slack: float = 1e-6) -> bool:
    """Whether no error is larger than half a step, as rounding to nearest promises for what is not clipped.

    Args:
        wanted, got: arrays or nested lists of real numbers, of one shape.
        step: the distance of neighbouring levels: a number, or an array that broadcasts against both
            (`granularity.spread(scales, shape)`). Its sign does not matter.
        slack: share of a step that float32 arithmetic may be beyond half of it.

    Returns:
        True of no numbers at all.

    Raises:
        ValueError: the shapes do not fit, or a number is not finite.

    >>> error_within_bounds([0.1, 0.9], [0.0, 1.0], 0.25)
    True
    >>> error_within_bounds([0.1, 0.9], [0.0, 1.0], 0.19)
    False
    """
    a, b, s = (
        arguments.numbers(x, f"array '{name}'").astype(np.float64)
        for name, x in (("wanted", wanted), ("got", got), ("step", step))
    )
    arguments.require_shape("numbers of 'got'", b, a.shape)
    if not all(np.isfinite(x).all() for x in (a, b, s)):
        raise ValueError("a number is not finite: nothing can be said of its error")
    try:
        s = np.broadcast_to(np.abs(s), a.shape)
    except ValueError:
        raise ValueError(f"steps of shape {list(s.shape)} do not belong to numbers of {list(a.shape)}") from None
    return bool((np.abs(b - a) <= s * (0.5 + slack)).all())


def scale_sensitivity(points: Iterable[ScalePoint]) -> float:
    """How much the error depends on the scale: the coefficient of variation of the squared error over a sweep.

    Args:
        points: of `scale_sweep`.

    Returns:
        Standard deviation of the mse, divided by its mean: 0 where the scale does not matter.

    Raises:
        ValueError: there are no points.
    """
    errors = np.array([point.stats.mse for point in points], np.float64)
    if not errors.size:
        raise ValueError("of no points nothing depends on anything")
    mean = float(errors.mean())
    return float(errors.std()) / mean if mean > 0 else 0.0


def outlier_rate(w: ArrayLike, threshold: float = 3.0) -> float:
    """The share of numbers that lie more than `threshold` standard deviations from the mean; 0…1.

    Args:
        w: any shape, finite.
        threshold: in standard deviations of `w`, above zero. Of a normal distribution 0.0027 lie beyond 3.

    Raises:
        BadModel: a number is not finite.
        ValueError: `w` is no array of real numbers, or `threshold` is not above zero.
    """
    if not 0 < threshold < math.inf:
        raise ValueError(f"outliers cannot begin at {threshold} standard deviations: above zero")
    x = formats.as_float32(arguments.numbers(w), "w").astype(np.float64)
    if not x.size:
        return 0.0
    return float(np.mean(np.abs(x - x.mean()) > threshold * x.std()))


def compression_ratio(of: QuantizedTensor | ErrorStats, float_bits: int = 32) -> float:
    """How many times smaller a quantized weight is, scales and zero points counted; 8 is an eighth of the bytes.

    Args:
        of: a quantized weight, or the figures of one.
        float_bits: of a number before: 16 for weights that were half floats.

    Raises:
        ValueError: `float_bits` is below 1.
    """
    if float_bits < 1:
        raise ValueError(f"no number has {float_bits} bits")
    return float_bits / of.bits_per_weight if of.bits_per_weight else 1.0


def quality_score(stats: ErrorStats) -> float:
    """0…100: how much smaller the error is than the weights, 100·(1 − √(Σe² / Σx²)).

    100 without error, 99 at 40 dB of SQNR, 90 at 20 dB, 0 where the error is as large as the weights, or larger.

    Args:
        stats: of a weight in some form.
    """
    if stats.sqnr >= MAX_DB:
        return 100.0
    return max(0.0, 100 * (1 - 10 ** (-stats.sqnr / 20)))


def best_by_mse(found: Mapping[Key, ErrorStats]) -> Key:
    """The key of the least squared error; of equal ones the one with the fewest bits a weight, then the first.

    Args:
        found: figures by whatever they belong to: a format, a granularity, a number of bits.

    Raises:
        ValueError: there is nothing to choose from.
    """
    if not found:
        raise ValueError("of nothing nothing is the best")
    return min(found, key=lambda key: (found[key].mse, found[key].bits_per_weight))


def compare_formats(
    w: ArrayLike, words: Iterable[str] = (), granularity: Granularity | None = None, algorithm: str = "rtn"
) -> dict[str, ErrorStats]:
    """The error of `w` in each format that can hold it, by its word.

    Args:
        w: any shape, finite.
        words: of formats; none means all there are.
        granularity: which weights share a scale; each format's own (`formats.natural`) if None.
        algorithm: a word of `algorithms.DATA_FREE`.

    Raises:
        BadModel: a weight is not finite.
        BadRecipe: there is no such format or algorithm.
        NothingToDo: no format holds `w`.
        ValueError: `w` is no array of real numbers, or has no such axis.
    """
    x, found, problem = formats.as_float32(arguments.numbers(w), "w"), {}, ""
    for format in [formats.get(word) for word in words or formats.names()]:
        try:
            found[format.name] = tensor_error(x, format, granularity or formats.natural(format, x.ndim), algorithm)
        except OnnxqError as error:
            problem = problem or str(error)
    if not found:
        raise NothingToDo(f"no format holds these numbers: {problem}")
    return found
