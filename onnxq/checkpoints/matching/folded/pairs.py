"""Which BatchNorm of a checkpoint is in which kernel of a model: the exporter says it, or modules tell which may be,
and numbers which one is.

Kernels are read once, and so are BatchNorms: of both a number for each channel is all that their likeness takes. With
w and v the rows of a channel, of the checkpoint and of the model, |v − s·w|² = |v|² − 2·s·(v·w) + s²·|w|².
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.epsilons import EPSILONS
from onnxq.checkpoints.matching.put import LIKE
from onnxq.checkpoints.stored import key, real
from onnxq.errors import BadModel, amount
from onnxq.model import graph
from onnxq.model.weights import Weight
from onnxq.passes.normalize.fold_batchnorm import along_outputs
from onnxq.quality import MAX_DB, decibel, sqnr

#: Channels of kernels, times those of the BatchNorms beside each, that are compared; a pair counts as so many at least.
MOST, LEAST_CHANNELS = 1 << 30, 256
Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A product with a constant bias, or none.

    Attributes:
        module: of the checkpoint, that it is; "" if that has none.
        norm: the BatchNorm that is in it, as the exporter says; "" if it does not.
        epsilon: of that, as the exporter says.
    """

    weight: Weight
    module: str
    channels: int
    norm: str = ""
    epsilon: float | None = None

    @property
    def bias(self) -> Vector:
        inputs = self.weight.node.inputs
        tensor = graph.constant(inputs[2]) if len(inputs) > 2 else None
        return np.zeros(self.channels) if tensor is None else tensor.numpy().astype(np.float64).reshape(-1)

    @property
    def place(self) -> tuple[str, int]:
        """Where BatchNorms are that may be in it, and their channels."""
        return _parent(self.module), self.channels

    def scaled(self, w: NDArray, scale: NDArray) -> NDArray:
        node = self.weight.node
        groups = graph.attribute_int(node, "group", 1)
        return w * along_outputs(scale, w.shape, groups, node.op_type == "ConvTranspose")

    def by_channel(self, w: NDArray) -> NDArray:
        """The sum over all else."""
        node = self.weight.node
        if node.op_type != "ConvTranspose":
            return w.reshape(len(w), -1).sum(1)
        groups = graph.attribute_int(node, "group", 1)
        parted = w.reshape(groups, -1, *w.shape[1:])
        return parted.reshape(*parted.shape[:3], -1).sum((1, 3)).reshape(-1)


@dataclass(frozen=True, eq=False)
class _Numbers:
    """A kernel by channel, and the power of all: `power` and `bias` are the model's, `shared` is of both."""

    power: float
    energy: Vector
    shared: Vector
    bias: Vector
    before: Vector


@dataclass(frozen=True, eq=False)
class _Norms:
    """BatchNorms of one number of channels beside each other: a row for each."""

    names: list[str]
    gamma: Vector
    beta: Vector
    mean: Vector
    var: Vector


@dataclass(frozen=True, eq=False)
class Pair:
    """A kernel and the BatchNorm that is in it, in numbers."""

    kernel: Kernel
    norm: str
    _told: _Numbers
    #: Whether the model's kernel is like this, so that it tells something of ε.
    is_alike: bool
    gamma: Vector
    beta: Vector
    mean: Vector
    var: Vector

    def _made(self, epsilon: float) -> tuple[Vector, Vector]:
        """(the factor of each channel, the bias)."""
        scale = self.gamma / np.sqrt(self.var + epsilon)
        return scale, (self._told.before - self.mean) * scale + self.beta

    def made(self, epsilon: float, tensors: Mapping[str, Any]) -> tuple[NDArray, Vector]:
        """Kernel and bias."""
        scale, bias = self._made(epsilon)
        w = _read(tensors, self.kernel.module, "weight", 0.0, self.kernel.channels)
        return self.kernel.scaled(w, scale), bias

    def channels(self) -> tuple[Vector, Vector]:
        """What `epsilons.py` asks: the variances that the model's kernel tells, and the checkpoint's."""
        energy, shared = self._told.energy, self._told.shared
        is_told = (energy > 0) & (shared * self.gamma > 0) & (self.var > 0) & self.is_alike
        u = np.square(self.gamma[is_told] * energy[is_told] / shared[is_told])
        return u, self.var[is_told]

    def between(self, epsilons: Sequence[float]) -> float:
        """How alike kernels and biases of the first ε are to those of the others, in dB."""
        (scale, bias), *others = (self._made(epsilon) for epsilon in epsilons)
        energy = self._told.energy
        found = (
            x
            for s, b in others
            for x in (decibel(float(energy @ scale**2), float(energy @ (scale - s) ** 2)), sqnr(bias, b))
        )
        return min(found, default=MAX_DB)


def told_pairs(kernels: Sequence[Kernel], tensors: Mapping[str, Any]) -> list[Pair]:
    """What the exporter says of kernels that the checkpoint has; one BatchNorm may be in several."""
    found = []
    for kernel in kernels:
        numbers = _numbers(kernel, tensors) if kernel.norm and kernel.module else None
        norms = _norms([kernel.norm] if numbers else [], kernel.channels, tensors)
        if numbers is not None and norms.names:
            found.append(_pair(kernel, numbers, norms, 0, is_alike=bool(_likeness(numbers, norms)[0] > -np.inf)))
    return found


