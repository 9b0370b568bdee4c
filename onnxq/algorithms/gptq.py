"""gptq: codes that make the layer's outputs right on the data, rather than each weight.

Weights are rounded one input after the other; the error that rounding one leaves in the outputs is taken over by those
that are still to be rounded, as far as the data let one input stand in for another. Where blocks of inputs share
scales, block follows block, and each takes the one of several scales with the least error. Then all are gone through
again: each block's scale is fitted anew to its codes, the block is rounded anew with scales beside that one, and each
code is replaced if another one does better with all others as they are. Output channels for which the data-free codes
serve held-back samples better keep those.

With H the Gram matrix of the layer's input and H = L · Lᵀ, the error of the outputs is |Lᵀ(w − q)|², and the rounding
is Babai's nearest plane in the lattice of Lᵀ's columns.

Source: Frantar et al., GPTQ (ICLR 2023); that it is Babai's method, which needs no inverse: Chen et al., The Geometry
of LLM Quantization (2025). The second part is coordinate descent as in Behdin et al., QuantEase (2023), with scales.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms import mse
from onnxq.algorithms._base import base_first
from onnxq.algorithms._cholesky import factor
from onnxq.algorithms._columns import Columns
from onnxq.algorithms._making_up import Shift, making_up
from onnxq.algorithms._rounding import CHUNK, ordered, replaced, round_all
from onnxq.formats import CodeArray, FloatArray, Format, Granularity, QuantizedTensor
from onnxq.formats.kinds.affine import in_half_scales
from onnxq.summaries.evidence import Layer

#: Part of the mean square of all inputs that is added to each one's: the data tell little of those they hardly move.
DAMPING = 0.03
#: Times that it is added, if sums of float32 numbers are not positive definite.
ATTEMPTS = 4
#: Times that all codes are gone through again.
SWEEPS = 3
#: The first of them, in which whole blocks are rounded anew, with several scales.
REPLACING = 2
#: Needs what data say of the layer.
NEEDS_DATA = True
#: Inputs whose errors are handed on to each other at once.
INNER = 32
#: Inputs that share a scale, at most, where several scales are tried; and rows of data for each input, at least: what
#: a few rows have in common by chance is no guide.
LONGEST, ROWS_PER_INPUT = 128, 4
#: Outputs that are worked on at a time, which do not depend on each other: what they take is what bounds memory.
OUTPUTS = 1024


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return format.bits <= 4 and format.scale_type is not None and op_type == "Conv"  # for products gptaq is better


@base_first
def quantize(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
    *,
    layer: Layer,
    half_scales: bool = False,
) -> QuantizedTensor:
    """`w` in `format`, chosen for the inputs that `layer` tells of.

    Args:
        w: of shape [K, N], [N, K] or that of a convolution's kernel; `layer.channel` is the axis of its outputs.
        scales, zero_points: to be kept as they are; None: the best that can be found.
        half_scales: round scales to float16.

    A weight whose scales do not belong to one output channel each, as those of blocks along that axis, gets data-free
    codes, and so does one in a format without scales.
    """
    return solved(w, format, granularity, scales, zero_points, layer=layer, half_scales=half_scales)


class Further(NamedTuple):
    """Another way, which begins with the codes of gptq.

    Attributes:
        word: its name.
        codes: gives columns with other codes, for a Gram matrix.
    """

    word: str
    codes: Callable[[Columns, NDArray[np.float32]], Columns]


def solved(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None = None,
    zero_points: CodeArray | None = None,
    *,
    layer: Layer,
    half_scales: bool = False,
    further: Further | None = None,
) -> QuantizedTensor:
    """`quantize`, and where there is a `further` way, its codes for those output channels that they serve better."""
    granularity = granularity.within(w.ndim)
    start = _data_free(w, format, granularity, scales, zero_points, half_scales=half_scales)
    if not w.size or start.scales is None or not _is_by_channel(granularity, layer.channel):
        return start
    columns = Columns.of(w, start, layer.channel)
    may_refit = scales is None and granularity.axis is not None and not format.powers_of_two
    kept = (np.dtype(np.float16) if half_scales else start.scales.dtype) if may_refit else None
    tries = kept is not None and granularity.block is not None and granularity.block <= LONGEST
    tries = tries and layer.count >= ROWS_PER_INPUT * len(columns.w)
    prepared = _prepared(layer, columns.by_input if tries else None)
    if prepared is None:
        return start
    for group, outputs in _in_slices(columns.w.shape[1], layer.groups):
        part, found = columns.part(outputs), columns.part(outputs)
        gram = prepared.of_group(group, columns.inputs)
        held_back, in_float = (rows[:, group, columns.inputs] for rows in prepared.held_back)
        if prepared.shift is not None:
            shift = (prepared.shift[group] @ part.w[np.argsort(columns.inputs)])[columns.inputs]
            found.w = making_up(part.w, shift, held_back, in_float)
        round_all(found, gram.order, gram.lower, kept if tries else None)
        _descend(found, gram.damped, kept, tries=tries)
        by = np.full(part.w.shape[1], "gptaq" if layer.follows else "gptq", object)
        if further is not None:
            other = further.codes(found, gram.damped)
            _descend(other, gram.damped, kept, tries=tries)
            if len(held_back):
                errors = [_errors(each, part.w, held_back, in_float) for each in (other, found)]
            else:
                errors = [_on_gram(each, gram.damped) for each in (other, found)]
            better = errors[0] < errors[1]
            found.take(other, slice(None), better)
            found, by[better] = found.decoded(), further.word
        better = _is_better(found, part, held_back, in_float)
        columns.take(found, outputs, better)
        layer.chosen.update(by[better].tolist())
        layer.chosen.update({"mse": int((~better).sum())})
    return columns.tensor(start, layer.channel)


def wanted(w: FloatArray, layer: Layer) -> FloatArray:
    """[K, N]: the real weights that are best in the place of `w` behind quantized layers; behind float ones `w`."""
    prepared = _prepared(layer)
    if prepared is None or prepared.shift is None:
        return w
    rows, in_float = (x[:, 0] for x in prepared.held_back)
    return making_up(w, prepared.shift[0] @ w, rows, in_float)


def _data_free(
    w: FloatArray,
    format: Format,
    granularity: Granularity,
    scales: FloatArray | None,
    zero_points: CodeArray | None,
    *,
    half_scales: bool,
) -> QuantizedTensor:
    """What there is without data: the scales to begin with."""
    if scales is not None:
        return format.encode(w, granularity, scales, zero_points)
    q = mse.quantize(w, format, granularity)
    return in_half_scales(w, q) if half_scales else q


def _is_by_channel(granularity: Granularity, channel: int) -> bool:
    if granularity.block is not None:
        return granularity.axis != channel
    return granularity.axis in (None, channel)


class _Gram(NamedTuple):
    """What is needed of a Gram matrix.

    Attributes:
        damped: [K, K] the matrix itself.
        order: [K] its rows, those of the largest numbers last.
        lower: [K, K] the lower triangle that times its transpose is the matrix in that order.
    """

    damped: NDArray[np.float32]
    order: NDArray[np.intp]
    lower: NDArray[np.float32]


class _Prepared(NamedTuple):
    """The same for each group of a layer, and the rows of the samples held back."""

    damped: NDArray[np.float32]
    order: NDArray[np.intp]
    lower: tuple[NDArray[np.float32], ...]
    held_back: tuple[NDArray[np.float32], NDArray[np.float32]]
    shift: tuple[Shift, ...] | None = None

    def of_group(self, group: int, inputs: NDArray[np.intp]) -> _Gram:
        """For a weight that has its inputs in this order."""
        damped, order = self.damped[group], self.order[group]
        if np.array_equal(inputs, np.arange(len(inputs))):
            return _Gram(damped, order, self.lower[group])
        return _Gram(damped[np.ix_(inputs, inputs)], np.argsort(inputs)[order], self.lower[group])


#: Weights that are encoded in slices ask for the same one several times in a row, and so do weights of one input.
_last: dict[Hashable, _Prepared | None] = {}


def _prepared(layer: Layer, group: NDArray[np.intp] | None = None) -> _Prepared | None:
    """None where the data are no numbers to solve with.

    Args:
        group: of each input, the number of its scale, where those of one are to follow each other.
    """
    key = layer.seen, None if group is None else group.tobytes()
    if key not in _last:
        _last.clear()
        _last[key] = _prepare(layer, group)
    return _last[key]


def _in_slices(count: int, groups: int) -> Iterator[tuple[int, slice]]:
    """(group of the layer, some of its outputs), for all of the `count` outputs."""
    per_group = count // groups
    for group in range(groups):
        for start in range(0, per_group, OUTPUTS):
            end = min(per_group, start + OUTPUTS)
            yield group, slice(group * per_group + start, group * per_group + end)


def forget() -> None:
    """Drop what was prepared last: four matrices as large as a layer's Gram matrix."""
    _last.clear()


