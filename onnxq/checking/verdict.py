"""What follows from a check: whether it is good enough, and what to do if it is not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnxq import formats, targets
from onnxq.checking.models import Check
from onnxq.errors import CheckFailed, NothingToDo, amount
from onnxq.job import Job
from onnxq.model import graph
from onnxq.plan import COMPUTING, FILE_IS_SLOWER, FLOAT_IS_FASTER, Choice, Method, Plan
from onnxq.planning.shared_weights import in_company
from onnxq.recipe import Recipe
from onnxq.runtime import known, native

#: dB that are asked for beyond what was missed, when the plan is tuned once more.
MARGIN = 0.5
#: The quantized file may be this much slower than float in the final timing before its kernels go back to float.
SLOWER = 1.05


def judged(job: Job, plan: Plan, proof: Check) -> Check:
    """`proof`, with what the user should know of the file in which `plan` was carried out.

    Raises:
        CheckFailed: its outputs are below the floor that the user named.
    """
    if not proof.whole:
        return proof
    proof = require_quality(proof, job.recipe)
    if not job.target.consumer and proof.is_slower(SLOWER):
        proof = proof.noting(why_slow(plan))
    if not plan.regions:
        proof = proof.noting("int8 operators stay onnxruntime's own, which were faster here than regions")
    if (target := job.target.with_library) and native.path() is not None and (advice := with_library(plan, target)):
        proof = proof.noting(advice)
    if job.target.has_onnxq_ops and (price := without_library(job.model, plan, proof)):
        proof = proof.noting(price)
    return proof


def misses_floor(proof: Check, recipe: Recipe) -> bool:
    """Whether the user named a floor and the saved file is below it."""
    return recipe.min_sqnr is not None and proof.sqnr < recipe.min_sqnr


def stricter(proof: Check, asked: Recipe, tuned: float) -> Recipe:
    """What to tune by once more, after a plan that the tuner measured at `tuned` dB fell short of what was `asked`:
    samples and optimizer of the check are not those that the plan was measured with."""
    assert asked.min_sqnr is not None
    return replace(asked, min_sqnr=tuned + asked.min_sqnr - proof.sqnr + MARGIN)


def require_quality(proof: Check, recipe: Recipe) -> Check:
    """`proof`, which says so if the outputs are worse than was aimed for.

    Raises:
        CheckFailed: they are below the floor that the user named.
    """
    if not proof.sqnr < recipe.aim:
        return proof
    reached, wanted = f"{proof.sqnr:.1f} dB", f"{recipe.aim:g} dB"
    if reached == f"{recipe.aim:.1f} dB":
        reached = f"{proof.sqnr:.3f} dB"
    if recipe.min_sqnr is not None:
        raise CheckFailed(
            f"the outputs reach {reached}, less than the {wanted} asked for: "
            "keep more nodes in float (--keep), or lower --min-sqnr"
        )
    return proof.noting(
        f"the outputs reach {reached}, less than the {wanted} that onnxq aims for: "
        "compare results on data of yours before you use this file (--min-sqnr makes it a failure)"
    )


def require_gain(path: Path, asked: Recipe, plan: Plan, sizes: tuple[int, int], is_faster: bool | None) -> None:
    """Refuse a file that would be no smaller than the float model, and no faster.

    Args:
        asked: by the user: who keeps what is slow wants it whatever it gains.
        sizes: bytes of the float model's files and of the quantized one's.
        is_faster: than the float model, also by float kernels alone: the runtime makes more of some models once they
            were prepared. None: nobody measured it.

    Raises:
        NothingToDo: it is such a file.
    """
    before, after = sizes
    computes = bool(plan.those(*COMPUTING))
    gains = is_faster or (computes and is_faster is None)
    if after >= before and not asked.keep_slow and not gains:
        raise NothingToDo(
            f"{path}: nothing to gain: quantized it would have {after / max(1, before):.2f} of its size, "
            f"and {'be no faster' if computes else 'compute as it does'}"
        )


def why_slow(plan: Plan) -> str:
    """What a user should know of a file that is slower than float."""
    has_bnb4 = graph.MICROSOFT in targets.get(plan.target).domains
    if has_bnb4 and any(_format(choice).bnb4 is not None for choice in plan.those(Method.PACKED)):
        return known.SLOW_BNB4
    if plan.those(Method.HALF):
        return "slower than float on processors, which have few float16 kernels; target ort-cpu only stores float16"
    if plan.those(*COMPUTING):
        return "slower than float, and kept because it was asked for; auto and w8a8 give such kernels back to float"
    return "slower than float, although every kernel is one of float: onnxruntime fuses other nodes of this graph"


def with_library(plan: Plan, target: str) -> str:
    """What to try where most nodes that could compute on short weights do not, for their time in the runtime's own
    kernels: `target`, which has others; nothing if most do."""
    slow = [choice for choice in plan if choice.elements and choice.reason in (FLOAT_IS_FASTER, FILE_IS_SLOWER)]
    if len(slow) <= sum(bool(choice.elements) for choice in plan.those(*COMPUTING)):
        return ""
    return (
        f"onnxruntime's own kernels are no faster than float for {amount(len(slow), 'node')} with weights: those of "
        f"target {target} may be (-t {target}), wherever onnxq's library is loaded"
    )


def without_library(model: ir.Model, plan: Plan, proof: Check) -> str:
    """What the operators of the onnxq domain cost where their library is not registered; nothing if there are none."""
    products = {choice.node: choice for choice in plan.those(Method.PACKED) if choice.op != "Gather"}
    floats = {node.name for node in in_company(node for node in graph.nodes(model) if node.name in products)}
    in_integers = sum(_format(choice).is_integer for name, choice in products.items() if name not in floats)
    costs = []
    if in_integers:
        costs.append(f"onnxruntime's own MatMulNBits computes {amount(in_integers, 'product')}")
    if in_integers < len(products):
        where = f"the weights of {amount(len(products) - in_integers, 'product')} become floats when the model loads"
        costs.append(f"{where}, with their memory and speed")
    measured = ""
    if proof.bare_ms:
        db = "" if math.isnan(proof.bare_sqnr) else f"{proof.bare_sqnr:.1f} dB, "
        measured = f": {db}{proof.float_ms / proof.bare_ms:.2f}× as fast as float"
    return f"without onnxq's library, {' and '.join(costs)}{measured}" if costs else ""


def _format(choice: Choice) -> formats.Format:
    return formats.get(choice.format or "")
