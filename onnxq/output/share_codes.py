"""Numbers, codes and scales of one weight that several operators read in forms of their own are written once.

An embedding that is the head too is looked up by rows and multiplied by; its numbers are the same bytes, in another
shape or order. Runtimes work the other form out when they load the model.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import layouts
from onnxq.model import graph
from onnxq.model.origin import APART, CONSTANT, HALVES, ORIGIN

#: Fewer bytes are not worth a node.
LEAST_BYTES = 1 << 10
#: Types of codes, of their scales and of numbers.
_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT, *HALVES)
#: What reads a matrix of numbers as one, or widens it: others may want a constant, as for scales.
_READERS = ("Cast", "Gather", "Gemm", "MatMul")


class Sharing:
    """What of a model's constants may be equal, and what was written of it.

    Only constants that come from the same weight and take as many bytes with their last blocks filled up are looked
    into, or halves: that costs reading them.
    """

    def __init__(self, values: Iterable[ir.Value]) -> None:
        self._count = Counter(_key(value) for value in values)
        #: By key, what was written.
        self._written: dict[Hashable, list[_Written]] = {}

    def takes_over(self, value: ir.Value, tensor: ir.TensorProtocol, digest_of: Callable[[], bytes]) -> bool:
        """Whether `value` was written before; then its readers read that, or what a node makes of it.

        Args:
            digest_of: gives blake2b of the bytes of `tensor`, of 20 bytes.
        """
        key, owner, may_be_made = _key(value), value.graph, not value.meta.get(CONSTANT)
        if key is None or self._count[key] < 2 or not isinstance(owner, ir.Graph):
            return False
        digest = digest_of()
        others = self._written.setdefault(key, [])
        for other in others:
            steps = _steps(value, tensor, digest, other)
            if steps is not None and (not steps or may_be_made):
                _replace(value, other.value, owner, steps)
                return True
        others.append(_Written(value, _shape(tensor), digest, _rows_of_blocks(value, tensor)))
        return False

    def in_order(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """`values`, but tables behind the tiles or the matrix of which they may be made: those have to be constants."""
        keys = [_key(value) for value in values]
        tiles = {key: i for i, key in enumerate(keys) if key and len(_shape(values[i].const_value)) == 4}
        last = {key: i for i, key in enumerate(keys) if key}

        def place(i: int) -> tuple[int, bool, bool]:
            is_spelled = _is_spelled(values[i])
            return max(i, (last if is_spelled else tiles).get(keys[i], i)), _is_matrix(values[i]), is_spelled

        return [values[i] for i in sorted(range(len(values)), key=place)]


class _Written(NamedTuple):
    """
    Attributes:
        shape: as it was written.
        digest: of its bytes.
        rows: how long the rows of a table of the same blocks are, in bytes, and the digest of these, where the last
            block of each is filled up; else None.
    """

    value: ir.Value
    shape: tuple[int, ...]
    digest: bytes
    rows: tuple[int, bytes] | None


def _key(value: ir.Value) -> Hashable:
    """The same for constants that may have the same bytes; None for those that are not shared."""
    origin, tensor = value.meta.get(ORIGIN, value.name), value.const_value
    if tensor is None or tensor.dtype not in _TYPES or tensor.nbytes < LEAST_BYTES:
        return None
    stays = value.is_graph_output() or value.meta.get(APART)
    nbytes = 0 if tensor.dtype in HALVES else _whole_bytes(value, tensor)  # tiles are filled up
    return None if stays else (id(value.graph), origin, tensor.dtype, nbytes)


def _whole_bytes(value: ir.Value, tensor: ir.TensorProtocol) -> int:
    """How many bytes codes take where their last blocks are filled up."""
    shape, whole = _shape(tensor), tensor.nbytes
    for node, index in value.uses():
        if index or node.op_type not in ("DequantizeLinear", "GatherBlockQuantized"):
            continue
        is_table = node.op_type == "GatherBlockQuantized"
        axis = graph.attribute_int(node, "quantize_axis" if is_table else "axis", 1)
        codes = 8 // graph.attribute_int(node, "bits", 8) if is_table and tensor.dtype is ir.DataType.UINT8 else 1
        block = graph.attribute_int(node, "block_size", 0) // codes
        if block and -len(shape) <= axis < len(shape):
            whole = max(whole, tensor.nbytes // shape[axis] * -(-shape[axis] // block) * block)
    return whole


def _rows_of_blocks(value: ir.Value, tensor: ir.TensorProtocol) -> tuple[int, bytes] | None:
    """Case 4 of `_steps`: of what MatMulNBits multiplies by."""
    node = next((node for node, index in value.uses() if index == 1), None)
    shape = _shape(tensor)
    if not graph.is_op(node, "MatMulNBits", domain=graph.MICROSOFT) or node is None or len(shape) != 3:
        return None
    width = -(-graph.attribute_int(node, "K", 0) * graph.attribute_int(node, "bits", 4) // 8)
    if not 0 < width < shape[1] * shape[2]:
        return None
    return width, _digest(tensor.numpy().reshape(shape[0], -1)[:, :width])


def _shape(tensor: ir.TensorProtocol | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.shape.numpy())


def _is_matrix(value: ir.Value) -> bool:
    """Whether it is codes, or what reads it takes it for numbers."""
    tensor = value.const_value
    if tensor is None or tensor.dtype not in _TYPES or len(tensor.shape) != 2:
        return False
    is_read = all(graph.is_op(use.node, *_READERS) for use in value.uses())
    return tensor.dtype.bitwidth == 8 or (is_read and tensor.dtype.bitwidth > 8)


def _is_spelled(value: ir.Value) -> bool:
    """Whether it is codes or scales of blocks, one below the other, that standard operators multiply when the model is
    loaded."""
    shape, uses = _shape(value.const_value), value.uses()
    return len(shape) == 2 and bool(uses) and all(graph.is_op(use.node, "Cast", "Mul") for use in uses)


def _steps(value: ir.Value, tensor: ir.TensorProtocol, digest: bytes, other: _Written) -> list[layouts.Step] | None:
    """What makes `tensor` of the `other`; None if nothing does.

    1. The same bytes have another shape.
    2. A matrix is turned.
    3. Tiles that a kernel multiplies by (`layouts.dense_tiles`) become the rows of a table.
    4. Blocks that a kernel multiplies by become the rows of a table, without what the last ones are filled up with.
    5. A matrix becomes the blocks of its columns, of which the last ones are filled up with zeros, or their scales.
    """
    shape, before, seen = _shape(tensor), other.shape, other.digest
    if seen == digest:
        return [] if before == shape else [("Reshape", {}, [list(shape)])]
    if len(shape) == 2 and other.rows == (shape[1], digest):
        return [("Reshape", {}, [[shape[0], -1]]), ("Slice", {}, [[0], [shape[1]], [1]])]
    if _is_spelled(value) and (steps := _blocks_of_columns(tensor, other)) is not None:
        return steps
    if not _is_matrix(value):
        return None
    if before == shape[::-1] and seen == _digest(tensor.numpy().T):
        return [("Transpose", {"perm": [1, 0]}, [])]
    steps = layouts.steps_to_rows(before, shape) if tensor.dtype in HALVES else None
    return steps if steps is not None and seen == _digest(layouts.dense_tiles(tensor.numpy())) else None


def _blocks_of_columns(tensor: ir.TensorProtocol, other: _Written) -> list[layouts.Step] | None:
    """Case 5 of `_steps`."""
    (count, block), before = _shape(tensor), other.shape
    if tensor.dtype.bitwidth < 8 or len(before) != 2 or count % before[1]:
        return None
    k, n = before
    width = count // n * block
    rows, more = tensor.numpy().reshape(n, width), width - k
    if not 0 <= more < block or rows[:, k:].any() or other.digest != _digest(rows[:, :k].T):
        return None
    filled: list[layouts.Step] = [("Pad", {}, [[0, 0, 0, more]])] if more else []
    return [("Transpose", {"perm": [1, 0]}, []), *filled, ("Reshape", {}, [[count, block]])]


def _digest(array: NDArray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=20).digest()


def _replace(value: ir.Value, other: ir.Value, owner: ir.Graph, steps: list[layouts.Step]) -> None:
    """Let the readers of `value` read what the steps make of `other`."""
    name = value.name or ""
    owner.initializers.pop(name)
    made: list[ir.Node] = []
    for i, (op_type, attributes, constants) in enumerate(steps):
        word = f"{name}_{op_type.lower()}"
        read = [
            graph.add_constant(owner, f"{word}_{j}", ir.tensor(np.array(each, np.int64)))
            for j, each in enumerate(constants)
        ]
        source = made[-1].outputs[0] if made else other
        made.append(ir.node(op_type, [source, *read], attributes=attributes, name=word))
        made[-1].outputs[0].name = f"{word}_{i}_out"
    value.name = None
    if made:
        made[-1].outputs[0].name = name
    value.replace_all_uses_with(made[-1].outputs[0] if made else other)
    owner.insert_before(owner[0], made)
