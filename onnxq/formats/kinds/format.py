"""What a number format and a weight in it are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnxq.formats.kinds import arguments
from onnxq.formats.kinds.granularity import Granularity
from onnxq.formats.kinds.nested import SUPER_BLOCK, NestedScales

if TYPE_CHECKING:
    from onnxq.formats.kinds.codebook import Tables
    from onnxq.formats.kinds.super_blocks import StoredScales

FloatArray = NDArray[np.float32]
CodeArray = NDArray[np.generic]
#: float32, float16 or E8M0.
ScaleArray = NDArray[Any]
#: Makes a weight by scales, and zero points or minima.
Again = Callable[[ScaleArray, CodeArray | None], "QuantizedTensor"]
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
    nested: NestedScales | StoredScales | None = None

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
        if self.nested is not None:
            total += self.nested.nbytes
        if self.zero_points is not None and not (self.nested is not None and self.nested.holds_minima):
            is_code = self.zero_points.dtype == self.codes.dtype
            total += -(-self.zero_points.size * self.format.bits // 8) if is_code else self.zero_points.nbytes
        return total + (0 if self.scales is None or self.nested is not None else self.scales.nbytes)

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
    #: The lowest code, where it is not the lowest number of so many bits.
    lowest: int | None = None
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
    #: The format whose scales this one stores in 8 bits or fewer; its `nest` does that.
    base: Format | None = None
    #: Of the scales in 8 bits: int8 numbers that are divided by a factor, or uint8 indices of the dynamic map.
    nested_type: np.dtype | None = None
    #: Scales that share a factor then.
    nested_block: int = SUPER_BLOCK
    #: The formats in which a format of two levels stores its scales and minima, and how many of a row have one factor;
    #: None: it is of one level, has no minima, or one factor for all.
    stored_scales: Format | None = None
    stored_minima: Format | None = None
    super_block: int | None = None
    #: How the compiled library encodes it; None: numpy has to.
    rule: Rule | None = None
    #: What the kernels of the onnxq domain call its codes; None: they read none. Formats that differ in how their
    #: scales are chosen have one name, any other has that of the format; without scales the product is DenseMatMul.
    kernel: str | None = None
    #: Of codes of 2 or 3 bits, the kernel's word for the 4 bits that they become when a model is loaded; None: they
    #: become floats, or have a kernel of their own.
    widened: str | None = None
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
    def multiplied_as(self) -> str | None:
        """What the kernels of the onnxq domain that multiply by its codes, as they are or widened, call them."""
        return self.kernel or self.widened

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

    def nest(self, q: QuantizedTensor, again: Again | None = None) -> QuantizedTensor:
        """The weight `q` of `base` with all its scales in 8 bits or fewer.

        Args:
            again: gives the weight of `base` by scales and zero points that differ a little from those of `q`; a
                format whose codes are chosen for the scales that it stores takes its codes.
        """
        raise NotImplementedError
