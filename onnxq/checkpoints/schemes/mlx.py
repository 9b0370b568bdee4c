"""MLX: NAME.weight uint32 [out, in · bits / 32], NAME.scales and NAME.biases [out, groups]; w = scale · code + bias.

Codes lie in one stream of bits along each row. Modes without biases (mxfp4): NAME.scales uint8, powers of two.

Source: MLX's `quantize` and mlx-lm's `config.json` ("quantization": {"group_size", "bits", "mode"}).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onnxq import formats
from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.schemes._words import stream
from onnxq.checkpoints.stored import Layer, Stored, bias_of, group_of, integers, key, names_with, of_shape, of_type
from onnxq.errors import BadModel
from onnxq.formats import E8M0, Granularity, QuantizedTensor

PARTS = ("weight", "scales", "biases", "bias")
BITS = (2, 3, 4, 5, 6, 8)


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Those whose weight has scales beside it."""
    for name in names_with(checkpoint, "scales"):
        if key(name, "weight") in checkpoint:
            tensors = tuple(key(name, part) for part in PARTS)
            yield Layer(name, "mlx", tensors, functools.partial(_open, checkpoint, name))


def _open(checkpoint: Checkpoint, name: str) -> Stored:
    source, steps, low = (key(name, part) for part in ("weight", "scales", "biases"))
    packed, scales = of_type(source, checkpoint[source], np.uint32, np.int32), checkpoint[steps]
    if packed.ndim != 2 or scales.ndim != 2 or not packed.size or not scales.size or len(packed) != len(scales):
        raise BadModel(f"'{source}' {list(packed.shape)} and '{steps}' {list(scales.shape)} are not [out, …] both")
    n, groups = scales.shape
    bits, group = _form(checkpoint, source, packed.shape[1] * 32, groups)
    k = packed.shape[1] * 32 // bits
    group = group_of(source, k, groups, group)
    mode, own = _said(checkpoint, source).get("mode"), "affine" if low in checkpoint else "mxfp4"
    if mode not in (None, own):
        raise BadModel(f"'{source}' is of MLX's mode {own}, by the tensors beside it, and not of {mode!s:.40}, as told")
    if low not in checkpoint:
        return _micro(checkpoint, source, steps, (n, k), bits, group, bias_of(checkpoint, name))
    of_shape(low, checkpoint[low], n, groups)
    return integers(
        source,
        bits,
        group,
        lambda: stream(checkpoint[source], bits, k),
        lambda: checkpoint[steps],
        None,
        (n, k),
        minima=lambda: checkpoint[low],
        bias=bias_of(checkpoint, name),
    )


def _said(checkpoint: Checkpoint, source: str) -> Mapping[str, Any]:
    """What the configuration says of a layer, or of all."""
    said = checkpoint.config.get(source.removesuffix(".weight"))
    return said if isinstance(said, dict) else checkpoint.config


def _form(checkpoint: Checkpoint, source: str, total: int, groups: int) -> tuple[int, int]:
    """(bits of a code, inputs of a group): what the configuration says of the layer, or of all."""
    said = _said(checkpoint, source)
    bits, group = said.get("bits"), said.get("group_size")
    if type(bits) is int and type(group) is int:
        if bits in BITS and group > 0 and groups * group * bits == total:
            return bits, group
        raise BadModel(
            f"'{source}': {total} bits a row in {groups} groups are none of {bits} bits in groups of {group}"
        )
    fits = [(b, total // b // groups) for b in BITS if total % (b * groups) == 0]
    fits = [(b, g) for b, g in fits if g in (32, 64, 128)]
    if len(fits) == 1:
        return fits[0]
    raise BadModel(
        f"'{source}': {total} bits a row in {groups} groups are of no size that can be told; "
        'the folder\'s config.json should say it under "quantization"'
    )


def _micro(
    checkpoint: Checkpoint, source: str, steps: str, shape: tuple[int, int], bits: int, group: int, bias: object
) -> Stored:
    if bits != 4 or group != 32 or checkpoint[steps].dtype != np.uint8:
        raise BadModel(f"'{source}' has no biases: it is of one of MLX's modes other than affine and mxfp4")
    if (checkpoint[steps] == 255).any():
        raise BadModel(f"'{steps}' holds numbers that are not finite")
    format, granularity = formats.get("mxfp4"), Granularity(1, 32)

    def read() -> QuantizedTensor:
        codes = stream(checkpoint[source], 4, shape[1])
        return QuantizedTensor(format, granularity, codes, np.ascontiguousarray(checkpoint[steps]).view(E8M0))

    return Stored(source, shape, format, granularity, read, False, bias)  # type: ignore[arg-type]
