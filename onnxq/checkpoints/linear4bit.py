"""Linear4Bit: a layer y = x · wᵀ + bias with packed 4-bit weights, for programs that have no graph.

The tensors are those of a checkpoint (`layouts.linear4bit`): w = scale · (code − 8), two codes a byte, the even input
in the low nibble, one scale for each `group` inputs of a row.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq import formats, layouts
from onnxq.boundary import bounded, require_types
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.layer_names import BIAS, GROUP, SCALES, WEIGHT, group_of, key_of, names_in
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.errors import BadData, BadModel, BadOutput, BadRecipe
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.runtime import product

#: Weights that are unpacked at a time where there are no kernels.
_SLICE = 1 << 24


@dataclass(frozen=True, eq=False)
class Linear4Bit:
    """A packed 4-bit linear layer. Made by `new`, `load` or `quantize`.

    Attributes:
        packed: uint8 [out, in / 2].
        scales: float16 or float32 [out, ceil(in / group)].
        group: inputs that share a scale; the last group of a row may be shorter.
        bias: float32 [out], or None.

    Example:
        layer = Linear4Bit.quantize(w, group=64)
        y = layer.forward(x)

    Raises:
        BadModel: tensors that do not fit each other, are of other types or not finite.
        BadRecipe: what is no tensor.
    """

    packed: NDArray[np.uint8]
    scales: NDArray
    group: int
    bias: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        require_types(Linear4Bit, vars(self))
        _, scales = layouts.linear4bit_groups(self.packed, self.scales, "w", self.group)
        # Of its own, and to be read only: what kernels take is laid out once, and the caller's may be used again.
        self._keep("packed", np.array(_numbers(self.packed, "weight", arguments.array)))
        self._keep("scales", np.array(_numbers(scales, "scales", arguments.array)))
        if not np.isfinite(scales).all():
            raise BadModel("scales of a Linear4Bit are not finite")
        if self.bias is not None:
            if self.bias.shape != (self.outputs,):
                raise BadModel(f"a bias of shape {list(self.bias.shape)} is none for {self.outputs} outputs")
            with np.errstate(over="ignore"):
                self._keep("bias", np.array(self.bias, np.float32, order="C"))

    def _keep(self, name: str, x: NDArray) -> None:
        x.flags.writeable = False
        object.__setattr__(self, name, x)

    @classmethod
    @bounded
    def new(
        cls, packed: ArrayLike, scales: ArrayLike, group: int | None = None, bias: ArrayLike | None = None
    ) -> Linear4Bit:
        """The layer of tensors as they lie in a checkpoint.

        Args:
            packed: uint8 [out, in / 2].
            scales: [out, ceil(in / group)], of any floating-point type; float16 stays that.
            group: inputs that share a scale, from 1 on. None: as `layouts.group_size` finds it.
            bias: [out].

        Raises:
            BadModel: they do not fit each other, or the group is not to be told.
        """
        codes, steps = _numbers(packed, "weight", arguments.array), _numbers(scales, "scales")
        size, steps = layouts.linear4bit_groups(codes, steps, "w", group)
        return cls(codes, steps, size, None if bias is None else _numbers(bias, "bias"))

    @classmethod
    @bounded
    def quantize(
        cls, w: ArrayLike, group: int = 64, bias: ArrayLike | None = None, *, algorithm: str = "rtn"
    ) -> Linear4Bit:
        """The layer of a float weight, with float16 scales.

        Args:
            w: [out, in], of an even number of inputs.
            group: inputs that share a scale.
            bias: [out], added to each row of the result.
            algorithm: a word of `algorithms.DATA_FREE`: how scales are chosen. Codes are the nearest for them.

        Raises:
            BadModel: another shape, or a number that is not finite or too large for a float16 scale.
            BadRecipe: no such algorithm or group.
        """
        from onnxq import algorithms

        x, int4 = _numbers(w, "weight"), formats.get("int4")
        if x.ndim != 2 or x.shape[1] % 2 or not x.size:
            raise BadModel(f"a Linear4Bit is [out, in] with an even number of inputs, not of shape {list(x.shape)}")
        if group < 1:
            raise BadRecipe(f"a group of {group} inputs shares no scale; choose 1 or more")
        x = formats.as_float32(x, "w")
        how = Granularity(1, min(group, x.shape[1]))
        found = algorithms.quantize(x, "int4", how, algorithm).scales
        assert found is not None
        with np.errstate(over="ignore", under="ignore"):
            half = found.astype(np.float16)
        if not np.isfinite(half).all():
            raise BadModel(f"a scale of {np.abs(found).max():g} does not fit float16")
        half = np.where(half == 0, np.finfo(np.float16).smallest_subnormal, half)
        packed, scales = layouts.linear4bit(int4.encode(x, how, half))
        return cls(packed, scales, min(group, x.shape[1]), None if bias is None else _numbers(bias, "bias"))

    @classmethod
    @bounded
    def load(
        cls, checkpoint: str | Path | Mapping[str, NDArray], name: str | None = None, group: int | None = None
    ) -> Linear4Bit:
        """The layer `name` of a `.safetensors` or `.npz` file, or of tensors by name.

        Args:
            checkpoint: the file, or the tensors.
            name: what stands before `.weight_4bit`; "": nothing does. None: the only layer there is.
            group: overrides what the file says.

        Raises:
            BadData: there is no such layer, or the file cannot be read.
            BadModel: its tensors do not fit each other, or the group is not to be told.
        """
        tensors = checkpoint if isinstance(checkpoint, Mapping) else open_checkpoint(checkpoint)
        if not all(isinstance(key, str) for key in tensors):
            raise BadData("names of tensors are texts")
        there = list(names_in(tensors))
        if name is None and len(there) == 1:
            name = there[0]
        if name is None or name not in there:
            which = "name one of its layers" if name is None else f"it has no layer '{name}'"
            raise BadData(f"the checkpoint holds {', '.join(map(repr, there[:8])) or 'no 4-bit layers'}: {which}")
        packed, scales, bias, size = (tensors.get(key_of(name, part)) for part in (WEIGHT, SCALES, BIAS, GROUP))
        if packed is None or scales is None:
            raise BadData(f"'{key_of(name, WEIGHT)}' has no {key_of(name, SCALES)}")
        if group is None and size is not None:
            group = group_of(_numbers(size, "group", arguments.array), name)
        codes = _numbers(packed, "weight", arguments.array)
        found, scales = layouts.linear4bit_groups(codes, _numbers(scales, "scales"), name, group)
        return cls(codes, scales, found, None if bias is None else _numbers(bias, "bias"))

    @bounded
    def save(self, path: str | Path, name: str = "layer", *, replace: bool = False) -> None:
        """Write the layer as `name` into a new file; `save_layers` writes several.

        Args:
            path: `.safetensors` or `.npz`.
            replace: a file that is there.

        Raises:
            BadRecipe: another kind of file.
            BadOutput: it cannot be written, or is there already and not to be replaced.
        """
        save_layers(path, {name: self}, replace=replace)

    @property
    def outputs(self) -> int:
        """Numbers of a row of the result."""
        return len(self.packed)

    @property
    def inputs(self) -> int:
        """Numbers of a row that it takes."""
        return 2 * self.packed.shape[1]

    @property
    def nbytes(self) -> int:
        """Of the tensors as they are stored."""
        return self.packed.nbytes + self.scales.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def unpack(self) -> NDArray[np.float32]:
        """The float32 weight [out, in]."""
        return _unpacked(self).dequantize()

    def forward(self, x: ArrayLike) -> NDArray[np.float32]:
        """y [..., out] = x [..., in] · wᵀ + bias, in float32 from the packed weight; activations are not rounded.

        By the compiled kernels, which read 4 bits a weight: the first call lays the codes out for them, in as many
        bytes again. Without the compiled library as `forward_unpack` does it.

        Args:
            x: of any real type, with at least one axis.

        Raises:
            BadData: the last axis of `x` is not of `inputs` numbers, or it holds no numbers.
        """
        rows, shape = self._rows(x)
        form = self._form
        if form is None:
            return self._by_numpy(rows).reshape(shape)
        tiles, scales, block, length = form
        if length != self.group:
            rows = _spread(rows, self.group, length)
        return product.multiply_int4(rows, tiles, scales, self.outputs, block, self.bias).reshape(shape)

    __call__ = forward

    def forward_unpack(self, x: ArrayLike) -> NDArray[np.float32]:
        """As `forward` of `x` [..., in], by unpacking the weight to float32 and multiplying with numpy."""
        rows, shape = self._rows(x)
        return self._by_numpy(rows).reshape(shape)

    def _rows(self, x: ArrayLike) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """`x` as a matrix of float32, and the shape of what comes out."""
        try:
            numbers = arguments.numbers(x, "input")
        except ValueError as error:
            raise BadData(str(error)) from None
        if not numbers.ndim or numbers.shape[-1] != self.inputs:
            raise BadData(f"x is of shape {list(numbers.shape)}; this layer takes [..., {self.inputs}]")
        with np.errstate(over="ignore"):
            rows = numbers.reshape(math.prod(numbers.shape[:-1]), self.inputs).astype(np.float32, copy=False)
            return rows, (*numbers.shape[:-1], self.outputs)

    def _by_numpy(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        q, step = _unpacked(self), max(1, _SLICE // max(1, self.inputs))
        assert q.scales is not None
        y = np.empty((len(rows), self.outputs), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # of x that is not finite, as kernels do it
            for i in range(0, self.outputs, step):
                part = QuantizedTensor(q.format, q.granularity, q.codes[i : i + step], q.scales[i : i + step])
                np.matmul(rows, part.dequantize().T, out=y[:, i : i + step])
            return y if self.bias is None else y + self.bias

    @functools.cached_property
    def _form(self) -> tuple[NDArray[np.uint8], NDArray, int, int] | None:
        """Tiles and scales for the kernels, their block, and how long each group is there; None: no kernel."""
        if not product.is_there() or not self.packed.size:
            return None
        q, (block, length) = _unpacked(self), kernel_block(self.group, self.inputs)
        assert q.scales is not None
        codes = q.codes if length == self.group else _spread(q.codes, self.group, length)
        k = codes.shape[1]
        scales = np.repeat(q.scales, -(-min(length, k) // block), axis=1)[:, : -(-k // block)]
        wide = QuantizedTensor(q.format, Granularity(1, block), codes, scales)
        return layouts.onnxq_tiles(wide), layouts.onnxq_scales(wide), block, length


def kernel_block(group: int, k: int) -> tuple[int, int]:
    """(block, length) by which kernels read groups of any size: blocks of a multiple of 16 up to 256, which share the
    scale of their group; groups that no such blocks fill are lengthened to `length`, by zeros."""
    if group >= k:
        return min(product.LARGEST, -(-max(1, k) // product.SMALLEST) * product.SMALLEST), group
    length = -(-group // product.SMALLEST) * product.SMALLEST
    units = length // product.SMALLEST
    most = product.LARGEST // product.SMALLEST
    return product.SMALLEST * next(n for n in range(most, 0, -1) if units % n == 0), length


@bounded
def save_layers(path: str | Path, layers: Mapping[str, Linear4Bit], *, replace: bool = False) -> None:
    """Write layers by name into a new `.safetensors` or `.npz` file.

    Raises:
        BadRecipe: another kind of file, or what is no layer.
        BadOutput: it cannot be written, or is there already and not to be replaced.
    """
    for name, layer in layers.items():
        if not isinstance(name, str) or not isinstance(layer, Linear4Bit):
            raise BadRecipe(f"layers are Linear4Bit by name, not {type(layer).__name__} by {type(name).__name__}")
    if os.path.lexists(path) and not replace:
        raise BadOutput(f"'{path}' exists; choose another name, or replace=True")
    tensors: dict[str, NDArray] = {}
    for name, layer in layers.items():
        group = np.array([layer.group], np.int64)
        tensors |= {key_of(name, WEIGHT): layer.packed, key_of(name, SCALES): layer.scales, key_of(name, GROUP): group}
        if layer.bias is not None:
            tensors[key_of(name, BIAS)] = layer.bias
    write_arrays(path, ((name, functools.partial(tensors.__getitem__, name)) for name in tensors), replace=replace)


def _unpacked(layer: Linear4Bit) -> QuantizedTensor:
    return layouts.from_linear4bit(layer.packed, layer.scales, "w", layer.group)


def _numbers(x: ArrayLike, what: str, read: Callable[[ArrayLike, str], NDArray] = arguments.numbers) -> NDArray:
    """An array of real numbers, or of what `read` makes.

    Raises:
        BadModel: it is none.
    """
    try:
        return read(x, what)
    except ValueError as error:
        raise BadModel(str(error)) from None


def _spread(rows: NDArray, group: int, length: int) -> NDArray:
    """[M, K] with zeros behind each whole group, so that it takes `length` columns."""
    whole, rest = divmod(rows.shape[1], group)
    out = np.zeros((len(rows), whole * length + rest), rows.dtype)
    grouped = out[:, : whole * length].reshape(len(rows), whole, length)
    grouped[:, :, :group] = rows[:, : whole * group].reshape(len(rows), whole, group)
    if rest:
        out[:, whole * length :] = rows[:, whole * group :]
    return out
