"""HQQ: NAME.W_q, NAME.scale, NAME.zero, and each setting as a tensor: NAME.nbits, NAME.axis, NAME.shape, NAME.packing.

w = (code − zero) · scale. The weight is cut into groups, a row of codes each (axis 1), and the rows of codes are packed
by halves, quarters … of all of them: the first part of the rows lies in the highest bits.

Source: hqq 0.2's `HQQLinear.state_dict` (with `encoded_state_dict`, as safetensors need it) and `BitPack`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.stored import (
    Layer,
    Stored,
    bias_of,
    integers,
    key,
    names_with,
    of_shape,
    of_type,
    optional,
    real,
    required,
)
from onnxq.errors import BadModel
from onnxq.formats import Granularity

MAIN = "W_q"
PARTS = (MAIN, "scale", "zero", "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "bias")
SETTINGS = ("view_as_float", "quant_scale", "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict")
MORE = ("stores_quant_config", "channel_wise", "optimize", "round_zero")
#: By its word: bits of a code, and the rows of codes that share a number.
PACKINGS = {"8bit_u8": (8, 1), "4bit_u8": (4, 2), "3bit_32": (3, 10), "2bit_u8": (2, 4), "1bit_u8": (1, 8)}


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Those with W_q."""
    for name in names_with(checkpoint, MAIN):
        tensors = tuple(key(name, part) for part in (*PARTS, *SETTINGS, *MORE))
        yield Layer(name, "hqq", tensors, functools.partial(_open, checkpoint, name))


def _open(checkpoint: Checkpoint, name: str) -> Stored:
    source = key(name, MAIN)
    packed, scale, zero = (required(checkpoint, name, MAIN, part) for part in (MAIN, "scale", "zero"))
    shape = required(checkpoint, name, MAIN, "shape")
    bits, parts = _packing(checkpoint, name)
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 1).any() or (shape > 1 << 40).any():
        raise BadModel(f"'{key(name, 'shape')}' is not the shape of a matrix")
    n, k = (int(size) for size in shape)
    axis, total = _number(checkpoint, name, "axis"), scale.size
    if axis not in (0, 1) or zero.size != total or not total or (n * k) % total:
        raise BadModel(f"'{source}': {n} × {k} weights do not fall into {total} groups along axis {axis}")
    group = n * k // total
    for part, is_so in (("nbits", bits), ("group_size", group)):
        said = optional(checkpoint, name, part)  # a group that is a whole row has no number
        if (
            said is not None
            and said.size == 1
            and said.dtype.kind in "iu"
            and int(said.reshape(-1)[0]) not in (is_so, 0)
        ):
            raise BadModel(f"'{key(name, part)}' is not the {is_so} that the codes and scales beside it are of")
    rows, columns = (total, group) if axis == 1 else (group, total)
    of_type(source, packed, np.int32 if bits == 3 else np.uint8)
    of_shape(source, packed, -(-rows // parts), columns)
    if bits != 3 and rows % parts:
        raise BadModel(f"'{source}': {rows} rows of codes are not {parts} equal parts")

    def matrix() -> NDArray[np.uint8]:
        stored = np.asarray(checkpoint[source])
        shifts = [bits * i for i in reversed(range(parts))]
        codes = np.concatenate([(stored >> shift) & ((1 << bits) - 1) for shift in shifts])
        return np.ascontiguousarray(codes[:rows].astype(np.uint8))

    def steps() -> NDArray:
        return np.asarray(checkpoint[key(name, "scale")])

    def points() -> NDArray:
        return np.asarray(checkpoint[key(name, "zero")])

    bias = bias_of(checkpoint, name)
    if axis == 0 or k % group:

        def floats() -> NDArray[np.float32]:
            wide = (1, total) if axis == 0 else (total, 1)
            low, step = (real(source, x()).astype(np.float32).reshape(wide) for x in (points, steps))
            return np.ascontiguousarray(((matrix() - low) * step).reshape(n, k))

        real(f"scales of {source}", steps()), real(f"zeros of {source}", points())
        return Stored(source, (n, k), None, Granularity(), floats, False, bias)
    return integers(
        source,
        bits,
        group,
        lambda: matrix().reshape(n, k),
        lambda: steps().reshape(n, k // group),
        lambda: points().reshape(n, k // group),
        (n, k),
        bias=bias,
    )


def _packing(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    raw = required(checkpoint, name, MAIN, "packing")
    word = raw.tobytes()[:16].decode("ascii", "replace") if raw.dtype == np.uint8 else ""
    if word not in PACKINGS:
        raise BadModel(f"'{key(name, 'packing')}' is none of {', '.join(PACKINGS)}")
    for part in ("quant_scale", "quant_zero", "view_as_float"):
        if key(name, part) in checkpoint and _number(checkpoint, name, part):
            raise BadModel(f"'{key(name, MAIN)}' has '{part}' set, which onnxq does not read")
    return PACKINGS[word]


def _number(checkpoint: Checkpoint, name: str, part: str) -> int:
    found = required(checkpoint, name, MAIN, part)
    if found.size != 1 or found.dtype.kind not in "iub":
        raise BadModel(f"'{key(name, part)}' is no single integer")
    return int(found.reshape(-1)[0])
