"""The parts of a decoder as the tensors of a file, rows in the order that its reader wants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.encode_arrays import Tensor
from onnxq.checkpoints.matching.put import taken
from onnxq.conversion.llama.decoder import Decoder, Part
from onnxq.encoding.lazy import GivenTensor
from onnxq.formats import QuantizedTensor

Named = tuple[str, Callable[[], Tensor]]


def vector(name: str, x: NDArray) -> Named:
    """A tensor of numbers that are there."""
    return name, functools.partial(_same, x)


def embedding_and_head(decoder: Decoder, first: str, last: str) -> Iterator[Named]:
    """The table by the name `first`; the head by the name `last`, if it is another matrix."""
    table = functools.partial(_read, Part(decoder.embedding, slice(0, decoder.head.size)), None)
    head = functools.partial(_read, decoder.head, None)
    yield first, table
    if not _are_equal(table(), head()):
        yield last, head


def _same(x: NDArray) -> NDArray:
    return x


def part_of(name: str, part: Part, order: NDArray[np.int64] | None) -> Iterator[Named]:
    """Weight and bias of a part.

    Args:
        order: which row of it each row of the tensor is; None: they lie as they are.
    """
    yield f"{name}.weight", functools.partial(_read, part, order)
    if part.bias is not None:
        yield f"{name}.bias", functools.partial(_same, part.bias if order is None else part.bias[order])


def _read(part: Part, order: NDArray[np.int64] | None) -> Tensor:
    weight = part.weight
    tensor, is_turned = weight.tensor, weight.role.contraction == 0
    rows = np.arange(part.rows.start, part.rows.stop)
    rows = rows if order is None else rows[order]
    if isinstance(tensor, GivenTensor):
        given = (tensor.turned() if is_turned else tensor).given()
        return given if len(rows) == given.shape[0] and order is None else taken(given, rows)
    array = tensor.numpy().T if is_turned else tensor.numpy()
    made = array[rows]
    return made.astype(np.float32) if made.dtype == np.float64 else made


def _are_equal(a: Tensor, b: Tensor) -> bool:
    if isinstance(a, QuantizedTensor) and isinstance(b, QuantizedTensor):
        parts = ((a.codes, b.codes), (a.scales, b.scales), (a.zero_points, b.zero_points))
        same = a.format.name == b.format.name and a.granularity == b.granularity
        return same and all(x is y or (x is not None and y is not None and np.array_equal(x, y)) for x, y in parts)
    if isinstance(a, QuantizedTensor) or isinstance(b, QuantizedTensor):
        return False
    return np.array_equal(a, b)
