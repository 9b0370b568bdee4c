"""Biases: those of products, and those that were zero when a model was exported, which torch's newer exporter removes.

Whether a model reads the bias of a module is told by the bias that it has there, or by the exporter: modules whose
weight is read by something else than they, as the heads of ArcFace are, have one for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded import told
from onnxq.checkpoints.matching.folded.batchnorms import give
from onnxq.checkpoints.matching.names import Renaming, module_of_reader
from onnxq.checkpoints.stored import key, real
from onnxq.errors import BadModel
from onnxq.formats.kinds import arguments
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ADDED
from onnxq.model.weights import Weight, weights_of
from onnxq.passes.normalize.fold_batchnorm import outputs_of


def put_back(model: ir.Model, tensors: Mapping[str, Any], renamed: Renaming, apart: Collection[str]) -> list[str]:
    """Give convolutions without a bias, which had one by their metadata, that of the module whose weight they read;
    which tensors these are.

    Args:
        apart: tensors of kernels that have something else inside, or stay as they are.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    placed, names = list[str](), Names(model)
    constants = {renamed(name) for owner in graph.graphs(model) for name in owner.initializers}
    for node in graph.nodes(model):
        has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
        if not graph.is_op(node, "Conv", "ConvTranspose") or has_bias or not told.had_bias(node):
            continue
        for weight in weights_of(node, least=1):
            own, around = (weight.value.name or "").removesuffix(".weight"), module_of_reader(node)
            module = renamed(key(around or own, "weight")).removesuffix("weight").removesuffix(".")
            source, kernel = key(module, "bias"), key(module, "weight")
            is_its_own = getattr(tensors.get(kernel), "shape", None) == weight.shape and kernel not in apart
            is_free = source in tensors and source not in constants and source not in apart
            if weight.role.index == 1 and is_its_own and is_free:
                bias = real(source, tensors[source])
                if bias.shape == (outputs_of(node, weight.shape),):
                    give(node, 2, bias, names)
                    placed.append(source)
    return placed


def is_read(weight: Weight, n: int, placed: Collection[str]) -> bool:
    """Whether a product of `n` outputs has a bias, or had one that was zero, or is a layer's own.

    Args:
        placed: names of constants that have the numbers of tensors of theirs.
    """
    node = weight.node
    if told.had_bias(node) or node.meta.get(ADDED):
        return True
    place = place_of(weight, n)
    bias = None if place is None else place[0].inputs[place[1]]
    return bias is not None and bias.name not in placed


def place_of(weight: Weight, n: int) -> tuple[ir.Node, int] | None:
    """The node and its input where a product of `n` outputs has its bias: itself, or the Add behind it."""
    node = weight.node
    if node.op_type == "Gemm":
        return (node, 2) if len(node.inputs) > 2 else None
    add = graph.only_consumer(node.outputs[0])
    index = _bias_of(add, node.outputs[0], n)
    return None if add is None or index is None else (add, index)


def put_bias(
    weight: Weight, name: str, bias: NDArray, n: int, names: Names, rows: NDArray[np.int64] | None = None
) -> None:
    """Replace the bias of a Gemm or of the Add behind a MatMul, or add one where there is none.

    Args:
        name: of the tensor.
        n: outputs of the product.
        rows: which of its numbers belongs to each output; None: its own.

    Raises:
        BadModel: it does not fit, or holds other things than numbers.
    """
    node = weight.node
    if bias.shape != (n,):
        raise BadModel(f"'{name}' is of shape {list(bias.shape)}, node '{node.name}' makes {n} numbers")
    if node.op_type == "Gemm" and graph.attribute_float(node, "beta", 1.0) != 1.0:
        raise BadModel(f"node '{node.name}' multiplies its bias by a beta, which '{name}' does not know of")
    try:
        with np.errstate(over="ignore"):
            numbers = arguments.numbers(bias, "bias").astype(weight.tensor.dtype.numpy())
    except ValueError:
        raise BadModel(f"'{name}' is of type {bias.dtype}, not of real numbers") from None
    if not np.isfinite(numbers).all():
        raise BadModel(f"'{name}' holds numbers that are not finite, or too large for {numbers.dtype}")
    numbers = numbers if rows is None else numbers[rows]
    tensor = ir.tensor(numbers)
    owner = weight.node.graph
    assert isinstance(owner, ir.Graph)
    value = graph.add_constant(owner, names.fresh(f"{node.name}_bias"), tensor)
    if node.op_type == "Gemm":
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, value)
        return
    add = graph.only_consumer(node.outputs[0])
    index = _bias_of(add, node.outputs[0], n)
    if add is not None and index is not None:
        add.replace_input_with(index, value)
        return
    y = node.outputs[0]
    out = ir.node("Add", [None, value], name=names.fresh(f"{node.name}_add_bias"))
    node.append(out)
    graph.replace_value(y, out.outputs[0])
    y.name = names.fresh(f"{node.name}_product")
    out.replace_input_with(0, y)


def _bias_of(add: ir.Node | None, product: ir.Value, n: int) -> int | None:
    """Which input of the Add behind a product is a constant bias of `n` numbers."""
    if add is None or not graph.is_op(add, "Add"):
        return None
    index = 1 if add.inputs[0] is product else 0
    tensor = graph.constant(add.inputs[index])
    return index if tensor is not None and tensor.size == n and tensor.shape.numpy()[-1] == n else None
