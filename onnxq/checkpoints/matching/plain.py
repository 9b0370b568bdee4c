"""Constants of a model that get the numbers of tensors of the same name and shape: norms, biases, kernels, tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.errors import BadModel
from onnxq.formats.kinds import arguments
from onnxq.model import graph


def replace_constants(
    model: ir.Model, tensors: Mapping[str, Any], aliases: Mapping[str, str], apart: Collection[str]
) -> list[str]:
    """Give constants of floats the numbers of tensors; the names of those that were given some.

    Args:
        tensors: of the checkpoint.
        aliases: other names that tensors are known by, and their own.
        apart: tensors that are parts of something else.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    found: list[str] = []
    for owner in graph.graphs(model):
        for name, value in owner.initializers.items():
            tensor = graph.constant(value)
            source = name if name in tensors else aliases.get(name or "", "")
            if tensor is None or tensor.dtype not in graph.FLOATS or source in apart or source not in tensors:
                continue
            given = tensors[source]
            if not isinstance(given, np.ndarray) or given.dtype.kind not in "fV" or given.shape != tensor.shape.numpy():
                continue
            value.const_value = _lazy(tensors, source, tensor, name)
            found.append(source)
    return found


def _lazy(tensors: Mapping[str, Any], source: str, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    dtype = tensor.dtype
    with np.errstate(over="ignore"):
        numbers = arguments.numbers(tensors[source]).astype(dtype.numpy())
        if not np.isfinite(numbers.astype(np.float32)).all():
            raise BadModel(f"'{source}' holds numbers that are not finite, or too large for {dtype.name.lower()}")
    del numbers

    def evaluate() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(arguments.numbers(tensors[source]).astype(dtype.numpy())))

    return ir.LazyTensor(evaluate, dtype=dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
