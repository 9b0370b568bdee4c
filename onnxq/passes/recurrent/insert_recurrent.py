"""LSTM, GRU and RNN with int8 weights as onnxq.Recurrent, in subgraphs too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import onnx_ir as ir

from onnxq import formats, layouts, own_ops
from onnxq.encoding.lazy import GivenTensor
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, has_weights, weights_of
from onnxq.own_ops import Variant
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._weight_forms import WeightForms
from onnxq.passes.quantize.insert_onnxq_nodes import EXACT_BELOW
from onnxq.plan import Method, Plan

_W, _R = 1, 2
#: Which way a Transpose turns what a layer reads, and makes, where sequences come before steps (layout 1).
_TURNED_INPUTS = {0: [1, 0, 2], 5: [1, 0, 2], 6: [1, 0, 2]}
_TURNED_OUTPUTS = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])


class InsertRecurrent(PlanPass):
    """Give each recurrent layer that computes with int8 weights an operator whose kernel reads tiles of all gates
    (`layouts.recurrent_tiles`), with one scale a row.

    1. Layers of layout 1 get Transposes around them.
    2. Outputs that the layer does not have are there, as a node needs all that its function has.
    """

    def __init__(self, plan: Plan, *, exact: bool) -> None:
        super().__init__(plan)
        self.exact = exact

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, exact=work.recipe.accuracy_level < EXACT_BELOW)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants = WeightForms(Names(model), self.codes)
        computing = self.plan.those(Method.DYNAMIC, Method.PACKED)
        chosen = {choice.node for choice in computing if choice.op in own_ops.CELLS}
        nodes = [node for node in graph.nodes(model) if node.name in chosen and has_weights(node)]
        for node in nodes:
            _batch_last(node, constants.names)
            constants.called.add(self._replace(node, constants))
        own_ops.add_functions(model, constants.called)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def _replace(self, node: ir.Node, constants: WeightForms) -> Variant:
        weights = {weight.role.index: weight for weight in weights_of(node, least=1)}
        rest = [*node.inputs[3:7], *[None] * (7 - len(node.inputs))]
        inputs = [node.inputs[0], *_packed(node, weights[_W], constants), *_packed(node, weights[_R], constants), *rest]
        while inputs[-1] is None:
            inputs.pop()
        given = [name for name, value in zip(own_ops.RECURRENT_INPUTS, rest, strict=False) if value is not None]
        clips = "clip" in node.attributes
        words = [node.op_type.lower(), *(name.rpartition("_")[2] for name in given), *["clip"] * clips]
        variant = Variant(own_ops.RECURRENT, "int8", exact=self.exact, moved="_".join(words))
        name, node.name = node.name or "", constants.names.fresh(f"{node.name}_float")
        made = ir.node(
            own_ops.RECURRENT,
            inputs,
            attributes=self._attributes(node, weights[_W]),
            domain=own_ops.DOMAIN,
            overload=variant.overload,
            name=name,
            num_outputs=3 if node.op_type == "LSTM" else 2,
        )
        _put(made, node, constants.names)
        return variant

    def _attributes(self, node: ir.Node, weight: Weight) -> graph.Attributes:
        found: dict[str, int | float | str] = {
            "cell": node.op_type,
            "hidden_size": weight.shape[1] // own_ops.CELLS[node.op_type],
            "input_size": weight.shape[2],
            "direction": graph.attribute_string(node, "direction", "forward"),
            "activations": "exact" if self.exact else "fast",
        }
        if node.op_type == "GRU":
            found["linear_before_reset"] = graph.attribute_int(node, "linear_before_reset", 0)
        if "clip" in node.attributes:
            found["clip"] = graph.attribute_float(node, "clip", 0.0)
        return found


def _packed(node: ir.Node, weight: Weight, constants: WeightForms) -> Sequence[ir.Value]:
    """Codes and scales."""
    directions, rows, k = weight.shape
    tensor, channel = (None, 1) if directions == 1 else (_flat(weight.tensor, (directions * rows, k)), 0)
    encoding = constants.new_encoding(
        weight.value, formats.get("int8"), Granularity(channel), node.op_type, tensor=tensor
    )
    gates = own_ops.CELLS[node.op_type]
    parts = {
        "_int8": encoding.part(layouts.recurrent_tiles(directions, gates)),
        "_scale": encoding.part(layouts.recurrent_scales(directions, gates), ir.DataType.FLOAT),
    }
    return [constants.value(weight.value, suffix, ("recurrent", gates), part) for suffix, part in parts.items()]


def _flat(tensor: ir.TensorProtocol, shape: tuple[int, int]) -> ir.TensorProtocol:
    """The rows of all directions; those of codes with a scale each are what they were."""
    is_by_row = isinstance(tensor, GivenTensor) and tensor.form == (formats.get("int8"), Granularity(2, shape[1]))
    if not isinstance(tensor, GivenTensor) or not is_by_row:
        return graph.flattened(tensor, shape)
    given = tensor.given

    def flat() -> QuantizedTensor:
        q = given()
        assert q.scales is not None
        return QuantizedTensor(q.format, Granularity(0), q.codes.reshape(shape), q.scales.reshape(-1))

    return GivenTensor(flat, shape, tensor.dtype, half_scales=tensor.half_scales)


def _put(made: ir.Node, node: ir.Node, names: Names) -> None:
    """`made` in the place of `node`."""
    node.prepend(made)
    for index, output in enumerate(made.outputs):
        old = node.outputs[index] if index < len(node.outputs) else None
        output.name = names.fresh(f"{made.name}_out")
        if old is not None and old.name:
            graph.replace_value(old, output)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _batch_last(node: ir.Node, names: Names) -> None:
    """Make a layer of layout 1 one of layout 0 between Transposes."""
    if not graph.attribute_int(node, "layout", 0):
        node.attributes.pop("layout", None)
        return
    del node.attributes["layout"]
    for index, order in _TURNED_INPUTS.items():
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None:
            name = names.fresh(f"{value.name}_turned")
            node.replace_input_with(index, graph.add_node(node, "Transpose", [value], name, name, {"perm": order}))
    for output, order in zip(node.outputs, _TURNED_OUTPUTS, strict=False):
        if output.name:
            name = names.fresh(f"{output.name}_turned")
            turned = ir.node("Transpose", [output], attributes={"perm": order}, name=name)
            graph.replace_value(output, turned.outputs[0])
            output.name = names.fresh(f"{name}_before")
            turned.replace_input_with(0, output)
            node.append(turned)
