"""What is done to the sums of a dense product becomes part of it."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.own_ops import Variant
from onnxq.passes import Pass
from onnxq.passes.fusing.activations import activation_of

#: onnxruntime's operators that add a vector first, by what is left of them behind it.
_WITH_BIAS = {"BiasGelu": "gelu", "FastGelu": "gelu_tanh"}


class FuseEpilogues(Pass):
    """Give each onnxq.DenseMatMul what is done to its sums, where nobody else reads them.

    1. An Add of a constant vector of N numbers is its bias.
    2. An activation function that kernels have, in any spelling (`activations.py`), is its attribute `activation`;
       onnxruntime's BiasGelu and FastGelu are both of these.
    3. An Add or Mul of any other value behind that is its input `other`. Of two products that are added, the second one
       takes the first.
    4. The model gets a function body for each variant that its nodes need, and loses those that none needs any more.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, called = Names(model), list[Variant]()
        for node in list(graph.nodes(model)):
            is_ours = graph.is_op(node, own_ops.DENSE, domain=own_ops.DOMAIN) and node.graph is not None
            if is_ours and graph.constant(node.inputs[1]) is not None:  # a file may have others
                made = _fused(node, names)
                if made is not None:
                    called.append(made)
        own_ops.add_functions(model, called)
        used = {node.op_identifier() for node in graph.nodes(model)}
        for key in [key for key in model.functions if key[:2] == (own_ops.DOMAIN, own_ops.DENSE) and key not in used]:
            del model.functions[key]
        return ir.passes.PassResult(model, modified=bool(called))


def _fused(node: ir.Node, names: Names) -> Variant | None:
    parts = _Parts(node)
    while parts.take_next():
        pass
    return parts.insert(names) if parts.taken else None


class _Parts:
    """What a node takes in the place of the nodes behind it."""

    def __init__(self, node: ir.Node) -> None:
        self.node, self.y = node, node.outputs[0]
        inputs = [*node.inputs, None, None]
        self.bias, self.other = inputs[2], inputs[3]
        self.activation = graph.attribute_string(node, "activation", "none")
        self.combine = graph.attribute_string(node, "combine", "plus")
        self.taken: list[ir.Node] = []

    def take_next(self) -> bool:
        """Whether the next node, or the next few, became part of it."""
        if self.other is not None:
            return False
        return self._take_bias() or self._take_activation() or self._take_other()

    def insert(self, names: Names) -> Variant:
        last = self.taken[-1]
        exact = graph.attribute_string(self.node, "activations", "fast") == "exact"
        other = "" if self.other is None else self.combine
        word = "" if self.activation == "none" else self.activation
        tensor = graph.constant(self.node.inputs[1])
        assert tensor is not None
        variant = Variant(own_ops.DENSE, tensor.dtype.name.lower(), bias=self.bias is not None, exact=exact, moved=word)
        variant = dataclasses.replace(variant, other=other)
        attributes = {name: graph.attribute_int(self.node, name, 0) for name in ("K", "N")}
        words = {"activations": "exact" if exact else "fast"}
        words |= {"activation": word} if word else {}
        words |= {"combine": other} if other else {}
        inputs = [self.node.inputs[0], self.node.inputs[1], self.bias, self.other]
        while inputs[-1] is None:
            inputs.pop()
        name, self.node.name = self.node.name or "", names.fresh(f"{self.node.name}_plain")
        out = names.fresh(f"{name}_out")
        y = graph.add_node(
            last, own_ops.DENSE, inputs, name, out, {**attributes, **words}, own_ops.DOMAIN, variant.overload
        )
        graph.replace_value(self.y, y)
        owner = last.graph
        assert owner is not None
        for each in (*reversed(self.taken), self.node):
            owner.remove(each, safe=True)
        return variant

    def _follower(self, *op_types: str, domain: str = "") -> ir.Node | None:
        found = graph.only_consumer(self.y)
        is_one = graph.is_op(found, *op_types, domain=domain) and found is not None and len(found.outputs) == 1
        return found if is_one and found is not None and found.graph is self.node.graph else None

    def _take(self, node: ir.Node) -> bool:
        self.taken.append(node)
        self.y = node.outputs[0]
        return True

    def _is_vector(self, value: ir.Value | None) -> bool:
        tensor = graph.constant(value)
        return tensor is not None and tuple(tensor.shape.numpy()) == (graph.attribute_int(self.node, "N", 0),)

    def _take_bias(self) -> bool:
        if self.bias is not None or self.activation != "none":
            return False
        added = self._follower("Add")
        if added is not None:
            more = next((value for value in added.inputs if value is not self.y), None)
            if self._is_vector(more):
                self.bias = more
                return self._take(added)
        both = self._follower(*_WITH_BIAS, domain=graph.MICROSOFT)
        if both is None or len(both.inputs) != 2 or both.inputs[0] is not self.y or not self._is_vector(both.inputs[1]):
            return False
        self.bias, self.activation = both.inputs[1], _WITH_BIAS[both.op_type]
        return self._take(both)

    def _take_activation(self) -> bool:
        found = activation_of(self.y) if self.activation == "none" else None
        if found is None or any(node.graph is not self.node.graph for node in found.nodes):
            return False
        self.activation = found.word
        self.taken += found.nodes
        self.y = found.y
        return True

    def _take_other(self) -> bool:
        combined = self._follower("Add", "Mul")
        if combined is None or len(combined.inputs) != 2:
            return False
        more = next((value for value in combined.inputs if value is not self.y), None)
        tensor = graph.constant(more)
        if more is None or (tensor is not None and tensor.size == 1):
            return False
        self.other, self.combine = more, "plus" if combined.op_type == "Add" else "times"
        return self._take(combined)
