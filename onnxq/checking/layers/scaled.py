"""Channels that lie scaled in one of two models, which those who read them take back: as balancing writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checking.layers.side import Side
from onnxq.quality import decibel
from onnxq.quality.ranges import brought_near

#: Numbers of a channel from which its scale is told: of fewer it would take in what rounding did to them, of which it
#: takes in one part in so many. `check` looks at so many samples, of which some layers make one number each.
LEAST = 16
#: dB that taking the scales back gains at least: rounding, and whatever else is no scale, leaves nothing to gain.
GAIN = 10.0
#: dB up to which a value differs enough to be looked at.
UNLIKE = 30.0


@dataclass(frozen=True)
class Scale:
    """What the channels along an axis of A's value are multiplied by in B.

    Attributes:
        by: [channels]
    """

    axis: int
    by: NDArray[np.float64]

    def put_on(self, x: NDArray) -> NDArray:
        return (x * self._along(x)).astype(_kind(x))

    def taken_off(self, x: NDArray) -> NDArray:
        return (x / self._along(x)).astype(_kind(x))

    def _along(self, x: NDArray) -> NDArray[np.float64]:
        return np.expand_dims(self.by, [i for i in range(x.ndim) if i != self.axis])


@dataclass
class ScaleSums:
    """By channel, sums over the numbers of a value in both models.

    Attributes:
        by_axis: axis → [3, channels] squares in A, products, squares in B; None where channels come and go.
        count: of all numbers.
    """

    by_axis: dict[int, NDArray[np.float64] | None] = field(default_factory=dict)
    count: int = 0

    def add(self, wanted: NDArray, got: NDArray) -> None:
        """Of arrays of one shape; the axes of channels are the second, of images, and the last."""
        self.count += wanted.size
        wanted, got = brought_near(wanted, got)
        for axis in {1, wanted.ndim - 1} if wanted.ndim > 1 else ():
            shape = wanted.shape
            parts = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
            x, y = wanted.reshape(parts), got.reshape(parts)
            pairs = ((x, x), (x, y), (y, y))
            sums = np.stack([np.einsum("oci,oci->c", *pair, dtype=np.float64) for pair in pairs])
            before = self.by_axis.setdefault(axis, np.zeros_like(sums))
            self.by_axis[axis] = before + sums if before is not None and before.shape == sums.shape else None

    def sqnr(self, scale: Scale | None) -> float:
        """dB between the two, once `scale` is taken off."""
        known = [sums for sums in self.by_axis.values() if sums is not None]
        if not known:
            return 0.0
        sums = known[0] if scale is None else self.by_axis[scale.axis]
        assert sums is not None
        return decibel(float(sums[0].sum()), _noise(sums, np.ones(1) if scale is None else scale.by))

    def scale(self) -> Scale | None:
        """The one that, by least squares, B has; None where it has none, or nothing tells it."""
        found = [_scale(axis, sums, self.count) for axis, sums in self.by_axis.items() if sums is not None]
        best = max(filter(None, found), key=self.sqnr, default=None)
        return best if best is not None and self.sqnr(best) >= self.sqnr(None) + GAIN else None


def _kind(x: NDArray) -> type[np.floating]:
    return np.float64 if x.dtype == np.float64 else np.float32


def _noise(sums: NDArray[np.float64], by: NDArray[np.float64]) -> float:
    x, xy, y = sums
    return float(np.maximum(0.0, x - 2 * xy / by + y / by**2).sum())


def _scale(axis: int, sums: NDArray[np.float64], count: int) -> Scale | None:
    x, xy, _ = sums
    alive = (x > 0) & (xy > 0)
    if not np.isfinite(sums).all() or count < LEAST * x.size or not alive.any():
        return None
    return Scale(axis, np.divide(xy, x, out=np.ones_like(x), where=alive))


def taken_back(side: Side, sums: Mapping[str, ScaleSums | None], outputs: Iterable[ir.Value]) -> dict[str, Scale]:
    """The scales, by A's values, that every reader takes back: it is then nearer to what it is in A than the value.

    Without that, what multiplies a channel is an error like any other.

    Args:
        side: of A.
        sums: of the values that were paired; None of one that is alike as it is.
        outputs: values that nobody in the model may take anything back from.
    """
    readers = _readers(side)
    found: dict[str, Scale] = {}
    ends = {value.name or "" for value in outputs}

    def sqnr(name: str) -> float:
        own = sums[name]
        return UNLIKE if own is None else own.sqnr(found.get(name))

    for name in reversed([value.name or "" for value in side.made]):
        own = sums.get(name)
        scale = None if own is None or name in ends else own.scale()
        if own is None or scale is None:
            continue
        behind = _paired(readers, name, sums)
        if behind and all(each in found or sqnr(each) >= own.sqnr(None) + GAIN for each in behind):
            found[name] = scale
    return found


def _readers(side: Side) -> dict[str, list[str]]:
    """By value, those that are made of it."""
    found: dict[str, list[str]] = {}
    for node in side.nodes:
        for value in filter(None, node.inputs):
            found.setdefault(side.root(value).name or "", []).append(side.made_by(node).name or "")
    return found


def _paired(readers: Mapping[str, list[str]], name: str, known: Mapping[str, object]) -> set[str]:
    """The first values behind one that were paired."""
    found: set[str] = set()
    pending, seen = list(readers.get(name, ())), {name}
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in known:
            found.add(each)
        else:
            pending += readers.get(each, ())
    return found
