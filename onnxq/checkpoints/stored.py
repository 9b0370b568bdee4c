"""A layer as a checkpoint stores it, whoever wrote it: `schemes/` finds these, `match.py` puts them into a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.checkpoints.tensors import readable
from onnxq.errors import BadModel
from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments

#: Times the largest code of any format, and another such number beside it, this is finite in float32.
SAFE = 1e30
#: Of zero points: codes of 8 bits less these are exact in float32.
_MOST_ZERO = 1 << 23
#: Of quantizing, by the words of configurations: neither GPTQ's tensors nor AWQ's.
_METHODS = {"aqlm", "bitnet", "bitsandbytes", "compressed-tensors", "eetq", "exl2", "exl3", "fp8"}
_METHODS |= {"higgs", "hqq", "quanto", "quip", "spqr", "torchao", "vptq"}


@dataclass(frozen=True, eq=False)
class Stored:
    """A weight [out, in] of y = x · wᵀ + bias, whose tensors have been looked at and fit each other.

    Attributes:
        source: the name of its largest tensor, for what is said about it.
        shape: (out, in).
        format: of its codes; None: onnxq has none that holds them, or it is stored in floats.
        is_float: whether it is stored in floats, and stays that.
        granularity: which of its weights share a scale.
        read: makes the weight; the only thing that takes time and memory. Without a format an array of floats.
        half_scales: whether the scales are float16, and stay that.
        bias: the name of the tensor that is added, and that.
        order: [in] which input each column belongs to, where columns were sorted; None: they lie as they are.
        rows: [out] where each row of the weight as models mostly have it lies here; None: in its place.
    """

    source: str
    shape: tuple[int, int]
    format: Format | None
    granularity: Granularity
    read: Callable[[], QuantizedTensor | NDArray]
    half_scales: bool = False
    bias: tuple[str, NDArray] | None = None
    is_float: bool = False
    order: NDArray[np.int64] | None = None
    rows: NDArray[np.int64] | None = None

    def weights(self) -> QuantizedTensor | NDArray:
        """The weight in its format, or floats.

        Raises:
            BadModel: codes and scales, each a number, make one that is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            made = self.read()
            is_finite = _is_finite(made) if isinstance(made, QuantizedTensor) else bool(np.isfinite(made).all())
            if not is_finite:
                raise BadModel(f"'{self.source}' holds weights that are not finite: its scales are too large")
        return made

    def floats(self) -> NDArray[np.float32]:
        """The weight [out, in], columns in the order of its inputs."""
        made = self.weights()
        w = made.dequantize() if isinstance(made, QuantizedTensor) else arguments.numbers(made).astype(np.float32)
        if self.order is None:
            return w
        back = np.empty_like(w)
        back[:, self.order] = w
        return back


def _is_finite(q: QuantizedTensor) -> bool:
    """Looks at weights only where scales, or minima, do not tell. Some formats end where float32 does."""
    parts = [part.astype(np.float32) for part in (q.scales, q.zero_points) if part is not None]
    if not all(np.isfinite(part).all() for part in parts):
        return False
    if all(np.abs(part).max(initial=0) <= SAFE for part in parts):
        return True
    return bool((np.abs(q.dequantize()) < np.finfo(np.float32).max).all())


@dataclass(frozen=True, eq=False)
class Layer:
    """What a scheme found by the names of tensors alone.

    Attributes:
        name: what stands before the parts' own names; "" where nothing does.
        scheme: the word of what wrote it.
        tensors: all names that belong to it, whether they are there or not.
        open: looks at the tensors.

    `open` raises:
        BadModel: a tensor is missing, of another type or shape, or holds numbers that cannot be.
    """

    name: str
    scheme: str
    tensors: tuple[str, ...]
    open: Callable[[], Stored]
    #: Other names that its weight may have in a model.
    aliases: tuple[str, ...] = field(default=())
    #: Whether it is several of the checkpoint's, which the model has nowhere but in one.
    is_joined: bool = False


def key(name: str, part: str) -> str:
    """What a tensor of the layer `name` is called."""
    return f"{name}.{part}" if name else part


def names_with(tensors: Iterable[str], part: str) -> list[str]:
    """The layers that have a tensor called so, in the order of the file."""
    return [name.removesuffix(part).removesuffix(".") for name in tensors if name == part or name.endswith(f".{part}")]


def required(tensors: Mapping[str, Any], name: str, main: str, part: str) -> NDArray:
    """The tensor `part` of a layer.

    Raises:
        BadModel: there is none.
    """
    found = optional(tensors, name, part)
    if found is None:
        raise BadModel(f"'{key(name, main)}' has no {key(name, part)}")
    return found


def optional(tensors: Mapping[str, Any], name: str, part: str) -> NDArray | None:
    """The tensor `part` of a layer, if it has one.

    Raises:
        BadModel: it is of a type that numpy lacks.
    """
    found = readable(tensors.get(key(name, part)))
    return found if isinstance(found, np.ndarray) else None


def require_alone(tensors: Mapping[str, Any], name: str, main: str, *others: str) -> None:
    """Refuse a layer that also has one of `others`, which would change what its numbers mean.

    Raises:
        BadModel: it has.
    """
    for part in others:
        if key(name, part) in tensors:
            raise BadModel(f"'{key(name, main)}' has '{key(name, part)}' beside it, which onnxq does not read there")


def require_method(config: Mapping[str, Any], source: str, what: str, *others: str) -> None:
    """Refuse a tensor whose names and shapes say `what`, where the configuration says that it is something else.

    Raises:
        BadModel: it says one of `_METHODS`, or of `others`.
    """
    method = str(config.get("quant_method", "")).lower()
    if method in _METHODS or method in others:
        raise BadModel(f"'{source}' is a tensor of {what}, but the configuration says quant_method {method}")


