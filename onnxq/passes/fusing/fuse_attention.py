"""Attention as an operator of the onnxq domain."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.types import Types
from onnxq.own_ops import JOINED, Variant
from onnxq.passes import Pass
from onnxq.passes.fusing.heads import joined_at, merged_behind, split_at, split_before
from onnxq.plan import Method, Plan
from onnxq.planning.attention import Attention, attention_at
from onnxq.planning.rows.operands import HEADS_FIRST


class FuseAttention(Pass):
    """Give each FUSED Softmax, with the nodes of its attention, the operator onnxq.Attention.

    1. A Transpose that makes kᵀ is undone: the kernel reads k as it is.
    2. A Where that hides scores becomes a mask, 0 or the number that it puts in their place.
    3. Where Reshape and Transpose split heads, or join those of the result, the kernel reads and writes
       [B, T, heads · D] itself (`heads.py`): they go, and so do the nodes that compute their shapes.
    4. The model gets a function body for each variant that its nodes need.

    Args:
        exact: nothing is rounded to less than float32.
        types: of values, by the names that they have in the model that the plan was made for.
    """

    def __init__(self, plan: Plan, types: Types, *, exact: bool) -> None:
        super().__init__()
        self.plan, self.types, self.exact = plan, types, exact

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, chosen = Names(model), {choice.node for choice in self.plan.those(Method.FUSED)}
        nodes = [node for node in graph.nodes(model) if node.name in chosen]
        called = {self._insert(found, names) for node in nodes if (found := attention_at(node)) is not None}
        own_ops.add_functions(model, called)
        return ir.passes.PassResult(model, modified=bool(called))

    def _insert(self, found: Attention, names: Names) -> Variant:
        mask = _mask_of(found, names) if found.hides is not None else found.mask
        parts = _Parts(found, self.types)
        k, turned = (parts.k.x, "") if parts.k is not None else _rows_of_k(found, names)
        attributes: graph.Attributes = {
            "scale": found.scale,
            "transK": int(parts.k is not None or bool(turned)),
            "activations": "exact" if self.exact else "fast",
        }
        if parts.joined:
            turned = f"joined{parts.joined}"
            attributes = {**attributes, "heads": parts.heads, "joined": parts.joined}
        variant = Variant(own_ops.ATTENTION, "softmax", mask=mask is not None, exact=self.exact, moved=turned)
        name = found.softmax.name or ""
        found.softmax.name = names.fresh(f"{name}_float")
        q, v = (found.q if parts.q is None else parts.q.x), (found.v if parts.v is None else parts.v.x)
        y = graph.add_node(
            found.product,
            own_ops.ATTENTION,
            [q, k, v, *([] if mask is None else [mask])],
            name,
            names.fresh(f"{name}_out"),
            attributes,
            own_ops.DOMAIN,
            variant.overload,
        )
        behind = parts.behind or (found.product,)
        graph.replace_value(behind[-1].outputs[0], y)
        owner = found.product.graph
        assert owner is not None
        for node in (*reversed(behind), *reversed(found.inner)):
            if node.graph is not None:
                owner.remove(node, safe=True)
        return variant


class _Parts:
    """Which of q, k, v and y have their heads joined, all the same number of them."""

    def __init__(self, found: Attention, types: Types) -> None:
        axes, y = found.k_axes, found.product.outputs[0]
        self.heads, self.joined = 0, 0
        self.q = self.k = self.v = None
        self.behind: tuple[ir.Node, ...] = ()
        if axes is None or len(axes) != len(HEADS_FIRST):  # the body could not tell which axes are which
            return
        q, v = joined_at(found.q, types), joined_at(found.v, types)
        k = split_at(found.k, types) if axes == HEADS_FIRST else None
        k = joined_at(found.k, types) if axes == sorted(axes) else k
        before = q or split_before(found.q, types)
        known = before or v or k
        self.heads = 0 if known is None else known.heads
        self.q, self.k, self.v = (each if each is not None and each.heads == self.heads else None for each in (q, k, v))
        if before is not None:
            numbers = (types.of(y).shape or (None,))[-1]
            width = self.heads * numbers if isinstance(numbers, int) else None
            if width is None and self.v is not None:
                width = self.v.width
            self.behind = merged_behind(y, width, before.x, types) or ()
        bits = {"q": self.q, "k": self.k, "v": self.v, "y": self.behind or None}
        self.joined = sum(JOINED[word] for word, part in bits.items() if part is not None)


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
