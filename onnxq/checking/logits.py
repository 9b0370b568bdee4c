"""Which outputs of a model are scores of classes: what is compared there are decisions and distributions, not numbers.

An output is taken for scores where the graph says so:

1. It comes from a Softmax or LogSoftmax over an axis of fixed length: probabilities, or their logarithms.
2. It comes from a Gemm or MatMul with a constant matrix of N columns, N from 2 on, perhaps with a constant added or
   multiplied: logits along the last axis. Not where a float input has N numbers in its last axis too: such a model
   gives back what it was given, as autoencoders do. A Transpose that keeps the last axis may stand behind it, and a
   Reshape where the output has N numbers there: Keras' Dense of sequences is exported as a product of rows.

Between that and the output only these, Identity and Cast may stand. What the graph cannot say (logits of a
convolution, of a head that is followed by more) the user can: `named`.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.errors import BadRecipe
from onnxq.model import graph
from onnxq.quality.decisions import Classes

#: Nodes that may stand behind a product, each with one constant.
_BEHIND = ("Add", "Sub", "Mul", "Div")
#: What `--logits` calls no output at all.
NONE = "none"


def classes_of(model: ir.Model, named: Sequence[str] = ()) -> dict[str, Classes]:
    """The outputs of `model` that are scores of classes.

    Args:
        named: outputs that the user says are logits, in the place of what is found; `none`: there are none.

    Raises:
        BadRecipe: there is no such output.
    """
    outputs = {value.name or "": value for value in model.graph.outputs}
    if named:
        wrong = next((name for name in named if name not in outputs and list(named) != [NONE]), None)
        if wrong is not None:
            raise BadRecipe(f"--logits: the model has no output '{wrong}'; it has {', '.join(outputs)}")
        return {name: _of(outputs[name]) or Classes(_usual_axis(outputs[name])) for name in named if name in outputs}
    found = {name: _of(value) for name, value in outputs.items()}
    given = {
        _last(value) for value in model.graph.inputs if value.dtype is not None and value.dtype.is_floating_point()
    }
    return {
        name: classes
        for name, classes in found.items()
        if classes is not None and (classes.kind != "logits" or _last(outputs[name]) not in given - {None})
    }


def _of(output: ir.Value) -> Classes | None:
    node = _through(output.producer())
    if node is None:
        return None
    if graph.is_op(node, "Softmax", "LogSoftmax"):
        shape = node.outputs[0].shape or output.shape
        axis = graph.attribute_int(node, "axis", -1 if _opset(node) >= 13 else 1)
        size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        if size is not None and not (isinstance(size, int) and size >= 2):
            return None  # an axis of any length: weights of attention
        return Classes(axis, "probabilities" if node.op_type == "Softmax" else "logarithms")
    columns, is_reshaped = _columns(node), False
    while columns is None and node is not None and (graph.is_op(node, *_BEHIND, "Reshape") or _keeps_columns(node)):
        is_reshaped |= node.op_type == "Reshape"
        inputs = [value for value in node.inputs if value is not None and graph.constant(value) is None]
        if node.op_type == "Reshape":
            inputs = inputs[:1]  # its shape may be computed
        node = _through(inputs[0].producer()) if len(inputs) == 1 else None
        columns = _columns(node)
    if columns is None or columns < 2 or (is_reshaped and _last(output) != columns):
        return None
    return Classes(-1)


def _keeps_columns(node: ir.Node) -> bool:
    perm = node.attributes["perm"].as_ints() if graph.is_op(node, "Transpose") and "perm" in node.attributes else ()
    return bool(perm) and perm[-1] == len(perm) - 1


def _through(node: ir.Node | None) -> ir.Node | None:
    while graph.is_op(node, "Identity", "Cast"):
        assert node is not None
        node = graph.producer(node.inputs[0])
    return node


def _columns(node: ir.Node | None) -> int | None:
    """How many numbers a row of a product with a constant matrix has; None of anything else."""
    if node is None or not graph.is_op(node, "Gemm", "MatMul"):
        return None
    value = node.inputs[1]
    tensor = graph.constant(value)
    if tensor is None or len(tensor.shape) != 2:
        return None
    axis = 0 if graph.attribute_int(node, "transB", 0) else 1
    return int(tensor.shape.numpy()[axis])


def _opset(node: ir.Node) -> int:
    owner = node.graph
    return 13 if owner is None else owner.opset_imports.get("", 13)


def _last(value: ir.Value) -> int | None:
    size = value.shape[-1] if value.shape is not None and len(value.shape) else None
    return size if isinstance(size, int) else None


def _usual_axis(value: ir.Value) -> int:
    """Of images, behind the samples; else the last."""
    return 1 if value.shape is not None and len(value.shape) >= 4 else -1