def of_type(name: str, array: NDArray, *kinds: Any) -> NDArray:
    """The tensor, if its type is one of `kinds`.

    Raises:
        BadModel: it is another.
    """
    if array.dtype not in [np.dtype(kind) for kind in kinds]:
        words = " or ".join(np.dtype(kind).name for kind in kinds)
        raise BadModel(f"'{name}' is of type {array.dtype}, not {words}")
    return array


def real(name: str, array: NDArray) -> NDArray:
    """Finite numbers as float16, if they are that, else as float32.

    Raises:
        BadModel: the tensor `name` holds other things.
    """
    if array.dtype.kind not in "fV":
        raise BadModel(f"'{name}' is of type {array.dtype}, not of real numbers")
    try:
        with np.errstate(over="ignore"):
            wide = arguments.numbers(array).astype(np.float16 if array.dtype == np.float16 else np.float32)
    except ValueError:
        raise BadModel(f"'{name}' is of type {array.dtype}, not of real numbers") from None
    if not np.isfinite(wide).all():
        raise BadModel(f"'{name}' holds numbers that are not finite")
    return wide


def of_shape(name: str, array: NDArray, *shape: int) -> NDArray:
    """The tensor, if it is of that shape.

    Raises:
        BadModel: it is of another.
    """
    if array.shape != shape:
        raise BadModel(f"'{name}' is of shape {list(array.shape)}, not {list(shape)}")
    return array


def group_of(source: str, k: int, groups: int, said: int | None = None, of: str = "inputs") -> int:
    """Inputs that share a scale, of `k` in `groups`: as told (-1: all of a row), a power of two, or equal groups.

    A power of two goes before equal groups: 960 in 8 are 128 each with half of that in the last, not 120.

    Raises:
        BadModel: it does not fit.
    """
    if groups == 1:
        return k
    usual = 1 << (-(-k // max(1, groups)) - 1).bit_length()
    group = (said if said > 0 else k) if said else usual if -(-k // usual) == groups else k // max(1, groups)
    if groups < 1 or group < 1 or -(-k // group) != groups:
        raise BadModel(f"'{source}': {k} {of} do not fall into {groups} groups of {max(0, group)}")
    return group


def bias_of(tensors: Mapping[str, Any], name: str) -> tuple[str, NDArray] | None:
    """The bias of a layer, called as everybody calls it."""
    found = optional(tensors, name, "bias")
    return None if found is None else (key(name, "bias"), found)


def require_near(source: str, points: NDArray) -> None:
    """Refuse integers that are no zero points, before a type that is too short for them is taken.

    Raises:
        BadModel: one is far beyond all codes.
    """
    if points.size and points.dtype.kind in "iu" and max(-int(points.min()), int(points.max())) > _MOST_ZERO:
        raise BadModel(f"the zero points of '{source}' are larger than any code by far")


def integers(
    source: str,
    bits: int,
    group: int,
    codes: Callable[[], NDArray[np.uint8]],
    scales: Callable[[], NDArray],
    zeros: Callable[[], NDArray] | None,
    shape: tuple[int, int],
    *,
    minima: Callable[[], NDArray] | None = None,
    **rest: Any,
) -> Stored:
    """w = scale · (code − zero), codes 0 … 2^bits − 1, in the format of 2, 4 or 8 bits that holds them.

    Args:
        group: inputs that share a scale.
        codes: makes [out, in].
        scales, zeros: read [out, groups]; without zeros, or where all of them are 2^(bits − 1), the format is a
            symmetric one, and where one is no integer among the codes it is `uniform`, with minima.
        minima: reads [out, groups], what code 0 stands for, where the file holds that in the place of zeros.
        rest: of `Stored`.

    Raises:
        BadModel: a scale or zero is not finite.
    """
    steps, granularity = real(f"scales of {source}", scales()), Granularity(1, group)
    width, middle = next(n for n in (2, 4, 8) if n >= bits), 1 << (bits - 1)
    if minima is not None:
        lowest, wide = real(f"biases of {source}", minima()), steps.astype(np.float64)
        points: NDArray = np.where(steps == 0, -1, -lowest.astype(np.float64) / np.where(steps == 0, 1, wide))
    else:
        points = np.full(steps.shape, middle) if zeros is None else np.asarray(zeros())
        if points.dtype.kind not in "iu":
            points = real(f"zeros of {source}", points)
    wanted = granularity.scale_shape(shape)
    if steps.shape != wanted or points.shape != wanted:
        raise BadModel(f"'{source}' has scales of shape {list(steps.shape)}, where {list(wanted)} belongs")
    require_near(source, points)
    is_symmetric = bool((points == middle).all())
    is_affine = bool(((points == np.rint(points)) & (points >= 0) & (points < 1 << width)).all())
    word = f"int{width}" if is_symmetric else f"uint{width}" if is_affine else f"uniform{max(2, bits)}"
    format, has_half = formats.get(word), steps.dtype == np.float16 and (is_symmetric or is_affine)
    kept = points.astype(np.uint8) if is_affine and not is_symmetric else None

    def read() -> QuantizedTensor:
        step = real(source, scales())
        if is_symmetric:
            return QuantizedTensor(format, granularity, (codes() - np.uint8(middle)).view(np.int8), step)
        if is_affine:
            return QuantizedTensor(format, granularity, codes(), step, kept)
        step = step.astype(np.float32)
        low = -points.astype(np.float32) * step if minima is None else real(source, minima()).astype(np.float32)
        return QuantizedTensor(format, granularity, codes(), step, low)

    return Stored(source, shape, format, granularity, read, has_half, **rest)
