"""What was asked for and has no effect, most likely by mistake: patterns with a typo, numbers that nothing goes by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.weights import find_weights
from onnxq.plan import Method, Plan, has_rank
from onnxq.planning.scales import values_to_observe
from onnxq.recipe import Recipe


def unused_options(recipe: Recipe, model: ir.Model, plan: Plan, path: str | Path) -> Iterator[str]:
    """A sentence for each part of `recipe` that changes nothing in `plan`, which was made of it."""
    nodes = [(node.name or "", node.op_type) for node in graph.nodes(model)]
    matrices = {weight.node.name for weight in find_weights(model) if weight.is_matrix}
    for rule in recipe.rules:
        if not any(rule.matches(name, op) for name, op in nodes):
            ops = f" among {', '.join(rule.ops)}" if rule.ops else ""
            names = f"'onnxq plan {path} --nodes' shows their names"
            yield f"the rule '{rule.nodes}' changes nothing: it matches no node{ops}; {names}"
        elif rule.rank and not any(rule.matches(c.node, c.op) and has_rank(c) and c.node in matrices for c in plan):
            what = "weights of MatMul, Gemm and Conv in few bits, without groups or stacks"
            yield f"the rank in '{rule.set}' changes nothing: it is for {what}"
    if recipe.calibration != Recipe.calibration and not values_to_observe(model, plan):
        yield f"calibration by '{recipe.calibration}' changes nothing: {plan.scheme} needs no activation ranges here"
    if recipe.block_size is not None and not any(choice.block for choice in plan):
        yield f"blocks of {recipe.block_size} change nothing: {plan.scheme} stores no weight in blocks here"
    if recipe.reduce_range and not plan.those(Method.STATIC):
        yield f"reduce_range changes nothing: {plan.scheme} computes nothing in int8 with fixed ranges here"
