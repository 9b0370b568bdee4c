"""Weights that nodes read in different forms, apart: codes of each form can learn then."""

from __future__ import annotations

from collections.abc import Container, Hashable

import onnx_ir as ir

from onnxq.model.graph import Names
from onnxq.model.origin import renew
from onnxq.model.weights import Weight, find_weights
from onnxq.plan import Plan
from onnxq.recipe import Recipe


def unshare(model: ir.Model, plan: Plan, recipe: Recipe, names: Container[str]) -> ir.Model:
    """A copy of `model`, which computes the same: a weight of these names is as many as it has forms in `plan`."""
    made = model.clone()
    fresh, known = Names(made), dict[str, dict[Hashable, ir.Value]]()
    for weight in list(find_weights(made)):
        node, index, name = weight.node, weight.role.index, weight.value.name or ""
        if name not in names:
            continue
        forms, form = known.setdefault(name, {}), _form(weight, plan, recipe)
        if form in forms:
            node.replace_input_with(index, forms[form])
        elif forms:
            renew(weight.value, [(node, index)], weight.tensor, "_again", fresh)
        value = node.inputs[index]
        assert value is not None
        forms[form] = value
    return made


def _form(weight: Weight, plan: Plan, recipe: Recipe) -> Hashable:
    choice, role = plan.choices.get(weight.node.name or ""), weight.role
    if choice is None:
        return role.contraction, role.channel
    how = (choice.method, choice.format, choice.block, choice.granularity, choice.rank_by(recipe))
    return *how, role.contraction, role.channel
