"""The bias of a layer, put where a model adds one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.formats.kinds import arguments
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight


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
