"""Weights in types for which the runtime has no kernels: whether they stand for the numbers that were run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from onnxq.errors import CheckFailed
from onnxq.files.staging import scratch
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.output import write
from onnxq.runtime.ort.installed import version
from onnxq.runtime.session import Session

#: Types of which onnxruntime 1.31 unpacks no weights on processors.
NEW = frozenset({ir.DataType.FLOAT4E2M1, ir.DataType.FLOAT8E8M0})
#: What may stand between a DequantizeLinear of constants and what reads the weight.
BEHIND = ("Cast", "Transpose")


def new_types(path: Path) -> str:
    """Those of `NEW` that constants of the model at `path` are of, in words; empty if there are none."""
    tensors = (graph.constant(value) for each in graph.graphs(load_model(path)) for value in each.initializers.values())
    found = {tensor.dtype for tensor in tensors if tensor is not None} & NEW
    return " and ".join(sorted(dtype.name.lower() for dtype in found))


@contextlib.contextmanager
def as_run(staged: Path, older: Callable[[], ir.Model]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """(what onnxruntime is to run in the place of the file at `staged`, what is to be said of that).

    Args:
        older: makes the same model without types that onnxruntime may have no kernels for.

    Raises:
        CheckFailed: a weight is not the same in both.
    """
    missing = new_types(staged)
    if not missing:
        yield staged, ()
        return
    with scratch() as folder:
        path = Path(folder) / staged.name
        write.save(older(), path)
        require_equal_weights(staged, path)
        said = (
            f"onnxruntime {version()} has no kernels for {missing}: what was run are the same numbers in older types, "
            "and ONNX's reference implementation reads them from the file"
        )
        yield path, (said,)


def require_equal_weights(newer: Path, older: Path) -> None:
    """Compare what nodes read that is made of constants alone: by ONNX's reference implementation in the model at
    `newer`, which onnxruntime need not run, and by onnxruntime in the one at `older`.

    Raises:
        CheckFailed: a weight is not the same bit for bit.
    """
    one, other = load_model(newer), load_model(older)
    nodes = {node.name or "": node for node in graph.nodes(other)}
    for node in graph.nodes(one):
        for index, value in enumerate(node.inputs):
            if value is None or graph.is_op(node, *BEHIND) or not _is_of_new_codes(value):
                continue
            twin = nodes[node.name or ""].inputs[index]
            assert twin is not None
            found, wanted = _by_reference(_weight(one, value)), _by_onnxruntime(_weight(other, twin))
            if found.dtype != wanted.dtype or not np.array_equal(found, wanted):
                raise CheckFailed(
                    f"node '{node.name}' reads other weights in the types of the saved model than were run"
                )


def _is_of_new_codes(value: ir.Value) -> bool:
    """Whether a DequantizeLinear of such constants makes the value, or what it is cast or transposed from."""
    node = value.producer()
    while node is not None and graph.is_op(node, *BEHIND):
        node = graph.producer(node.inputs[0])
    codes = graph.constant(node.inputs[0]) if node is not None and graph.is_op(node, "DequantizeLinear") else None
    return codes is not None and codes.dtype in NEW


def _weight(model: ir.Model, value: ir.Value) -> ir.Model:
    """The part of a model that makes a value of constants."""
    owner = value.graph
    assert isinstance(owner, ir.Graph)
    piece = ir.convenience.extract(owner, inputs=[], outputs=[value.name or ""])
    piece.opset_imports.update(model.opset_imports)  # which bodies have none of their own
    return ir.Model(piece, ir_version=model.ir_version)


def _by_reference(piece: ir.Model) -> NDArray:
    found: Any = ReferenceEvaluator(ir.to_proto(piece)).run(None, {})
    return np.asarray(found[0])


def _by_onnxruntime(piece: ir.Model) -> NDArray:
    return np.asarray(Session(piece).run({})[0])
