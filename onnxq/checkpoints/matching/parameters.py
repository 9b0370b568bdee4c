"""Which constants of a model a checkpoint of all of it has numbers for, and which ones are computed or fixed.

    1. called weight or bias, if no waves
    2. read by products, kernels, recurrent layers, norms and tables, if they do not look computed
    3. of another name as modules have them (`cls_token`), if they do not look computed
    4. of a name that an exporter made up (`val_7`): perhaps, if they do not look computed

What looks computed: two numbers (masks), what rises or falls along an axis (frequencies, places), one wave along an
axis in each line (rotary tables, DFTs), be it an axis of a grid whose places lie one after another (DiT, Stable
Diffusion 3), bands (filters).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.origin import ORIGIN
from onnxq.model.weights import weights_of
from onnxq.quality import sqnr

WORDS = ("weight", "bias")
#: Inputs of operators that are parameters, beside what `model/weights.py` knows.
_READ = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (2,)),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), (1, 2)),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "PRelu"), (1,)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (3,)),
    "BatchNormalization": (1, 2, 3, 4),
    "SkipLayerNormalization": (2, 3, 4),
    "SkipSimplifiedLayerNormalization": (2, 3),
}
#: What torch's exporters call constants that nothing was computed from.
_LITERAL = re.compile(r"(^|[./])(val|scalar_tensor_default|zeros|ones|full|arange|Constant)(_\d+)?(_output_0)?$")
_FOLDED = re.compile(r"onnx::\w+_\d+$")
#: Fewer numbers than these do not tell by themselves whether they are computed: means of pixels, slopes.
FEW = 8
#: As many equations that hold by chance there are not.
MANY = 32
#: Numbers along an axis that are looked at.
LOOKED_AT = 256
#: Places along an axis of a grid.
SHORTEST = 4
#: What steps of a few numbers' logarithms differ by, where each number is the one before times the same.
EVEN = 1e-3
#: Of waves, in dB: what float16 leaves of them. Learned places are waves too, but not to that.
WAVES = 40.0


class Kind(enum.Enum):
    """What a constant is."""

    PARAMETER = enum.auto()
    PERHAPS = enum.auto()
    FIXED = enum.auto()


def kind_of(value: ir.Value) -> Kind:
    """What a constant of floats is, by its names, its readers and its numbers."""
    tensor = graph.constant(value)
    assert tensor is not None
    names = [str(name) for name in (value.name, value.meta.get(ORIGIN)) if name]
    is_named = any(name.rpartition(".")[2] in WORDS for name in names)
    w = _some_of(tensor)
    is_blank = bool(w.size) and not np.ptp(w)
    if is_named and not is_of_places(tensor):  # as places of Marian are, which it does not save
        return Kind.PARAMETER
    is_weight, is_read = _readers(value)
    if is_blank:
        return Kind.PARAMETER if is_weight else Kind.FIXED
    if (w.size < FEW and not is_read) or _is_computed(w) or is_grid(tensor.numpy()):
        return Kind.FIXED
    return Kind.PARAMETER if is_read or any(map(_is_of_modules, names)) else Kind.PERHAPS


def is_of_places(tensor: ir.TensorProtocol) -> bool:
    """Whether a constant is of sines and cosines."""
    return _is_of_waves(_some_of(tensor)) or is_grid(tensor.numpy())


def is_grid(w: NDArray[Any]) -> bool:
    """Whether rows are the places of a grid, and each column a wave along one axis of it and the same along others.

    Rows of zeros may stand before them: of tokens that have no place.
    """
    if w.ndim < 2 or not w.size or w.size != w.shape[-1] * w.shape[-2]:
        return False
    rows = w.reshape(w.shape[-2:])
    x, first = rows[:, :: -(-w.shape[-1] // LOOKED_AT)], next((i for i, r in enumerate(rows[:FEW]) if r.any()), 0)
    return any(_are_waves(axes) for part in (x, x[first:])[: 1 + bool(first)] for axes in _axes(part))


def is_literal(name: str) -> bool:
    """Whether a constant of this name is one that stands in the program, or that an operator is made with."""
    return bool(_LITERAL.search(name))


def is_of_older_exporter(name: str) -> bool:
    """Whether torch's older exporter computed the constant of this name, which it calls by what reads it."""
    return bool(_FOLDED.match(name))


def is_of_buffers(w: NDArray[np.float32]) -> bool:
    """Whether a checkpoint's numbers look computed; but what rises along one axis of several are decays of Mamba."""
    if is_grid(w):
        return True
    w = w[(slice(LOOKED_AT),) * w.ndim]
    if not np.isfinite(w).all():
        return True
    line = np.squeeze(w)
    if line.ndim == 1 and 2 < line.size < FEW and bool((line > 0).all()):  # frequencies
        return bool(np.ptp(np.diff(np.log(line.astype(np.float64)))) < EVEN)
    is_risen = line.ndim == 1 and _is_monotone(line, 0)
    return w.size >= FEW and (is_risen or np.unique(w).size <= 2 or _is_of_waves(w) or _is_banded(w))


