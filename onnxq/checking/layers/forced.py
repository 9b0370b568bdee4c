"""A model in which every layer reads what another model has there: what it gives is wrong by its own error alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.checking.layers.pairing import Pair
from onnxq.checking.layers.side import Side, cloned, is_conversion, quantizer
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.observe.expose_values import ExposeValues


class Forced:
    """Model B cut between its layers.

    Of each pair, who reads B's value reads an input instead, in float64 where the value is, else in float32, that is
    called as `inputs` says. What rounds the value to codes and back stays with the layer that makes it; only operators
    on codes, which have to be given codes, round what they are given.

    Attributes:
        inputs: by the name of B's value, the input that takes its place; of pairs that a piece does not need too.
    """

    def __init__(self, side: Side, pairs: Sequence[Pair], types: Types) -> None:
        self._model = cloned(side.model)
        self._types = types
        self._names = Names(self._model)
        self._values = {v.name or "": v for v in _values(self._model)}
        self.inputs: dict[str, str] = {}
        forms = {pair.b.name or "": [form.name or "" for form in side.forms(pair.b)] for pair in pairs}
        for root, names in forms.items():
            self._cut(root, [self._values[name] for name in names])

    def _cut(self, root: str, forms: list[ir.Value]) -> None:
        kind = ir.DataType.DOUBLE if self._types[root].dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        given = ir.Value(name=self._names.fresh(f"{root}_given"), type=ir.TensorType(kind))
        uses = [(form, use) for form in forms for use in form.uses()]
        outside = [(form, use) for form, use in uses if not (is_conversion(use.node) and use.idx == 0)]
        if not outside:
            return
        self._model.graph.inputs.append(given)
        self.inputs[root] = given.name or ""
        for form, use in outside:
            use.node.replace_input_with(use.idx, self._as(given, form, use.node))

    def _as(self, given: ir.Value, form: ir.Value, reader: ir.Node) -> ir.Value:
        """The input in the type of `form`."""
        by = quantizer(form)
        dtype = ir.DataType.FLOAT if by is not None else self._types[form.name or ""].dtype or form.dtype
        if dtype not in (None, given.dtype) and dtype in graph.FLOATS:
            name = self._names.fresh(f"{given.name}_cast")
            given = graph.add_node(reader, "Cast", [given], name, name, {"to": int(dtype)})
        if by is None:
            return given
        name = self._names.fresh(f"{given.name}_codes")
        return graph.add_node(reader, "QuantizeLinear", [given, *by.inputs[1:]], name, name)

    def piece(self, wanted: Sequence[str]) -> tuple[ir.Model, list[str | None]]:
        """The layers that make the values called `wanted`, and nothing else; under which names they come out."""
        piece = cloned(self._model)
        expose = ExposeValues(list(wanted))
        before = len(piece.graph.outputs)
        expose(piece)
        names = set(expose.outputs)
        del piece.graph.outputs[:before]
        have = {value.name for value in piece.graph.outputs}
        piece.graph.outputs.extend(v for v in _values(piece) if v.name in names - have and v.graph is piece.graph)
        RemoveUnused()(piece)
        used = [value for value in piece.graph.inputs if value.uses() or value.is_graph_output()]
        piece.graph.inputs[:] = used
        return piece, expose.outputs


def _values(model: ir.Model) -> list[ir.Value]:
    found: list[ir.Value] = []
    for each in graph.graphs(model):
        found += [*each.inputs, *(output for node in each for output in node.outputs)]
    return found
