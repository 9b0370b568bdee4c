"""Shared by the algorithms that look at outputs: all codes of a layer, chosen one input after the other.

With H the Gram matrix of the layer's input and H = L · Lᵀ, the error of the outputs is |Lᵀ(w − q)|², and the rounding
is Babai's nearest plane in the lattice of Lᵀ's columns: each input takes over what those before it have left. What one
adds to the error is known as soon as it has its code, and no later one changes that. So where inputs that share scales
follow each other, several scales are tried for them, on the outputs rather than on the weights, and the best is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms._columns import Columns
from onnxq.formats import CodeArray, FloatArray

#: Inputs whose errors are handed on to all others at once, by a product of matrices.
CHUNK = 128
#: Factors of the scale that the weights alone have; and what a zero point is moved by, once there is a scale.
FACTORS, MOVES = (1.0, 0.8, 0.87, 0.93, 1.07, 1.15), (0, -1, 1)
#: Of scales that were fitted to codes already.
CLOSER = (1.0, 0.87, 0.94, 1.06, 1.13)
#: Numbers that are tried at once: they and what belongs to them stay near a core.
NUMBERS = 1 << 18


def ordered(diagonal: NDArray[np.float32], group: NDArray[np.intp] | None) -> NDArray[np.intp]:
    """The inputs, those of the smallest numbers first; those that share a scale beside each other.

    Args:
        diagonal: mean squares of the inputs, up to a factor.
        group: of each input, the number of its scale; None: whatever scales there are.
    """
    if group is None:
        return np.argsort(diagonal, kind="stable")
    means = np.bincount(group, diagonal) / np.maximum(np.bincount(group), 1)
    return np.lexsort((diagonal, group, means[group]))


def round_all(
    columns: Columns, order: NDArray[np.intp], lower: NDArray[np.float32], kept: np.dtype | None = None
) -> None:
    """Choose all codes, from the last input of `order` to the first.

    Args:
        lower: [K, K] the triangle L of the Gram matrix in that order.
        kept: the type that scales are rounded to; None: they stay as they are.
    """
    handed_on = np.zeros_like(columns.w)  # in order: what the errors of those rounded add to each
    for start, end in reversed(list(_pieces(columns.group[order], by_scale=kept is not None))):
        inputs, triangle, here = order[start:end], lower[start:end, start:end], handed_on[start:end]
        if kept is not None:
            _choose_scales(columns, inputs, triangle, here, kept)
        errors = np.empty((end - start, columns.w.shape[1]), np.float32)
        for i, error, _ in _rounded(columns.w[inputs], here, triangle, _encoding(columns, inputs)):
            errors[i] = error
        handed_on[:start] += lower[start:end, :start].T @ errors


def _rounded(
    w: FloatArray, here: FloatArray, triangle: NDArray[np.float32], round_to: Callable[[int, FloatArray], FloatArray]
) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Round some inputs, from the last to the first: which one it is, its error, and the error of what it was to be.

    Args:
        w: the weights of these inputs.
        here: what the errors of inputs before add to each; those of these are added to it.
        round_to: gives an input, by its place among these, the codes nearest to numbers: what the codes stand for.
    """
    for i in range(len(w) - 1, -1, -1):
        wanted = w[i] + here[i] / triangle[i, i]
        values = round_to(i, wanted)
        error = w[i] - values
        here[:i] += triangle[i, :i, None] * error
        yield i, error, wanted - values


def _encoding(columns: Columns, inputs: NDArray[np.intp]) -> Callable[[int, FloatArray], FloatArray]:
    return lambda i, wanted: columns.encode(int(inputs[i]), wanted)


def _pieces(group: NDArray[np.intp], *, by_scale: bool) -> Iterator[tuple[int, int]]:
    """Bounds of inputs that are gone through together: of one scale, or as many as are handed on at once."""
    if by_scale:
        bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
    else:
        bounds = [*range(0, len(group), CHUNK), len(group)]
    return itertools.pairwise(bounds)