def _prepare(layer: Layer, group: NDArray[np.intp] | None) -> _Prepared | None:
    seen = layer.gram()
    sums, cross = seen.sums.astype(np.float32, copy=False), seen.cross
    k = sums.shape[-1]
    mean = np.trace(sums, axis1=1, axis2=2, dtype=np.float64) / k
    if not np.isfinite(mean).all():
        return None
    sums /= np.where(mean > 0, mean, 1).astype(np.float32)[:, None, None]
    if cross is not None:
        cross /= np.where(mean > 0, mean, 1).astype(np.float32)[:, None, None]
        cross -= sums
    order = np.stack([ordered(matrix.diagonal(), group) for matrix in sums])
    for _ in range(ATTEMPTS):
        sums[:, np.arange(k), np.arange(k)] += np.float32(DAMPING)
        with contextlib.suppress(np.linalg.LinAlgError):
            lower = tuple(map(factor, sums, order))
            shift = None if cross is None else tuple(map(Shift.of, sums, cross, [seen.rows] * len(sums)))
            return _Prepared(sums, order, lower, layer.held_back(), shift)
    return None


def _descend(columns: Columns, gram: NDArray[np.float32], kept: np.dtype | None, *, tries: bool = False) -> None:
    """Go through all inputs `SWEEPS` times and give each the codes that are best with all others as they are.

    Args:
        kept: the type that scales are rounded to; None: they stay as they are.
        tries: whether several scales are tried.
    """
    runs = _runs(columns.group)
    slope = gram @ (columns.w - columns.values)  # half of what the error loses by making a weight larger
    for sweep in range(SWEEPS):
        for chunk in _chunks(runs):
            whole = slice(chunk[0][0], chunk[-1][1])
            before, near = columns.values[whole].copy(), slope[whole].copy()
            there = _Near(whole.start, gram[whole, whole], near)
            for start, end in chunk:
                _descend_run(columns, start, end, there, kept, tries=tries and sweep < REPLACING)
            slope -= gram[:, whole] @ (columns.values[whole] - before)


