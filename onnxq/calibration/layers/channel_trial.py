"""What scaling the channels of an activation does to the layers that read it, tried on a few rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq import algorithms
from onnxq.formats import Format, Granularity
from onnxq.summaries.seen_rows import LayerOfRows

#: Outputs of a layer that are tried: as many tell as all. Fewer where data choose their codes, which takes longer.
OUTPUTS, BY_DATA_OUTPUTS = 512, 128


@dataclass(frozen=True, eq=False)
class ChannelTrial:
    """Layers that read one activation.

    Attributes:
        channels: how many the activation has.
        weights: [groups, outputs of a group, K] each.
        formats: of each, and which weights share a scale: those of an output, or blocks along K.
        rows: [rows, groups, K] of the activation as each of them reads it, those to fit on and those held back.
        range: [channels], the lowest and highest number of each.
        bits: of the activation's codes, which have one scale; None: it stays in float.
        by_data: whether data choose the codes of weights, of each; none do if it is empty.
    """

    channels: int
    weights: Sequence[NDArray[np.float32]]
    formats: Sequence[tuple[Format, Granularity]]
    rows: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]
    range: tuple[NDArray[np.float64], NDArray[np.float64]]
    bits: int | None
    by_data: Sequence[bool] = ()

    @functools.cached_property
    def largest_weights(self) -> NDArray[np.float64]:
        """[channels]: the largest magnitude of a weight behind each."""
        sizes = [np.abs(w).max(axis=1).reshape(self.channels, -1).max(axis=1) for w in self.weights]
        return np.max(sizes, axis=0).astype(np.float64)

    def errors(self, factors: NDArray[np.float32]) -> tuple[float, ...]:
        """The sum over the layers of noise to signal at their outputs, on each kind of rows.

        Of a layer in groups that is the mean over these: how large one is beside another says nothing of what it is
        worth to the layers behind, as a normalization that was there before it was folded made them alike.
        """
        errors = [0.0, 0.0]
        ways = self.by_data or [False] * len(self.weights)
        for every, how, both, by_data in zip(self.weights, self.formats, self.rows, ways, strict=True):
            w = every[:, :: -(-every.shape[1] // (BY_DATA_OUTPUTS if by_data else OUTPUTS))]
            groups, _, k = w.shape
            along = np.repeat(factors, groups * k // self.channels).reshape(groups, 1, k)
            seen = LayerOfRows.of(both[0] / along[:, 0], 0) if by_data else None
            q = self._coded(w * along, *how, seen)
            for kind, rows in enumerate(both):
                x = rows.transpose(1, 0, 2)
                wanted = x @ w.swapaxes(1, 2)
                noise = self._rounded(x / along, factors) @ q.swapaxes(1, 2) - wanted
                power, error = (np.square(y, dtype=np.float64).sum(axis=(1, 2)) for y in (wanted, noise))
                has_power = power > 0
                errors[kind] += float((error[has_power] / power[has_power]).sum()) / max(1, int(has_power.sum()))
        return tuple(errors)

    def _coded(
        self, w: NDArray[np.float32], format: Format, granularity: Granularity, seen: LayerOfRows | None
    ) -> NDArray[np.float32]:
        flat = np.ascontiguousarray(w.reshape(-1, w.shape[2]))
        if seen is None:
            q = algorithms.get(algorithms.choose("MatMul", format, granularity))(flat, format, granularity)
        else:
            q = algorithms.WITH_DATA["gptq"](flat, format, granularity, layer=seen)
        return q.dequantize().reshape(w.shape)

    def _rounded(self, x: NDArray[np.float32], factors: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.bits is None:
            return x
        low, high = float((self.range[0] / factors).min()), float((self.range[1] / factors).max())
        most = (1 << self.bits) - 1
        step = np.float32(max(max(high, 0.0) - min(low, 0.0), float(np.finfo(np.float32).tiny) * most) / most)
        zero = np.rint(-min(low, 0.0) / step)
        return np.asarray((np.clip(np.rint(x / step) + zero, 0, most) - zero) * step, np.float32)
