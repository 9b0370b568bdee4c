"""Attention as an operator of the onnxq domain."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.own_ops import Variant
from onnxq.passes import Pass
from onnxq.plan import Method, Plan
from onnxq.planning.attention import Attention, attention_at


class FuseAttention(Pass):
    """Give each FUSED Softmax, with the nodes of its attention, the operator onnxq.Attention.

    1. A Transpose that makes kᵀ is undone: the kernel reads k as it is.
    2. A Where that hides scores becomes a mask, 0 or the number that it puts in their place.
    3. The model gets a function body for each variant that its nodes need.

    Args:
        exact: nothing is rounded to less than float32.
    """

    def __init__(self, plan: Plan, *, exact: bool) -> None:
        super().__init__()
        self.plan, self.exact = plan, exact

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, chosen = Names(model), {choice.node for choice in self.plan.those(Method.FUSED)}
        nodes = [node for node in graph.nodes(model) if node.name in chosen]
        called = {self._insert(found, names) for node in nodes if (found := attention_at(node)) is not None}
        own_ops.add_functions(model, called)
        return ir.passes.PassResult(model, modified=bool(called))

    def _insert(self, found: Attention, names: Names) -> Variant:
        mask = _mask_of(found, names) if found.hides is not None else found.mask
        k, turned = _rows_of_k(found, names)
        variant = Variant(own_ops.ATTENTION, "softmax", mask=mask is not None, exact=self.exact, moved=turned)
        name = found.softmax.name or ""
        found.softmax.name = names.fresh(f"{name}_float")
        attributes: graph.Attributes = {
            "scale": found.scale,
            "transK": int(bool(turned)),
            "activations": "exact" if self.exact else "fast",
        }
        inputs = [found.q, k, found.v, *([] if mask is None else [mask])]
        y = graph.add_node(
            found.product,
            own_ops.ATTENTION,
            inputs,
            name,
            names.fresh(f"{name}_out"),
            attributes,
            own_ops.DOMAIN,
            variant.overload,
        )
        graph.replace_value(found.product.outputs[0], y)
        owner = found.product.graph
        assert owner is not None
        for node in reversed(found.inner):
            owner.remove(node, safe=True)
        return variant


def _rows_of_k(found: Attention, names: Names) -> tuple[ir.Value, str]:
    """k as the kernel reads it, and the word of the variant for that."""
    axes = found.k_axes
    if axes is None:
        return found.k, ""
    word = f"turned{len(axes)}"
    if axes == sorted(axes):
        return found.k, word
    name = names.fresh(f"{found.k.name}_rows")
    return graph.add_node(found.product, "Transpose", [found.k], name, name, {"perm": axes}), word


def _mask_of(found: Attention, names: Names) -> ir.Value:
    assert found.hides is not None
    owner = found.hides.graph
    assert isinstance(owner, ir.Graph)
    zero = graph.add_constant(owner, names.fresh("seen"), ir.tensor(np.zeros((), np.float32)))
    name = names.fresh(f"{found.hides.name}_mask")
    inputs = [zero if value is found.scores else value for value in found.hides.inputs]
    return graph.add_node(found.product, "Where", inputs, name, name)
