"""Operators that ONNX withdrew, which old exporters wrote and onnxruntime still runs, become those of today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxq.model import graph
from onnxq.model.graph import Names

#: The oldest opset that onnxruntime runs; before, an attribute said how operands are repeated.
_LEAST_OPSET = 7
#: From this opset on Slice takes its bounds as inputs.
_SLICE_BY_INPUTS = 10
_END = np.iinfo(np.int64).max


class ReplaceWithdrawn(ir.passes.InPlacePass):
    """ONNX's converter does not know these experimental operators (opset 1), so a model with one kept its old opset.

    1. ImageScaler: x · scale + bias, a number for each channel.
    2. Affine: α · x + β. ScaledTanh and ParametricSoftplus: α · f(β · x). Scale: x · scale.
    3. Crop of images: a Slice. It cuts a border off (left, top, right, bottom), or with `scale` leaves so many rows and
       columns from its left and top on.

    Definitions: onnx/defs/experiments of ONNX 1.2 to 1.4.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, opset = Names(model), graph.opset(model)
        if opset < _LEAST_OPSET:
            return ir.passes.PassResult(model, modified=False)
        replaced = 0
        for node in list(graph.nodes(model)):
            rewrite = _REWRITES.get(node.op_type) if node.domain == "" else None
            if rewrite is None or node.inputs[0] is None or node.outputs[0].name is None:
                continue
            made = rewrite(_Writer(node, node.inputs[0], names, opset))
            if made is None:
                continue
            graph.replace_value(node.outputs[0], made)
            assert node.graph is not None
            node.graph.remove(node, safe=True)
            replaced += 1
        return ir.passes.PassResult(model, modified=replaced > 0)


@dataclass
class _Writer:
    """Writes nodes before the one that they replace."""

    node: ir.Node
    x: ir.Value
    names: Names
    opset: int

    def number(self, name: str, default: float) -> float:
        found = self.node.attributes.get(name)
        return default if found is None else found.as_float()

    def add(self, op: str, inputs: Sequence[ir.Value], attributes: graph.Attributes | None = None) -> ir.Value:
        name = self.names.fresh(f"{self.node.name or self.node.op_type}_{op}")
        return graph.add_node(self.node, op, inputs, name, name, attributes)

    def constant(self, what: str, values: ArrayLike, dtype: ir.DataType) -> ir.Value:
        owner = self.node.graph
        assert isinstance(owner, ir.Graph)
        tensor = ir.tensor(np.asarray(values).astype(dtype.numpy()))
        return graph.add_constant(owner, self.names.fresh(f"{self.node.name or self.node.op_type}_{what}"), tensor)

    def with_number(self, op: str, x: ir.Value, what: str, value: float) -> ir.Value:
        """`x` Mul or Add a number; `x` itself where that changes nothing."""
        return x if value == (op == "Mul") else self.with_channels(op, x, what, [value])

    def with_channels(self, op: str, x: ir.Value, what: str, values: Sequence[float]) -> ir.Value:
        dtype = ir.DataType.FLOAT if self.x.dtype is None else self.x.dtype
        shape = (1,) if len(values) == 1 else (-1, 1, 1)
        return self.add(op, [x, self.constant(what, np.reshape(values, shape), dtype)])


def _image_scaler(writer: _Writer) -> ir.Value:
    scaled = writer.with_number("Mul", writer.x, "scale", writer.number("scale", 1))
    bias = writer.node.attributes.get("bias")
    # It is there even where it adds nothing: something has to make the output.
    return writer.with_channels("Add", scaled, "bias", [0.0] if bias is None else list(bias.as_floats()))


def _affine(writer: _Writer) -> ir.Value:
    scaled = writer.with_number("Mul", writer.x, "alpha", writer.number("alpha", 1))
    return writer.with_channels("Add", scaled, "beta", [writer.number("beta", 0)])


def _scale(writer: _Writer) -> ir.Value:
    return writer.with_channels("Mul", writer.x, "scale", [writer.number("scale", 1)])


def _scaled(function: str) -> Callable[[_Writer], ir.Value]:
    def rewrite(writer: _Writer) -> ir.Value:
        inner = writer.with_number("Mul", writer.x, "beta", writer.number("beta", 1))
        return writer.with_number("Mul", writer.add(function, [inner]), "alpha", writer.number("alpha", 1))

    return rewrite


def _crop(writer: _Writer) -> ir.Value | None:
    border, size = (writer.node.attributes.get(name) for name in ("border", "scale"))
    if border is None or len(border.as_ints()) != 4 or (size is not None and len(size.as_ints()) != 2):
        return None
    left, top, right, bottom = border.as_ints()
    ends = [-bottom or _END, -right or _END]
    if size is not None:
        height, width = size.as_ints()
        ends = [top + height, left + width]
    bounds = {"starts": [top, left], "ends": ends, "axes": [2, 3]}
    if writer.opset < _SLICE_BY_INPUTS:
        return writer.add("Slice", [writer.x], bounds)
    given = [writer.constant(name, values, ir.DataType.INT64) for name, values in bounds.items()]
    return writer.add("Slice", [writer.x, *given])


_REWRITES: dict[str, Callable[[_Writer], ir.Value | None]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _scaled("Softplus"),
    "Scale": _scale,
    "ScaledTanh": _scaled("Tanh"),
}
