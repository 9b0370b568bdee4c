"""Our own files, as `onnxq encode` and `onnxq convert` write them: any format, with the codes that it has.

Weights of products lie as [out, in], tables as [rows, width]; arrays of other shapes are none of a product. Floats that
were codes in the model are plain arrays here, of which the table says that they are of a product; in the layouts of
other projects, which `onnxq convert` writes too, the file's metadata.

Source: `own_file.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.checkpoints import own_file
from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.stored import Layer, Stored, bias_of, real
from onnxq.errors import BadData, BadModel
from onnxq.formats import Granularity, QuantizedTensor


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Matrices that the file's table tells of."""
    for name, entry in _tables(checkpoint):
        if entry == own_file.PRODUCT and name in checkpoint and checkpoint[name].ndim == 2:
            layer = name.removesuffix(".weight")
            yield Layer(layer, "onnxq", (name, f"{layer}.bias"), functools.partial(_open_floats, checkpoint, name))
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if isinstance(shape, list) and len(shape) == 2:
            layer = name.removesuffix(".weight")
            try:
                parts = own_file.parts_of(name, entry)
            except BadData:
                parts = [f"{name}.codes"]
            if not any(each in checkpoint for each in parts):  # it was asked to be left out; a bias may stay
                continue
            yield Layer(layer, "onnxq", (*parts, f"{layer}.bias"), functools.partial(_open, checkpoint, name, entry))


def _tables(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """What the files say of their arrays, each of its own."""
    for file in {id(file): file for file in checkpoint.shards.values()}.values():
        metadata = getattr(file, "metadata", {})
        found = own_file.table_of(file, metadata)
        if found is None and not checkpoint.is_gguf:
            found = dict.fromkeys(own_file.products_of(metadata), own_file.PRODUCT)
        yield from ((name, entry) for name, entry in (found or {}).items() if isinstance(name, str))


def _open(checkpoint: Checkpoint, name: str, entry: dict[str, Any]) -> Stored:
    q = _read(checkpoint, name, entry)
    n, k = q.shape
    bias = bias_of(checkpoint, name.removesuffix(".weight"))
    by_rows = q.granularity.axis in (None, 0) if q.granularity.block is None else q.granularity.axis == 1
    if q.format.scale_type is None or not by_rows or entry.get("levels") is not None:

        def floats() -> NDArray:
            return _read(checkpoint, name, entry).dequantize()

        is_float = q.format.scale_type is None
        return Stored(name, (n, k), None, Granularity(), floats, False, bias, is_float=is_float)
    half = q.scales is not None and q.scales.dtype == np.float16
    read = functools.partial(_read, checkpoint, name, entry)
    return Stored(name, (n, k), formats.get(q.format.name), q.granularity, read, half, bias)


def _open_floats(checkpoint: Checkpoint, name: str) -> Stored:
    n, k = checkpoint[name].shape
    bias = bias_of(checkpoint, name.removesuffix(".weight"))
    return Stored(name, (n, k), None, Granularity(), lambda: real(name, checkpoint[name]), False, bias, is_float=True)


def _read(checkpoint: Checkpoint, name: str, entry: dict[str, Any]) -> QuantizedTensor:
    try:
        q = own_file.weight_of(name, entry, checkpoint)
    except BadData as error:
        raise BadModel(str(error)) from None
    for part in (q.scales, q.zero_points):
        if part is not None and not np.isfinite(part.astype(np.float32)).all():
            raise formats.in_weight(BadModel("holds scales that are not finite"), name)
    return q
