"""A table of embeddings and the matrix of a head that is its transpose are known as one weight.

Exporters fold the Transpose between them, so that the file has the same numbers twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.origin import ORIGIN, TURNED, is_whole
from onnxq.model.weights import Weight, find_weights


class TieTransposed(ir.passes.InPlacePass):
    """Mark each matrix that a product reads as the transpose of a table that a Gather reads, if their numbers agree."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        weights = list(find_weights(model))
        tables = {w.value: w for w in weights if graph.is_op(w.node, "Gather") and len(w.shape) == 2}
        tied = 0
        for matrix, table in _pairs(weights, list(tables.values())):
            if is_whole(matrix.value) and _is_transpose(matrix.tensor, table.tensor):
                matrix.value.meta[ORIGIN] = table.value.meta.get(ORIGIN, table.value.name)
                matrix.value.meta[TURNED] = True
                tied += 1
        return ir.passes.PassResult(model, modified=tied > 0)


def _pairs(weights: list[Weight], tables: list[Weight]) -> Iterator[tuple[Weight, Weight]]:
    for weight in weights:
        if not graph.is_op(weight.node, "MatMul", "Gemm") or weight.role.index != 1:
            continue
        for table in tables:
            alike = weight.tensor.dtype == table.tensor.dtype and weight.shape == table.shape[::-1]
            if alike and weight.value is not table.value:
                yield weight, table


def _is_transpose(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    x, y = a.numpy(), b.numpy().T
    return np.array_equal(x[0], y[0]) and np.array_equal(x, y)