def replaced(
    columns: Columns, inputs: slice, gram: NDArray[np.float32], slope: NDArray[np.float32], kept: np.dtype
) -> FloatArray:
    """Choose the codes, scales and zero points of inputs that share these anew, with those of all others as they are;
    each output keeps what it has unless that makes its error smaller. What is added to each of their numbers.

    Args:
        gram, slope: what `inputs` have of the Gram matrix, and of half of what the error loses by larger numbers.
    """
    order = np.argsort(gram.diagonal(), kind="stable")
    try:
        lower = np.linalg.cholesky(gram[np.ix_(order, order)])
    except np.linalg.LinAlgError:
        return np.zeros_like(slope)
    found = columns.rows(inputs)
    towards = np.linalg.solve(gram, slope)
    found.w = columns.values[inputs] + towards
    here = np.zeros_like(found.w)
    _choose_scales(found, order, lower, here, kept, CLOSER)
    left = np.zeros(here.shape[1], np.float32)
    for i, _, missed in _rounded(found.w[order], here, lower, _encoding(found, order)):
        left += np.square(missed * lower[i, i])
    better = left < np.einsum("kn,kn->n", slope, towards)
    added = np.where(better, found.values - columns.values[inputs], np.float32(0))
    columns.take_rows(found, inputs, better)
    return added


def _choose_scales(
    columns: Columns,
    inputs: NDArray[np.intp],
    triangle: NDArray[np.float32],
    here: FloatArray,
    kept: np.dtype,
    factors: Sequence[float] = FACTORS,
) -> None:
    """Give these inputs, which share one for each output, the scales and zero points of the least error."""
    group, count = int(columns.group[inputs[0]]), columns.w.shape[1]
    old = columns.scales[group].astype(np.float32)
    zeros = None if columns.zero_points is None else columns.zero_points[group].copy()
    with np.errstate(over="ignore"):
        tried = np.stack([old * np.float32(factor) for factor in factors]).astype(kept)
    usable = np.isfinite(tried) & (np.abs(tried) >= np.finfo(kept).tiny)
    tried = np.where(usable, tried, columns.scales[group])
    moves = MOVES if zeros is not None and zeros.dtype.kind == "u" else ()
    width = max(1, NUMBERS // (len(factors) * len(inputs)))
    for first in range(0, count, width):
        outputs = slice(first, first + width)
        part = columns.w[inputs, outputs], here[:, outputs]
        own = None if zeros is None else zeros[outputs]
        best = _best(columns, part, triangle, list(tried[:, outputs]), [own] * len(factors))
        scales = np.take_along_axis(tried[:, outputs], best[None], axis=0)[0]
        columns.scales[group, outputs] = scales
        if moves and own is not None and columns.zero_points is not None:
            most = (1 << columns.format.bits) - 1
            moved = [np.clip(own.astype(np.intp) + move, 0, most).astype(own.dtype) for move in moves]
            best = _best(columns, part, triangle, [scales] * len(moves), moved)
            columns.zero_points[group, outputs] = np.take_along_axis(np.stack(moved), best[None], axis=0)[0]


def _best(
    columns: Columns,
    part: tuple[FloatArray, FloatArray],
    triangle: NDArray[np.float32],
    scales: Sequence[NDArray],
    zeros: Sequence[CodeArray | None],
) -> NDArray[np.intp]:
    """[N] by which of these scales and zero points each output has the least error, of the first if several have.

    Args:
        part: the weights, and what errors of inputs before add to them.
    """
    count = len(scales)
    w, rest = (np.tile(each, (1, count)) for each in part)
    all_scales = np.concatenate(scales)
    all_zeros = None if zeros[0] is None else np.concatenate([each for each in zeros if each is not None])
    total = np.zeros(w.shape[1], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite error is never the least one
        for i, _, missed in _rounded(w, rest, triangle, lambda _, wanted: columns.tried(wanted, all_scales, all_zeros)):
            total += np.square(missed * triangle[i, i])
    total[np.isnan(total)] = np.inf
    return np.argmin(total.reshape(count, -1), axis=0)
