"""Any file by the rules of the runtime that a target is for, without that runtime."""

from __future__ import annotations

from pathlib import Path

from onnxq import targets
from onnxq.boundary import bounded
from onnxq.errors import BadRecipe, CheckFailed
from onnxq.model.load import load_model
from onnxq.plan import Method, Plan
from onnxq.recipe import Recipe
from onnxq.targets import rules
from onnxq.targets.rules import Finding


@bounded
def check_rules(model: str | Path, target: str) -> list[Finding]:
    """Where the model at `model` breaks a rule that the documentation of the target's runtime states.

    Args:
        target: one of `targets.rules.names()`.

    Raises:
        OnnxqError: the model cannot be read, or nothing is known of the target.
    """
    if target not in rules.names():
        words = ", ".join(rules.names())
        raise BadRecipe(f"there are no rules for '{target}'; choose one of {words}")
    return rules.findings(load_model(model), target)


def kept_rules(staged: Path, target: str) -> list[str]:
    """What a user should know of the file at `staged`, which was written for `target`, by its rules: a sentence each.

    Raises:
        CheckFailed: the runtime would refuse it.
    """
    found = rules.findings(load_model(staged), target)
    refused = [finding for finding in found if finding.refuses and finding.rule != "fixed_sizes"]
    if refused:
        raise CheckFailed(f"the saved model breaks a rule {rules.sentences(refused, target)[0]}")
    return rules.sentences(found, target)


def unused_level(plan: Plan, level: int) -> list[str]:
    """A sentence where standard operators, which have no accuracy level, are to compute with another than the usual."""
    target = targets.get(plan.target)
    is_standard = not target.domains and not target.consumer
    products = [choice for choice in plan.those(Method.PACKED) if choice.block and choice.op != "Gather"]
    if level == Recipe.accuracy_level or not is_standard or not products:
        return []
    return [
        f"accuracy level {level} has no place in a file for {target.name}: onnxruntime rounds activations to int8 "
        f"unless session.qdq_matmulnbits_accuracy_level is {level} in its session options; ort-cpu files hold the level"
    ]
