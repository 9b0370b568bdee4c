"""Step 6: carry a plan out, by the passes of its target."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import PassManager
from onnx_ir.passes.common import RemoveUnusedOpsetsPass, TopologicalSortPass

from onnxq import passes
from onnxq.errors import root_cause
from onnxq.model import graph
from onnxq.model.origin import lie_by_inputs, modules_of, name_lying, name_modules
from onnxq.model.types import Types, types_of
from onnxq.model.weights import find_weights
from onnxq.passes.fusing.declare_ranks import DeclareRanks
from onnxq.passes.fusing.fuse_attention import FuseAttention
from onnxq.passes.fusing.fuse_epilogues import FuseEpilogues
from onnxq.passes.fusing.keep_in_float import KeepInFloat
from onnxq.passes.fusing.keep_pools import KeepPoolsInFloat
from onnxq.passes.fusing.part_gemms import PartGemms
from onnxq.passes.fusing.set_apart import SetApart
from onnxq.passes.fusing.spell_hard_sigmoids import SpellHardSigmoids
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._weight_forms import Codes
from onnxq.passes.quantize.insert_onnxq_nodes import EXACT_BELOW
from onnxq.passes.recurrent.insert_recurrent import InsertRecurrent
from onnxq.passes.regions.bf16.make_bf16_regions import MakeBf16Regions
from onnxq.passes.regions.make_regions import MakeRegions
from onnxq.passes.store_halves import StoreHalves
from onnxq.plan import Method, Plan
from onnxq.planning import int8_regions
from onnxq.planning.counts.find_counts import counts_in
from onnxq.planning.counts.spans import BFLOAT16
from onnxq.planning.scales import activation_scales
from onnxq.recipe import KEEP, Recipe
from onnxq.summaries.evidence import NO_EVIDENCE, Evidence
from onnxq.summaries.ranges import Ranges
from onnxq.targets import Target

#: Schemes that ask for bfloat16.
BF16 = ("bf16", "bfloat16")


def rewrite(
    model: ir.Model,
    plan: Plan,
    ranges: Ranges,
    recipe: Recipe,
    target: Target,
    evidence: Evidence = NO_EVIDENCE,
    *,
    types: Callable[[], Types] | None = None,
    is_final: bool = False,
) -> ir.Model:
    """A copy of the prepared `model` in which `plan` is carried out. Nothing is packed yet: new weights are lazy.

    Args:
        types: of the values of `model`, by `types_of`, from who keeps them; they take as long as all the rest.
        is_final: whether the target will run it; else it is measured here, by onnxruntime.
    """
    names = frozenset(node.name or "" for node in graph.nodes(model))
    work = Work(plan, recipe, target, activation_scales(model, plan, ranges), ranges.ranks, names, evidence, is_final)
    exact = recipe.accuracy_level < EXACT_BELOW
    types = types or (lambda: types_of(model))
    behind: list[ir.passes.PassBase] = []
    if plan.those(Method.FUSED):
        behind.append(FuseAttention(plan, types(), exact=exact))
    if target.has_onnxq_ops:
        behind += [FuseEpilogues(), DeclareRanks(types)]
    if target.spells_hard_sigmoids:
        behind.append(SpellHardSigmoids())
    regions = int8_regions.has_regions(plan)
    if not target.consumer:  # what onnxruntime makes of the rest
        behind += [KeepInFloat(), *([] if regions else [PartGemms()])]
    behind.append(RemoveUnused())
    if target.has_onnxq_ops and any(choice.joins_bf16_region for choice in plan):
        counting = frozenset(node.name or "" for node in counts_in(model, types(), BFLOAT16).nodes)
        behind.append(MakeBf16Regions(types(), _in_bfloat16(model, plan, recipe), counting))
    if regions and plan.those(Method.STATIC):
        behind.append(MakeRegions(ranges.ranks, types()))
    if not target.consumer:
        behind.append(KeepPoolsInFloat())  # of codes that no region reads
    behind += [SetApart(pools=not target.consumer), StoreHalves(), RemoveUnusedOpsetsPass(), TopologicalSortPass()]
    try:
        made = PassManager([*_of_target(work, model), *behind])(model.clone()).model
    except ir.passes.PassError as error:  # what was found wrong with a weight that a pass looked into
        cause = root_cause(error)
        raise cause from cause.__cause__
    name_modules(made, modules_of(model))
    name_lying(made, lie_by_inputs(model))
    return made


def _in_bfloat16(model: ir.Model, plan: Plan, recipe: Recipe) -> frozenset[str]:
    """Convolutions that may compute in bfloat16: those the plan says so of, and those with weights too small for it,
    beside which others do."""
    found = {choice.node for choice in plan if choice.joins_bf16_region}
    for node in graph.nodes(model):
        choice = plan.choices.get(node.name or "")
        is_kept = choice is None or choice.method is Method.KEEP
        scheme = recipe.scheme_for(node.name or "", node.op_type)
        if is_kept and (scheme in BF16 or (scheme != KEEP and int8_regions.has_few_weights(node))):
            found.add(node.name or "")
    return frozenset(found)


def _of_target(work: Work, model: ir.Model) -> list[PlanPass]:
    thorough = work.recipe.effort == "thorough"
    codes = Codes(_named_algorithms(work.recipe, model, work.plan), work.evidence, _ranks(work), thorough)
    made: list[PlanPass] = [InsertRecurrent.of(work)] if work.target.has_onnxq_ops else []
    for word in passes.in_order("quantize", work.target.passes):
        each = passes.found("quantize")[word]
        assert issubclass(each, PlanPass), word
        made.append(each.of(work))
    for each_pass in made:
        each_pass.codes = codes
    return made


def _named_algorithms(recipe: Recipe, model: ir.Model, plan: Plan) -> dict[str, str]:
    """By weight, the algorithm that the plan or the user named for the first of the nodes that read it."""
    named: dict[str, str] = {}
    by_plan = {choice.node: choice.algorithm_by(recipe) for choice in plan}
    for weight in find_weights(model) if any(by_plan.values()) else ():
        word = by_plan.get(weight.node.name or "")
        if word is not None:
            named.setdefault(weight.value.name or "", word)
    return named


def _ranks(work: Work) -> dict[str, int]:
    """By node, the rank of what makes up for the codes of its weight, where that is asked for and can be."""
    return {each.node: rank for each in work.plan if (rank := each.rank_by(work.recipe))}
