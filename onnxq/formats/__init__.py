"""Number formats: what stored numbers mean.

One file each; the file name is the word on the command line and the name of the class inside. A word may end in a
number that the class takes as its parameter: `uniform3` is `uniform(3)`. A format says how a scale follows from the
weights it covers (`fit`), which code stands for which number (`encode`, `decode`), and nothing about graphs, targets or
byte layouts. `kinds/` is what families share, and what a format is.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.boundary import typed
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats.kinds import arguments
from onnxq.formats.kinds.format import E8M0 as E8M0
from onnxq.formats.kinds.format import Again as Again
from onnxq.formats.kinds.format import CodeArray as CodeArray
from onnxq.formats.kinds.format import Fit as Fit
from onnxq.formats.kinds.format import FloatArray as FloatArray
from onnxq.formats.kinds.format import Format as Format
from onnxq.formats.kinds.format import QuantizedTensor as QuantizedTensor
from onnxq.formats.kinds.format import Rule as Rule
from onnxq.formats.kinds.format import ScaleArray as ScaleArray
from onnxq.formats.kinds.granularity import Granularity as Granularity
from onnxq.formats.kinds.maps import dynamic_map as dynamic_map
from onnxq.formats.kinds.maps import linear_map as linear_map
from onnxq.formats.kinds.nested import NestedScales as NestedScales
from onnxq.formats.kinds.nested import nest_dynamic as nest_dynamic
from onnxq.formats.kinds.nested import nest_linear as nest_linear
from onnxq.formats.kinds.nested import unnest as unnest


@functools.cache
def names() -> tuple[str, ...]:
    """The words of all formats, from the folder's file names."""
    return tuple(sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py")))


def is_known(name: str) -> bool:
    """Whether `get` has a format of this name, which may end in a parameter."""
    try:
        _named(name)
    except BadRecipe:
        return False
    return True


@typed
def get(name: str, levels: ArrayLike | None = None) -> Format:
    """The format called `name`, which may end in a parameter (`uniform3`, `nf4_dq512`).

    Args:
        levels: of a format whose codes index a table (`nf4`, `nf4_dq` …): the numbers to take in the place of its own,
            2 to 256 of them; the largest magnitude among them stands for the largest of a block.

    Raises:
        BadRecipe: no file of that name, a parameter it does not take, or no such levels; it says what there is.
    """
    if levels is None:
        return _named(name)
    from onnxq.formats.kinds import codebook

    return codebook.with_levels(_named(name), levels)


@functools.cache
def _named(name: str) -> Format:
    if name in names():
        return _class(name)()
    word, digits = re.fullmatch(r"(.*?)(\d{0,4000})", name, re.DOTALL).groups()  # type: ignore[union-attr]
    if digits and word in names() and (allowed := _class(word).parameters):
        if int(digits) not in allowed:
            what = _class(word).parameter
            raise BadRecipe(f"'{name}': {word} takes {allowed[0]} to {allowed[-1]} {what}, as in {word}{allowed[0]}")
        return _class(word)(int(digits))
    raise BadRecipe(f"unknown number format '{name}'; choose one of {', '.join(names())}")


def _class(word: str) -> Any:
    return getattr(importlib.import_module(f"onnxq.formats.{word}"), word)


@typed
def quantize(
    w: ArrayLike, word: str, granularity: Granularity | None = None, *, name: str = "w", levels: ArrayLike | None = None
) -> QuantizedTensor:
    """`w` in the format `word`, rounded to nearest as the format's own definition says.

    Args:
        w: an array of any shape and floating-point type, or nested lists of numbers.
        word: a name of `names()`, `uniform3`, `nf4_dq512` …
        granularity: by default the format's own blocks along the last axis, else one scale an index of the first axis
            (of a vector: one for all).
        name: of the weight, for what is said about it.
        levels: in the place of the format's own table, as `get` takes them.

    Returns:
        Codes of `w`'s shape, scales of `granularity.scale_shape(w.shape)`; `dequantize()` is the float32 weight.

    Raises:
        BadRecipe: there is no such format.
        BadModel: a number is not finite, or too large for the format.
        ValueError: `w` is no array of real numbers, or has no such axis.

    >>> q = quantize([[0.5, -1.0, 0.25, 0.75]], "int8", Granularity(axis=0))
    >>> q.codes.tolist()
    [[64, -127, 32, 95]]
    >>> q.dequantize().shape, q.nbytes
    ((1, 4), 8)
    """
    format, w = get(word, levels), arguments.numbers(w)
    try:
        return encode(format, w, (granularity or natural(format, w.ndim)).within(w.ndim), name)
    except BadModel as error:
        raise in_weight(error, name) from None


def nearest(x: ArrayLike, word: str, levels: ArrayLike | None = None) -> CodeArray:
    """The codes, in the shape of `x`, of the numbers of the format `word` that are nearest to `x`.

    That is what `quantize` does with weights that are divided by their scale: of a table of levels the index of the
    nearest one (halfway the lower one, in mxfp4 the one nearer to zero), of integers rint(x), clipped, of floats their
    bits in the format's own type. Zero points and minima are 0.

    Args:
        levels: in the place of the format's own table, as `get` takes them.

    Raises:
        BadRecipe: there is no such format.
        BadModel: a number is not finite, or too large for a format without scales.
        ValueError: `x` is no array of real numbers.
    """
    format = _plain(word, levels)
    numbers = as_float32(arguments.numbers(x, "array"), "x")
    scales, zeros = _neutral(format)
    return np.asarray(format.encode(numbers, Granularity(), scales, zeros).codes)


def values(codes: ArrayLike, word: str, levels: ArrayLike | None = None) -> FloatArray:
    """The numbers, in the shape of `codes`, that they stand for where the scale is 1: the inverse of `nearest`.

    Args:
        word: a name of `names()`.
        levels: in the place of the format's own table, as `get` takes them.

    Raises:
        BadRecipe: there is no such format.
        ValueError: a code that it does not have.
    """
    format = _plain(word, levels)
    given = np.asarray(codes)
    if format.code_type.kind in "iu":
        half = 1 << (format.bits - 1)
        low, high = (-half, half - 1) if format.code_type.kind == "i" else (0, 2 * half - 1)
        low = low if format.lowest is None else format.lowest
        if format.levels is not None:
            high = len(format.levels) - 1
        if given.dtype.kind not in "iu" or (given.size and not low <= int(given.min()) <= int(given.max()) <= high):
            raise ValueError(f"codes of {format.name} are integers from {low} to {high}")
        given = given.astype(format.code_type)
    scales, zeros = _neutral(format)
    return np.asarray(QuantizedTensor(format, Granularity(), given, scales, zeros).dequantize())


def _plain(word: str, levels: ArrayLike | None) -> Format:
    format = get(word, levels)
    return format.base or format


def _neutral(format: Format) -> tuple[NDArray | None, NDArray | None]:
    """A scale of 1, and a minimum of 0 where there is one."""
    scales = None if format.scale_type is None else np.ones((), np.float32).astype(format.scale_type)
    return scales, np.zeros((), format.offset_type) if format.has_minimum else None


def natural(format: Format, rank: int) -> Granularity:
    """How a weight of so many dimensions is mostly quantized: in the format's blocks along the last axis, else by
    the first axis, and a vector or single number as a whole.

    Args:
        rank: dimensions of the weight.
    """
    if format.default_block is not None and rank:
        return Granularity(rank - 1, format.default_block)
    return Granularity(0 if rank > 1 and format.scale_type is not None else None)


def encode(
    format: Format, w: NDArray, granularity: Granularity, name: str, axis: int = 0, start: int = 0
) -> QuantizedTensor:
    """The part `w`, of any type, of the weight `name` that begins at `start` of `axis`, in `format`.

    Args:
        granularity: which weights share a scale.

    Raises:
        BadModel: as `as_float32`, or of what the format does not hold.
        ValueError: `w` is no array of real numbers, or has no such axis.
    """
    from onnxq.formats.kinds import fast

    w = arguments.numbers(w)
    if format.base is not None:
        base, x = format.base, functools.partial(as_float32, w, name, axis, start)
        plain = encode(base, w, granularity, name, axis, start)
        return format.nest(plain, lambda scales, zeros: base.encode(x(), granularity, scales, zeros))
    made = fast.encode(format, w, granularity)
    return made if made is not None else format.encode(as_float32(w, name, axis, start), granularity)


def as_float32(w: NDArray, name: str, axis: int = 0, start: int = 0) -> FloatArray:
    """`w` as float32 in C order, if every number of it is finite there.

    Args:
        w: the part of the weight `name` that begins at `start` of `axis`.

    Raises:
        BadModel: the first number that is not, and its index in the whole weight.
    """
    with np.errstate(over="ignore"):  # float64 numbers that become infinite are refused below
        w = arguments.numbers(w)
        x = np.asarray(w, dtype=np.float32, order="C")
    if not np.isfinite(x).all():
        index = [int(i) for i in np.argwhere(~np.isfinite(x))[0]]
        bad = w[tuple(index)]
        if index:
            index[axis] += start
        beyond = ", beyond what float32 holds" if np.isfinite(bad) else ""
        raise BadModel(
            f"weight '{name}' holds {bad} at {index}{beyond}; "
            "repair the model, or keep the node that reads it in float (--keep)"
        )
    return x


def in_weight(error: BadModel, name: str) -> BadModel:
    """What a format says about a weight, with the weight's name in it.

    Args:
        error: what the format said.
    """
    text = str(error)
    return error if text.startswith("weight '") else BadModel(f"weight '{name}': {text}")