class _Near(NamedTuple):
    """The inputs that are gone through at present: the first one, their part of the Gram matrix and of the slope."""

    first: int
    gram: NDArray[np.float32]
    slope: NDArray[np.float32]

    def moved(self, inputs: slice, by: FloatArray) -> None:
        self.slope[:] -= self.gram[:, inputs] @ by


def _descend_run(columns: Columns, start: int, end: int, near: _Near, kept: np.dtype | None, *, tries: bool) -> None:
    """Once through the inputs that share one scale, which is fitted anew to the codes they have."""
    if kept is not None:
        run = slice(start - near.first, end - near.first)
        inputs = slice(start, end)
        near.moved(run, _refit(columns, inputs, near.gram[run, run], near.slope[run], kept))
        if tries:
            near.moved(run, replaced(columns, inputs, near.gram[run, run], near.slope[run], kept))
    for low in range(start, end, INNER):
        inputs = slice(low, min(end, low + INNER))
        here = slice(inputs.start - near.first, inputs.stop - near.first)
        before, slope, gram = columns.values[inputs].copy(), near.slope[here].copy(), near.gram[here, here]
        for i, k in enumerate(range(inputs.start, inputs.stop)):
            values = columns.encode(k, before[i] + slope[i] / gram[i, i])
            slope -= gram[:, i, None] * (values - before[i])
        near.moved(here, columns.values[inputs] - before)


def _runs(group: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Bounds of the inputs that share a scale, which follow each other."""
    bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
    return list(itertools.pairwise(bounds))


def _chunks(runs: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Runs that follow each other, of `CHUNK` inputs together at most, or one of more."""
    chunk: list[tuple[int, int]] = []
    for run in runs:
        if chunk and run[1] - chunk[0][0] > CHUNK:
            yield chunk
            chunk = []
        chunk.append(run)
    yield chunk


def _refit(
    columns: Columns, inputs: slice, gram: NDArray[np.float32], slope: NDArray[np.float32], kept: np.dtype
) -> FloatArray:
    """Give these inputs the scale of least error for the codes that they have, where it is a number to divide by; what
    that adds to each of their numbers."""
    steps = columns.steps(inputs)
    curvature, towards = (np.einsum("kn,kn->n", steps, each) for each in (gram @ steps, slope))
    group = int(columns.group[inputs.start])
    old = columns.scales[group].astype(np.float32)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        new = (old + towards / curvature).astype(kept).astype(np.float32)
        has_sign = new * old > 0
    usable = np.isfinite(new) & has_sign & (np.abs(new) >= np.finfo(kept).tiny) & (curvature > 0)
    new = np.where(usable, new, old)
    columns.scales[group] = new
    added = steps * (new - old)
    columns.values[inputs] += added
    return added


def _is_better(
    found: Columns, start: Columns, x: NDArray[np.float32], in_float: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """[N] whether an output is nearer to what it was on rows [rows, K] with the codes of `found` than of `start`."""
    if not len(x):
        return np.ones(start.w.shape[1], np.bool_)
    return np.asarray(_errors(found, start.w, x, in_float) <= _errors(start, start.w, x, in_float))


def _errors(
    columns: Columns, w: FloatArray, x: NDArray[np.float32], in_float: NDArray[np.float32]
) -> NDArray[np.float32]:
    """[N]: of the outputs on rows [rows, K], which were those of `w` on float ones."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.square(x @ columns.values - in_float @ w).sum(axis=0))


def _on_gram(columns: Columns, gram: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N]: of the outputs, on the rows that the matrix is of."""
    off = columns.values - columns.w
    return np.asarray(np.einsum("kn,kn->n", off, gram @ off))
