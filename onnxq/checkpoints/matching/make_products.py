"""Products for the layers of a checkpoint that a model does not have yet; `match.py` puts their weights in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.checkpoints.schemes import FLOATS, ORDER
from onnxq.checkpoints.stored import Layer
from onnxq.errors import BadData, BadModel
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ADDED
from onnxq.model.types import infer_types

#: Of the standard operators, and of the file, of a model that is made here.
OPSET, IR_VERSION = 21, 10


def model_of(layers: Sequence[Layer], path: str) -> ir.Model:
    """A model of nothing but the quantized ones of `layers`, each from an input [rows, in] to an output [rows, out].

    They are called x and y, or where there are several layers NAME.x and NAME.y.

    Raises:
        BadData: there are none, or one has no weights.
    """
    there = [layer for layer in layers if layer.scheme != FLOATS]
    if not there:
        kinds = ", ".join(word.replace("_", "-") for word in ORDER if word != FLOATS)
        raise BadData(f"'{path}' holds no quantized layers of a kind that onnxq reads ({kinds})")
    made = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="layers")
    model = ir.Model(made, ir_version=IR_VERSION)
    names = Names(model)
    for layer in there:
        prefix = "" if len(there) == 1 else f"{layer.name}."
        n, k = layer.open().shape
        x = ir.Value(name=f"{prefix}x", shape=ir.Shape(["rows", k]), type=ir.TensorType(ir.DataType.FLOAT))
        made.inputs.append(x)
        _product(model, layer.name or "layer", x, ir.DataType.FLOAT, 2, (n, k), f"{prefix}y", names)
    return model


def add(model: ir.Model, wanted: Mapping[str, str], layers: Sequence[Layer]) -> None:
    """A product for each layer of `wanted`, of the value of the model that is named there; its result is a new output.

    Raises:
        BadModel: the model has no such value, or one that the layer does not take.
        BadData: the checkpoint has no such layer, or it has no weights.
    """
    if not wanted:
        return
    values = {value.name: value for value in model.graph.inputs}
    values |= {value.name: value for node in model.graph for value in node.outputs if value.name}
    types, nodes = infer_types(model, guess=True), {node.name for node in model.graph}
    there, names = {layer.name: layer for layer in layers}, Names(model)
    for layer, name in wanted.items():
        if layer not in there:
            raise BadData(f"the checkpoint holds no layer '{layer}' to add; it holds {', '.join(sorted(there)[:8])}")
        if name not in values:
            raise BadModel(f"the model has no value '{name}' that layer '{layer}' could be a product of")
        kind, shape = types[name].dtype, types[name].shape
        if kind not in graph.FLOATS:
            what = "an unknown type" if kind is None else f"type {kind.name}"
            raise BadModel(f"value '{name}' is of {what}: layer '{layer}' multiplies floats")
        n, k = there[layer].open().shape
        if shape is not None and (not shape or (isinstance(shape[-1], int) and shape[-1] != k)):
            numbers = shape[-1] if shape else "no"
            raise BadModel(f"value '{name}' has {numbers} numbers a row; layer '{layer}' takes {k}")
        if layer in nodes:
            raise BadModel(f"the model has a node '{layer}' already: its weight is imported without adding it")
        rank = None if shape is None else len(shape)
        _product(model, layer, values[name], kind, rank, (n, k), names.fresh(layer), names)


def _product(
    model: ir.Model,
    node: str,
    x: ir.Value,
    kind: ir.DataType,
    rank: int | None,
    sizes: tuple[int, int],
    output: str,
    names: Names,
) -> None:
    """A MatMul called `node` of `x` by a weight [out, in] that is not known yet, as an output of the model.

    Raises:
        BadData: it would have no numbers.
    """
    n, k = sizes
    if not n * k:
        raise BadData(f"layer '{node}' of shape [{n}, {k}] has no weights")
    number = len(model.graph)

    def unlike() -> ir.TensorProtocol:
        """A weight that no other one is: equal ones would become one and the same."""
        w = np.zeros(k * n, kind.numpy())
        w[number % w.size] = 1 + number // w.size
        return ir.tensor(w.reshape(k, n))

    unknown = ir.LazyTensor(unlike, dtype=kind, shape=ir.Shape((k, n)))
    weight = graph.add_constant(model.graph, names.fresh(f"{node}.weight"), unknown)
    made = ir.node("MatMul", [x, weight], name=node)
    made.meta[ADDED] = True
    (y,) = made.outputs
    y.name, y.type = output, ir.TensorType(kind)
    y.shape = None if rank is None else ir.Shape([*[None] * (rank - 1), n])
    model.graph.append(made)
    model.graph.outputs.append(y)