def pairs(kernels: Sequence[Kernel], norms: Sequence[str], tensors: Mapping[str, Any]) -> list[Pair]:
    """A BatchNorm for each kernel that one is in, the most like first; nothing has two.

    Raises:
        BadModel: a number is not finite, or there are too many of both.
    """
    by_place: dict[tuple[str, int], list[str]] = {}
    for norm in norms:
        by_place.setdefault(place_of(norm, tensors), []).append(norm)
    beside = [(kernel, place) for kernel in kernels if kernel.module and (place := kernel.place) in by_place]
    if sum(len(by_place[place]) * max(place[1], LEAST_CHANNELS) for _, place in beside) > MOST:
        raise BadModel(
            f"which of {amount(len(norms), 'BatchNorm')} is in which of {amount(len(kernels), 'kernel')} takes too "
            "long to tell by their numbers: too many of them are in one module"
        )
    read = {place: _norms(by_place[place], place[1], tensors) for place in dict.fromkeys(place for _, place in beside)}
    tried = [
        (kernel, told, read[place], _likeness(told, read[place]))
        for kernel, place in beside
        if np.ptp(kernel.weight.tensor.numpy()) and (told := _numbers(kernel, tensors)) is not None
    ]
    return list(_best(tried))


def place_of(norm: str, tensors: Mapping[str, Any]) -> tuple[str, int]:
    """The same of a BatchNorm."""
    return _parent(norm), tensors[key(norm, "running_mean")].size


def _parent(module: str) -> str:
    return module.rpartition(".")[0]


def _best(tried: Sequence[tuple[Kernel, _Numbers, _Norms, Vector]]) -> Iterator[Pair]:
    """The most like of all, and so on with what is left; of as like ones the first."""
    alike = [np.flatnonzero(likeness > -np.inf) for *_, likeness in tried]
    if not alike:
        return
    likeness = np.concatenate([each[-1][rows] for each, rows in zip(tried, alike, strict=True)])
    owners, places = np.repeat(np.arange(len(alike)), [*map(len, alike)]), np.concatenate(alike)
    done, used = set[int](), set[str]()
    for i in np.argsort(-likeness, kind="stable"):
        owner, row = int(owners[i]), int(places[i])
        kernel, told, norms, _ = tried[owner]
        norm = norms.names[row]
        if owner not in done and norm not in used:
            done.add(owner)
            used.add(norm)
            yield _pair(kernel, told, norms, row, is_alike=True)


def _pair(kernel: Kernel, told: _Numbers, norms: _Norms, row: int, *, is_alike: bool) -> Pair:
    four = (norms.gamma[row], norms.beta[row], norms.mean[row], norms.var[row])
    return Pair(kernel, norms.names[row], told, is_alike, *four)


def _read(tensors: Mapping[str, Any], module: str, part: str, default: float, channels: int) -> NDArray[np.float64]:
    source = key(module, part)
    if source not in tensors:
        return np.full(channels, default)
    return real(source, tensors[source]).astype(np.float64)


def _norms(names: Sequence[str], channels: int, tensors: Mapping[str, Any]) -> _Norms:
    """Those whose numbers are what a BatchNorm has."""
    kept, rows = list[str](), list[list[Vector]]()
    for name in names:
        parts = (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0))
        row = [_read(tensors, name, part, default, channels) for part, default in parts]
        if all(x.shape == (channels,) for x in row) and not (row[3] < 0).any():
            kept.append(name)
            rows.append(row)
    stacked = np.array(rows).reshape(len(rows), 4, channels)
    return _Norms(kept, *(stacked[:, i] for i in range(4)))


def _numbers(kernel: Kernel, tensors: Mapping[str, Any]) -> _Numbers | None:
    """Of a kernel whose module has a bias for each channel, or none."""
    own = kernel.weight.tensor.numpy().astype(np.float64)
    w, before = (_read(tensors, kernel.module, part, 0.0, kernel.channels) for part in ("weight", "bias"))
    if before.shape != (kernel.channels,):
        return None
    energy, shared = kernel.by_channel(w**2), kernel.by_channel(w * own)
    return _Numbers(float(np.square(own).sum()), energy, shared, kernel.bias, before)


def _likeness(kernel: _Numbers, norms: _Norms) -> Vector:
    """How much kernel and bias are like the model's own, in dB, with each of the norms, by the best ε; −∞: no more
    than without it."""
    bias = float(np.square(kernel.bias).sum())
    best = np.full(len(norms.names), -np.inf)
    for epsilon in EPSILONS:
        scale = norms.gamma / np.sqrt(norms.var + epsilon)
        noise = kernel.power - 2 * scale @ kernel.shared + scale**2 @ kernel.energy
        shift = np.square((kernel.before - norms.mean) * scale + norms.beta - kernel.bias).sum(1)
        best = np.maximum(best, np.minimum(_decibels(kernel.power, noise), _decibels(bias, shift)))
    plain = kernel.power - 2 * kernel.shared.sum() + kernel.energy.sum()
    bare = min(decibel(kernel.power, max(0.0, float(plain))), sqnr(kernel.bias, kernel.before))
    return np.where((best >= LIKE) & (best > bare), best, -np.inf)


def _decibels(signal: float, noises: Vector) -> Vector:
    """`quality.decibel` of many, where what rounding leaves of nothing is that."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.clip(10 * (np.log10(signal) - np.log10(noises)), -MAX_DB, MAX_DB)
    return np.where(noises <= 0, MAX_DB, found)
