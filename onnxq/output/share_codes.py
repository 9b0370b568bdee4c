"""Codes and scales of one weight that several operators read in forms of their own are written once.

An embedding that is the head too is looked up by rows and multiplied by; its codes are the same bytes, in another
shape or order. Runtimes work the other form out when they load the model.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

import numpy as np
import onnx_ir as ir

from onnxq.model.origin import APART, CONSTANT, ORIGIN

#: Fewer bytes are not worth a node.
LEAST_BYTES = 1 << 10
#: Types of codes and of their scales.
_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT)


class Sharing:
    """What of a model's constants may be equal, and what was written of it.

    Only constants that come from the same weight and take as many bytes are looked into: that costs reading them.
    """

    def __init__(self, values: Iterable[ir.Value]) -> None:
        self._count = Counter(_key(value) for value in values)
        #: By key, what was written, with the digest of its bytes.
        self._written: dict[Hashable, list[tuple[ir.Value, bytes]]] = {}

    def takes_over(self, value: ir.Value, tensor: ir.TensorProtocol, digest_of: Callable[[], bytes]) -> bool:
        """Whether `value` was written before; then its readers read that, or what a node makes of it.

        Args:
            digest_of: gives blake2b of the bytes of `tensor`, of 20 bytes.
        """
        key, owner, may_be_made = _key(value), value.graph, not value.meta.get(CONSTANT)
        if key is None or self._count[key] < 2 or not isinstance(owner, ir.Graph):
            return False
        shape, digest = tuple(tensor.shape.numpy()), digest_of()
        others = self._written.setdefault(key, [])
        for other, seen in others:
            before = tuple(other.const_value.shape.numpy()) if other.const_value is not None else ()
            if seen == digest and (before == shape or may_be_made):
                _replace(value, other, owner, None if before == shape else shape)
                return True
            may_be_turned = len(shape) == 2 and before == shape[::-1] and tensor.dtype.bitwidth == 8
            if may_be_made and may_be_turned and seen == _digest(np.ascontiguousarray(tensor.numpy().T).tobytes()):
                _replace(value, other, owner, ())
                return True
        others.append((value, digest))
        return False


def _key(value: ir.Value) -> Hashable:
    """The same for constants that may have the same bytes; None for those that are not shared."""
    origin, tensor = value.meta.get(ORIGIN), value.const_value
    if origin is None or tensor is None or tensor.dtype not in _TYPES or tensor.nbytes < LEAST_BYTES:
        return None
    stays = value.is_graph_output() or value.meta.get(APART)
    return None if stays else (id(value.graph), origin, tensor.dtype, tensor.nbytes)


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=20).digest()


def _replace(value: ir.Value, other: ir.Value, owner: ir.Graph, shape: tuple[int, ...] | None) -> None:
    """Let the readers of `value` read `other`, reshaped to `shape` if one is given, turned if that is empty."""
    name = value.name or ""
    owner.initializers.pop(name)
    if shape is None:
        value.replace_all_uses_with(other)
        return
    if shape:
        wanted = ir.Value(name=f"{name}_shape", const_value=ir.tensor(np.array(shape, np.int64), name=f"{name}_shape"))
        owner.register_initializer(wanted)
        node = ir.node("Reshape", [other, wanted], name=f"{name}_reshape")
    else:
        node = ir.node("Transpose", [other], attributes={"perm": [1, 0]}, name=f"{name}_transpose")
    node.outputs[0].name = name
    value.name = None
    value.replace_all_uses_with(node.outputs[0])
    owner.insert_before(owner[0], node)
