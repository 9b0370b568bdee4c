"""Which ε BatchNorms had that an exporter folded into kernels: one for a model, or for modules of it that come from
different libraries (an encoder of one, a decoder of another).

A kernel tells the scale of each channel, hence u = (γ / scale)² = a · var + ε, where training on since the export has
moved each channel by a few percent, and all of them by a. Where variances differ from channel to channel, or have not
moved at all (a = 1), one ε explains u better than the others: by how much is the logarithm of the odds. Those of all
kernels of a module add up, as long as no part of it clearly has another ε. An ε that nobody expects is the offset of
the line through u over var, where all expected ones are far from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: What is added to a variance: of torch, and of what came from TensorFlow or YOLO, which is rarer; and what hardly any
#: library has, which only counts where it explains more than both of these.
USUAL = (1e-5, 1e-3)
EPSILONS = (*USUAL, 1e-4, 1e-6, 1e-12)
#: Odds of a thousand to one are a decision, of a million to one an objection of a part to the whole.
DECIDED = float(np.log(1000))
OBJECTION = 2 * DECIDED
#: By these a rare one leads before it counts.
_LIKELY = float(np.log(100))
#: Of float32, and of the logarithm of a, whose standard deviation the latter is.
_ROUNDING, _DRIFT = 1e-6, 0.3
#: What differs by less was not trained on: a is 1 then.
_UNMOVED = 1e-5
#: Channels that tell something about an ε and a drift.
_LEAST = 3
#: Modules around a kernel that are looked at, from the outermost one on.
_DEPTH = 16
#: Errors of an ε by which all that are usual have to be away from it to be excluded: the noise is a guess. And those by
#: which another one may be.
_SURE, _WIDE = 10.0, 2.0
#: What is less hardly matters, whichever it is.
_SMALL = 1e-6
#: Of a slope: if noise took more of it, the offset is mostly noise.
_FLAT = 0.05
Vector = NDArray[np.float64]


def decide(modules: Sequence[str], channels: Sequence[tuple[Vector, Vector]]) -> list[tuple[float, ...]]:
    """For each kernel, each ε that is not out of the question, the more usual ones first: where it is one, numbers
    decide. Where they tell one that is not among `EPSILONS`, it is the first, and those that it may be come behind it.

    Args:
        modules: the names of the kernels, which tell what they are parts of.
        channels: (u, var) of each kernel, where both are numbers above 0.
    """
    told: dict[str, Vector] = {}
    scopes = [[*_scopes(module, number)] for number, module in enumerate(modules)]
    for around, (u, var) in zip(scopes, channels, strict=True):
        own = np.array([_evidence(u, var, epsilon) for epsilon in EPSILONS])
        for scope in around:
            told[scope] = told.get(scope, 0) + own
    left = {scope: _left(each) for scope, each in told.items()}
    split = {
        scope
        for around in scopes
        for i, scope in enumerate(around)
        if any(_objects(told[part], left[scope]) for part in around[i + 1 :])
    }
    usual = [_of_kernel([left[scope] for scope in around if scope not in split]) for around in scopes]
    return [own or each for own, each in zip(_unexpected(scopes, channels), usual, strict=True)]


def limit(channels: Sequence[tuple[Vector, Vector]]) -> float | None:
    """The largest ε that kernels of one do not rule out; None where they tell nothing."""
    fit = _pooled([fit for u, var in channels if (fit := _fit(u, var)) is not None])
    return None if fit is None else max(fit.epsilon, 0.0) + _WIDE * fit.error


@dataclass(frozen=True)
class _Fit:
    """u = a · var + ε by least squares of relative errors: ε, by how much it may be off, and which share of the slope
    noise may have taken."""

    epsilon: float
    error: float
    flat: float

    def epsilons(self) -> tuple[float, ...]:
        """The roundest number that it may be, and the outermost ones; none where an expected one is near."""
        near = any(epsilon <= 2 * self.epsilon <= 4 * epsilon or not self.excludes(epsilon) for epsilon in EPSILONS)
        if self.epsilon < _SMALL or self.flat > _FLAT or near:
            return ()
        rounded = (float(f"{self.epsilon:.{digits}e}") for digits in range(9))
        round_one = next((each for each in rounded if abs(each - self.epsilon) <= self.error), self.epsilon)
        return round_one, self.epsilon - _WIDE * self.error, self.epsilon + _WIDE * self.error

    def excludes(self, epsilon: float) -> bool:
        return abs(self.epsilon - epsilon) > _SURE * self.error


def _unexpected(scopes: Sequence[Sequence[str]], channels: Sequence[tuple[Vector, Vector]]) -> list[tuple[float, ...]]:
    """For each kernel what numbers of the widest scope tell beside all of `EPSILONS`; () where they tell nothing."""
    fits: dict[str, list[_Fit]] = {}
    for around, (u, var) in zip(scopes, channels, strict=True):
        own = _fit(u, var)
        for scope in around:
            fits.setdefault(scope, []).extend([] if own is None else [own])
    pooled = {scope: _pooled(each) for scope, each in fits.items()}
    told = {scope: fit.epsilons() for scope, fit in pooled.items() if fit is not None}
    return [next((told[scope] for scope in around if told.get(scope)), ()) for around in scopes]


def _pooled(fits: Sequence[_Fit]) -> _Fit | None:
    """That of all together, where none of them contradicts it; None where one does, or there is none."""
    if not fits:
        return None
    # Variances that moved on make each ε too large: taking the mean does not make errors less.
    numbers = np.array([(fit.epsilon, fit.error, fit.flat) for fit in fits])
    shares = numbers[:, 1] ** -2
    pooled = _Fit(*map(float, shares @ numbers / shares.sum()))
    return None if any(fit.excludes(pooled.epsilon) for fit in fits) else pooled


def _fit(u: Vector, var: Vector) -> _Fit | None:
    """None where there is no line that variances may be on which moved since. The error has two parts: of noise in u,
    and of variances that moved by as much, which makes the slope flat."""
    if u.size < _LEAST:
        return None
    with np.errstate(all="ignore"):
        one, x = 1 / u, var / u
        n, xy, xx, y, all_y = one @ one, one @ x, x @ x, one.sum(), x.sum()
        spread = n * xx - xy * xy
        slope, epsilon = (n * all_y - xy * y) / spread, (y * xx - xy * all_y) / spread
        noise = max(np.square(slope * x + epsilon * one - 1).sum() / (u.size - 2), _ROUNDING**2)
        flat = noise * n * xx / spread
        error = np.sqrt(noise * xx / spread) + abs(slope) * xy / n * flat
        is_line = abs(np.log(slope)) <= 2 * _DRIFT and np.isfinite((epsilon, error, flat)).all()
    return _Fit(float(epsilon), float(error), float(flat)) if is_line else None


def _scopes(module: str, number: int) -> Iterator[str]:
    """The whole model, the modules around a kernel, and the kernel by itself."""
    yield ""
    parts = module.split(".", _DEPTH)[:-1]
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])
    yield f"{number} "


def _of_kernel(left: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """By the widest scope that decides, else by the widest one; what is rare counts in that already, if at all."""
    if not {*left[0]} <= {*USUAL}:
        return left[0]
    return next((epsilons for epsilons in left if len(epsilons) == 1), left[0])


def _left(told: Vector) -> tuple[float, ...]:
    """Each ε that is not out of the question."""
    usual = told[: len(USUAL)].max()
    counts = [i for i, each in enumerate(told) if i < len(USUAL) or each >= usual + _LIKELY]
    best = told[counts].max()
    return tuple(EPSILONS[i] for i in counts if told[i] > best - DECIDED)


def _objects(told: Vector, epsilons: Sequence[float]) -> bool:
    """Whether a part clearly has none of these."""
    return bool(told.max() - max(told[EPSILONS.index(epsilon)] for epsilon in epsilons) >= OBJECTION)


def _evidence(u: Vector, var: Vector, epsilon: float) -> float:
    """The logarithm of how likely u is."""
    if u.size < _LEAST:
        return 0.0

    def spread(drifts: Vector) -> Vector:
        apart = np.log(u) - np.log(drifts[:, None] * var + epsilon)
        return np.asarray(np.square(apart).mean(1) + _ROUNDING**2)

    drifts = np.exp(np.linspace(-3 * _DRIFT, 3 * _DRIFT, 61))
    for _ in range(6):  # the grid is narrowed around its best point
        best, step = drifts[spread(drifts).argmin()], np.log(drifts[1] / drifts[0])
        drifts = best * np.exp(np.linspace(-step, step, 21))
    variance = spread(drifts).min()
    free = -u.size / 2 * np.log(variance) - np.log(_DRIFT / np.sqrt(variance / u.size))
    still = spread(np.ones(1))[0]
    return float(max(free, -u.size / 2 * np.log(still)) if still < _UNMOVED**2 else free)
