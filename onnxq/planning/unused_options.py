"""What was asked for and has no effect, most likely by mistake: patterns with a typo, numbers that nothing goes by."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from onnxq.errors import amount
from onnxq.model import graph
from onnxq.model.weights import find_weights
from onnxq.plan import Method, Plan, has_rank
from onnxq.planning.scales import values_to_observe
from onnxq.recipe import Recipe, Rule

#: Rules that are named one by one.
LISTED = 8


def unused_options(recipe: Recipe, model: ir.Model, plan: Plan, path: str | Path) -> Iterator[str]:
    """A sentence for each part of `recipe` that changes nothing in `plan`, which was made of it."""
    nodes = _names((node.name or "", node.op_type) for node in graph.nodes(model))
    matrices = {weight.node.name for weight in find_weights(model) if weight.is_matrix}
    ranked = _names((choice.node, choice.op) for choice in plan if has_rank(choice) and choice.node in matrices)
    unused = [rule for rule in recipe.rules if not _matches_some(rule, nodes)]
    for rule in unused[:LISTED]:
        ops = f" among {', '.join(rule.ops)}" if rule.ops else ""
        names = f"'onnxq plan {path} --nodes' shows their names"
        yield f"the rule '{rule.nodes}' changes nothing: it matches no node{ops}; {names}"
    if len(unused) > LISTED:
        yield f"so it is with {amount(len(unused) - LISTED, 'more rule')}, which match no node"
    for rule in recipe.rules:
        if rule.rank and _matches_some(rule, nodes) and not _matches_some(rule, ranked):
            what = "weights of MatMul, Gemm and Conv in few bits, without groups or stacks"
            yield f"the rank in '{rule.set}' changes nothing: it is for {what}"
    if recipe.calibration != Recipe.calibration and not values_to_observe(model, plan):
        yield f"calibration by '{recipe.calibration}' changes nothing: {plan.scheme} needs no activation ranges here"
    if recipe.block_size is not None and not any(choice.block for choice in plan):
        yield f"blocks of {recipe.block_size} change nothing: {plan.scheme} stores no weight in blocks here"
    if recipe.reduce_range and not plan.those(Method.STATIC):
        yield f"reduce_range changes nothing: {plan.scheme} computes nothing in int8 with fixed ranges here"


def _names(nodes: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The operators of the nodes of each name."""
    found: dict[str, set[str]] = {}
    for name, op in nodes:
        found.setdefault(name, set()).add(op)
    return found


def _matches_some(rule: Rule, nodes: Mapping[str, Collection[str]]) -> bool:
    names = ({rule.nodes} & nodes.keys()) if rule.is_of_one else nodes
    return any(rule.matches(name, op) for name in names for op in nodes[name])
