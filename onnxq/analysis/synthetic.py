"""Weights made up for benchmarks: each maker stands for a property that some format suffers from.

Equal shapes, seeds and parameters give equal weights, on any machine.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from onnxq.boundary import require_types
from onnxq.errors import BadRecipe
from onnxq.formats import FloatArray

#: Powers of ten over which the channels' standard deviations are spread by `channels`.
DECADES = 2.0
#: Share of outliers made by `outliers`, and how many standard deviations they are large.
OUTLIERS, OUTLIER_SIZE = 1e-3, 20.0
#: Weights that a benchmark makes at most, and the length of a row or column.
MOST, LONGEST = 1 << 26, 1 << 20

Maker = Callable[..., FloatArray]


def gaussian(shape: tuple[int, int], seed: int = 0, *, mean: float = 0.0, deviation: float = 1.0) -> FloatArray:
    """Normally distributed, by default standard normal: what trained weights look like from afar, and what nf4 is for.

    Args:
        shape: [N, K], outputs and inputs.
        seed: other numbers for each.
        mean, deviation: of the distribution.

    >>> gaussian((2, 3), deviation=2.0).shape
    (2, 3)
    """
    w = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return w if (mean, deviation) == (0.0, 1.0) else (mean + deviation * w.astype(np.float64)).astype(np.float32)


def uniform(shape: tuple[int, int], seed: int = 0, *, low: float = -1.0, high: float = 1.0) -> FloatArray:
    """Evenly spread over [low, high): the best case of evenly spaced levels, for which theory is exact.

    Args:
        shape: [N, K], outputs and inputs.
        seed: other numbers for each.
    """
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def channels(shape: tuple[int, int], seed: int = 0, *, decades: float = DECADES) -> FloatArray:
    """Gaussian rows whose standard deviations span so many powers of ten: one scale for all loses the small ones.

    Args:
        shape: [N, K], outputs and inputs.
        seed: other numbers for each.
        decades: powers of ten between the smallest and the largest deviation.
    """
    rng = np.random.default_rng(seed)
    spreads = 10.0 ** rng.permutation(np.linspace(-decades / 2, decades / 2, shape[0]))
    return (rng.standard_normal(shape) * spreads[:, None]).astype(np.float32)


def outliers(
    shape: tuple[int, int], seed: int = 0, *, rate: float = OUTLIERS, size: float = OUTLIER_SIZE
) -> FloatArray:
    """Gaussian, a share `rate` of the weights (one at least) `size` standard deviations large, of either sign.

    Args:
        shape: [N, K], outputs and inputs.
        seed: other numbers for each.
    """
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape, dtype=np.float32)
    count = min(w.size, max(1, round(rate * w.size))) if w.size else 0
    w.reshape(-1)[rng.choice(w.size, count, replace=False)] = size * rng.choice([-1, 1], count)
    return w


def low_rank(shape: tuple[int, int], seed: int = 0, *, rank: int = 8, noise: float = 0.0) -> FloatArray:
    """A product of Gaussian matrices with `rank` columns and rows, of variance 1, and noise of that deviation.

    Args:
        shape: [N, K], outputs and inputs.
        seed: other numbers for each.
    """
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1])) / math.sqrt(max(1, rank))
    return (w + noise * rng.standard_normal(shape)).astype(np.float32)


def correlated(shape: tuple[int, int], seed: int = 0, *, correlation: float = 0.9) -> FloatArray:
    """Standard normal, neighbours in a row correlated so much (a stationary process of first order).

    Args:
        shape: [N, K], outputs and inputs.
        seed: other numbers for each.
        correlation: -1 to 1.
    """
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape)
    rest = math.sqrt(1 - correlation**2)
    for column in range(1, shape[1]):
        w[:, column] = correlation * w[:, column - 1] + rest * w[:, column]
    return w.astype(np.float32)


#: By name: weights [N, K] of a shape, a seed and parameters.
MAKERS: Mapping[str, Maker] = {m.__name__: m for m in (gaussian, uniform, channels, outliers, low_rank, correlated)}
#: Those of the suite that compares all formats.
SUITE = ("gaussian", "uniform", "channels", "outliers")
#: What a parameter may be.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "mean": (-1e30, 1e30),
    "deviation": (0, 1e30),
    "low": (-1e30, 1e30),
    "high": (-1e30, 1e30),
    "decades": (0, 60),
    "rate": (0, 1),
    "size": (0, 1e30),
    "rank": (1, LONGEST),
    "noise": (0, 1e30),
    "correlation": (-1, 1),
}


@dataclass(frozen=True)
class Made:
    """A maker with its parameters: what `parse` makes of words.

    Raises:
        BadRecipe: there is no such maker or parameter, or the parameter has no such value.
    """

    maker: str
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_types(Made, vars(self))
        if self.maker not in MAKERS:
            raise BadRecipe(f"unknown maker of weights '{self.maker}'; choose one of {', '.join(MAKERS)}")
        taken = inspect.signature(MAKERS[self.maker]).parameters
        known = [name for name, p in taken.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        for name, value in self.parameters.items():
            if name not in known:
                raise BadRecipe(f"{self.maker} weights have no '{name}'; they have {', '.join(known)}")
            low, high = _BOUNDS[name]
            if not low <= value <= high or (name == "rank" and value != int(value)):
                raise BadRecipe(f"{self.maker} weights cannot have {name} {value:g}: {low:g} to {high:g}")

    @property
    def label(self) -> str:
        """As it is written: `outliers rate=0.01`."""
        return " ".join([self.maker, *[f"{name}={value:g}" for name, value in self.parameters.items()]])

    def weights(self, shape: tuple[int, int], seed: int = 0) -> FloatArray:
        """[N, K] of this kind.

        Args:
            shape: outputs and inputs.
            seed: other numbers for each.

        Raises:
            BadRecipe: a length below 1, or so many that they would not be made in a while.
        """
        rows, columns = shape
        if not (1 <= rows <= LONGEST and 1 <= columns <= LONGEST and rows * columns <= MOST):
            raise BadRecipe(f"weights of {rows}×{columns} are not made: 1 to {LONGEST} each way, {MOST} in all")
        given = {name: int(value) if name == "rank" else value for name, value in self.parameters.items()}
        return MAKERS[self.maker](shape, seed, **given)


def parse(text: str) -> Made:
    """A maker and its parameters from words.

    Args:
        text: the maker's name, then NAME=NUMBER for each parameter.

    >>> parse("outliers rate=0.01 size=10").parameters
    {'rate': 0.01, 'size': 10.0}

    Raises:
        BadRecipe: no such maker or parameter, or no number.
    """
    maker, *words = text.split() or [""]
    parameters = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            parameters[name] = float(value)
        except ValueError:
            raise BadRecipe(f"'{word}' is no parameter of {maker} weights; example: outliers rate=0.01") from None
    return Made(maker, parameters)
