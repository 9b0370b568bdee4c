"""Number formats: what stored numbers mean.

One file each; the file name is the word on the command line and the name of the class inside. A word may end in a
number that the class takes as its parameter: `uniform3` is `uniform(3)`. A format says how a scale follows from the
weights it covers (`fit`), which code stands for which number (`encode`, `decode`), and nothing about graphs, targets or
byte layouts. Families share code by the plain functions of the files that begin with an underscore.
"""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from onnxq.boundary import typed
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats.kinds import arguments
from onnxq.formats.kinds.granularity import Granularity as Granularity
from onnxq.formats.kinds.maps import dynamic_map as dynamic_map
from onnxq.formats.kinds.maps import linear_map as linear_map
from onnxq.formats.kinds.nested import SUPER_BLOCK
from onnxq.formats.kinds.nested import NestedScales as NestedScales
from onnxq.formats.kinds.nested import nest_dynamic as nest_dynamic
from onnxq.formats.kinds.nested import nest_linear as nest_linear
from onnxq.formats.kinds.nested import unnest as unnest

if TYPE_CHECKING:
    from onnxq.formats.kinds.codebook import Tables

FloatArray = NDArray[np.float32]
CodeArray = NDArray[np.generic]
#: float32, float16 or E8M0.
ScaleArray = NDArray[Any]
#: Powers of two in 8 bits, 2^(u − 127): the scales of OCP's MX formats.
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A weight in a number format, before any byte layout.

    `codes` has the weight's own shape, one element a code. `scales` (in the type they are stored in) and `zero_points`
    have `granularity.scale_shape(shape)`; zero points are of the dtype of `codes` and None when all are zero, or, in
    formats with a minimum (q4_1, q5_1, uniform), the floating-point numbers that code 0 stands for. Formats without
    scales (float16) hold None. With `nested`, the scales are what that decodes to, and only it is stored.

    Raises:
        ValueError: codes of another type than the format's, or scales or zero points that are not one for each group.
    """

    format: Format
    granularity: Granularity
    codes: CodeArray
    scales: ScaleArray | None = None
    zero_points: CodeArray | None = None
    nested: NestedScales | None = None

    def __post_init__(self) -> None:
        if self.codes.dtype != self.format.code_type:
            raise ValueError(f"{self.format.name} has codes of type {self.format.code_type}, not {self.codes.dtype}")
        granularity = self.granularity.within(self.codes.ndim)
        object.__setattr__(self, "granularity", granularity)
        if (self.scales is None) != (self.format.scale_type is None):
            raise ValueError(f"{self.format.name} has {'scales' if self.scales is None else 'no scales'}")
        if self.format.has_minimum and self.zero_points is None:
            raise ValueError(f"{self.format.name} has a minimum for each scale")
        wanted = granularity.scale_shape(self.codes.shape)
        for what, array in (("scales", self.scales), ("zero points", self.zero_points)):
            if array is not None:
                arguments.require_shape(what, array, wanted)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight, and of its codes."""
        return self.codes.shape

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The weight that these codes stand for, computed in float32.

        Args:
            dtype: float32, float16, bfloat16 or float64, to which that is rounded, half to even.

        Raises:
            BadModel: a number of it is too large for `dtype`.
            ValueError: another type.
        """
        return arguments.as_float(self.format.decode(self), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes (packed), of the scales as they are stored, and of the zero points (packed) or minima."""
        total = -(-self.codes.size * self.format.bits // 8)
        if self.zero_points is not None:
            is_code = self.zero_points.dtype == self.codes.dtype
            total += -(-self.zero_points.size * self.format.bits // 8) if is_code else self.zero_points.nbytes
        if self.nested is not None:
            return total + self.nested.nbytes
        return total + (0 if self.scales is None else self.scales.nbytes)

    @property
    def bits_per_weight(self) -> float:
        """`nbytes` in bits, a weight; scales and zero points are counted."""
        return 8 * self.nbytes / max(1, self.codes.size)


class Fit(IntEnum):
    """What a scale follows from, as the compiled encoder (encode_rows.cc) numbers it."""

    RANGE, ABSMAX, EXTREME, LEVELS, MICRO, GGUF_SIGNED, GGUF_ABSMAX = range(7)


@dataclass(frozen=True)
class Rule:
    """How the compiled encoder finds scales and codes."""

    fit: Fit
    #: The largest code, where the fit does not imply it.
    qmax: int = 0


class Format:
    """What every file of this folder defines, under its own file name: facts and three functions.

    All that others need to know of a format is here, so that a new one is one new file. What a format does not say is
    as the defaults below.
    """

    name: str
    #: Bits of a code.
    bits: int
    code_type: np.dtype
    #: Type of the scales as the format itself makes them; None: there are none.
    scale_type: np.dtype | None = np.dtype(np.float32)
    #: Of the zero points, or of the (floating-point) minima; None: there are neither.
    offset_type: np.dtype | None = None
    #: Weights a scale covers along the contraction axis when the user names no block; None: one scale a channel.
    default_block: int | None = None
    #: Whether its definition has no other block than the default.
    has_fixed_block: bool = False
    #: Whether scales can be nothing but powers of two.
    powers_of_two: bool = False
    #: Numbers that its word may end in, each of which is a format of its own, and what they count.
    parameters: range = range(0)
    parameter: str = "bits"
    #: The numbers that codes index, and the tables to find them by; None: codes are numbers themselves.
    levels: FloatArray | None = None
    tables: Tables | None = None
    #: The format whose scales this one stores in 8 bits; its `nest` does that.
    base: Format | None = None
    #: Of the scales in 8 bits: int8 numbers that are divided by a factor, or uint8 indices of the dynamic map.
    nested_type: np.dtype | None = None
    #: Scales that share a factor then.
    nested_block: int = SUPER_BLOCK
    #: How the compiled library encodes it; None: numpy has to.
    rule: Rule | None = None
    #: What the kernels of the onnxq domain call its codes; None: they read none. Formats that differ in how their
    #: scales are chosen have one name, any other has that of the format; without scales the product is DenseMatMul.
    kernel: str | None = None
    #: `quant_type` of onnxruntime's MatMulBnb4; None: it does not multiply by it.
    bnb4: int | None = None
    #: GGUF's own name of it; None: it has none.
    gguf: str | None = None
    #: The version of the standard operators that brought the type of its codes; 0: one of the oldest.
    opset: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether codes are integers, which stand for themselves times a scale, less a zero point if there is one."""
        return self.levels is None and self.code_type.kind in "iu"

    @property
    def blocks_are_spelled(self) -> bool:
        """Whether standard operators can turn blocks of codes into numbers when a model is loaded."""
        scales_are_plain = self.scale_type is not None and self.scale_type != E8M0 and self.base is None
        return self.bits in (4, 8) and self.code_type.kind in "iu" and scales_are_plain and not self.has_minimum

    @property
    def has_minimum(self) -> bool:
        """Whether code 0 stands for a floating-point number of its own in each group."""
        return self.offset_type is not None and self.offset_type.kind == "f"

    @property
    def is_dense(self) -> bool:
        """Whether a kernel multiplies by the numbers as they are, without scales."""
        return self.kernel is not None and self.scale_type is None

    def fit(self, w: FloatArray, granularity: Granularity) -> tuple[FloatArray | None, NDArray | None]:
        """The format's own scales and zero points for `w` (round to nearest, nothing clipped).

        Args:
            w: finite, of any shape.
            granularity: which weights share a scale.
        """
        raise NotImplementedError

    def encode(
        self,
        w: FloatArray,
        granularity: Granularity,
        scales: ScaleArray | None = None,
        zero_points: CodeArray | None = None,
    ) -> QuantizedTensor:
        """Codes of the finite weight `w`; with `scales` None those of `fit` are used.

        Args:
            granularity: which weights share a scale.
            zero_points: or minima, of formats that have them; given with `scales`, of the same shape.
        """
        raise NotImplementedError

    def decode(self, q: QuantizedTensor) -> FloatArray:
        """The float32 weight of `q`."""
        raise NotImplementedError

    def nest(self, q: QuantizedTensor) -> QuantizedTensor:
        """The weight `q` of `base` with all its scales in 8 bits."""
        raise NotImplementedError


@functools.cache
def names() -> tuple[str, ...]:
    """The words of all formats, from the folder's file names."""
    return tuple(sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py")))


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
    from onnxq.formats.kinds import own_levels

    return own_levels.with_levels(_named(name), levels)


@functools.cache
def _named(name: str) -> Format:
    if name in names():
        return _class(name)()
    word, digits = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
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
        return format.nest(encode(format.base, w, granularity, name, axis, start))
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