def _some_of(tensor: ir.TensorProtocol) -> NDArray[np.float32]:
    """Where it is the same along an axis, as what is repeated for each sample, one of these."""
    w = tensor.numpy()
    w = np.asarray(w[(slice(LOOKED_AT),) * w.ndim]).astype(np.float32)
    for axis in range(w.ndim) if w.size and np.ptp(w) else ():
        first = w.take([0], axis)
        w = first if (w == first).all() else w
    return w


def _readers(value: ir.Value) -> tuple[bool, bool]:
    """(whether it is a weight of what reads it, whether it is that or another parameter).

    A matrix on the left is none: rotary frequencies often are.
    """
    is_weight = is_read = False
    for use in value.uses():
        is_right = use.idx or not graph.is_op(use.node, "MatMul", "Gemm")
        is_weight |= bool(is_right) and any(w.role.index == use.idx for w in weights_of(use.node, least=1))
        is_read |= use.idx in _READ.get(use.node.op_type, ())
    return is_weight, is_weight or is_read


def _is_of_modules(name: str) -> bool:
    """Whether modules have such names: with dots, or without numbers that tell nodes and values apart."""
    return not name.startswith("/") and "::" not in name and not re.search(r"(^|_)\d+$", name)


def _is_computed(w: NDArray[np.float32]) -> bool:
    if not np.isfinite(w).all():
        return True
    if w.size < FEW:
        return False
    is_monotone = any(_is_monotone(w, axis) for axis in range(w.ndim))
    return np.unique(w).size <= 2 or is_monotone or _is_of_waves(w) or _is_banded(w)


def _is_monotone(w: NDArray[np.float32], axis: int) -> bool:
    steps = np.diff(w, axis=axis)
    return steps.size >= FEW - 1 and bool((steps >= 0).all() or (steps <= 0).all())


def _is_of_waves(w: NDArray[np.float32]) -> bool:
    return bool(w.size) and bool(np.ptp(w)) and any(_is_wave(w, axis) for axis in range(w.ndim))


def _is_wave(w: NDArray[np.float32], axis: int) -> bool:
    """Whether x[n + 1] + x[n − 1] = 2 cos(ω) · x[n] along the axis, with a frequency for each line of it."""
    x = np.moveaxis(w, axis, 0)
    return (len(x) >= FEW or _freedoms(x) >= MANY) and _holds(x)  # of few places many frequencies tell it


def _freedoms(x: NDArray[Any]) -> int:
    """How many equations there are more than frequencies."""
    return (len(x) - 3) * (x.size // max(len(x), 1))


def _holds(x: NDArray[Any]) -> bool:
    """Whether the equation holds along the first axis."""
    x = x.astype(np.float64)
    full: NDArray[np.bool_] = np.array(
        [x.ndim == 1 or bool(line.any()) for line in x]
    )  # zeros are the place of padding
    full = full[2:] & full[1:-1] & full[:-2]
    if full.sum() < min(FEW, len(x)) - 2:
        return False
    both, middle = (x[2:] + x[:-2])[full], x[1:-1][full]
    energy = (middle**2).sum(0)
    factor = (both * middle).sum(0) / np.where(energy == 0, 1, energy)
    mean = both.mean(0)  # less which norms near 1 are no waves
    return sqnr(both - mean, factor * middle - mean) >= WAVES


def _axes(x: NDArray[Any]) -> Iterator[list[NDArray[Any]]]:
    """What the columns of each axis of a grid are along it, the last axis first, for each grid that rows may be.

    Columns of other axes than the last keep their number along that: they change at multiples of its size alone.
    """
    slow = np.flatnonzero((x[:SHORTEST] == x[0]).all(0))
    if len(x) < SHORTEST**2 or not slow.size:
        return
    at = np.flatnonzero((x[1:] != x[:-1])[:, slow].any(1)) + 1
    changes = x[at][:, slow] != x[at - 1][:, slow]
    steps = np.array([np.gcd.reduce(at[found]) if found.any() else 0 for found in changes.T])
    for size in range(SHORTEST, len(x) // SHORTEST + 1):
        if len(x) % size or not (others := slow[(steps > 0) & (steps % size == 0)]).size:
            continue
        own = np.setdiff1d(np.arange(x.shape[1]), slow[steps % size == 0])
        if own.size and (x[size, own] == x[0, own]).all() and (x[size:, own] == x[:-size, own]).all():
            before = x[::size, others]
            yield from ([x[:size, own], *axes] for axes in ([before], *_axes(before)))


def _are_waves(axes: Sequence[NDArray[Any]]) -> bool:
    """Whether all columns of axes of a grid are waves: of few places of each many frequencies of all tell it."""
    tells = all(len(x) >= FEW for x in axes) or sum(map(_freedoms, axes)) >= MANY
    return tells and all(map(_holds, axes))


def _is_banded(w: NDArray[np.float32]) -> bool:
    """Whether most of it is zero, and each row of it has one piece that is not."""
    if w.ndim < 2 or 2 * np.count_nonzero(w) > w.size:
        return False
    return any(_has_one_piece(lines) for lines in (w, np.swapaxes(w, -1, -2)))


def _has_one_piece(w: NDArray[np.float32]) -> bool:
    edges = np.diff(np.pad(w != 0, [(0, 0)] * (w.ndim - 1) + [(1, 1)]).astype(np.int8), axis=-1)
    return bool((np.abs(edges).sum(-1) <= 2).all())
