"""Any file by the rules of the runtime that a target is for, without that runtime."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from onnxq import targets
from onnxq.boundary import bounded
from onnxq.checking.models import Check
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


@dataclass(frozen=True)
class KeptRules:
    """
    Attributes:
        notes: what a user should know of a file by the rules of its runtime, a sentence each.
        undone: those of them on what only the user can do, before which the runtime refuses the file.
    """

    notes: tuple[str, ...]
    undone: tuple[str, ...]

    def told(self, found: Check, *others: str) -> Check:
        """What was `found` of the file, with these notes and others."""
        return dataclasses.replace(found.noting(*self.notes, *others), undone=self.undone)


def kept_rules(staged: Path, target: str) -> KeptRules:
    """What the rules of `target` say of the file at `staged`, which was written for it.

    Raises:
        CheckFailed: the runtime would refuse it, whatever the user does.
    """
    found = rules.findings(load_model(staged), target)
    refused = [finding for finding in found if finding.refuses]
    left = [finding for finding in refused if finding.rule in rules.LEFT_TO_USERS]
    if len(left) < len(refused):
        ours = [finding for finding in refused if finding not in left]
        raise CheckFailed(f"the saved model breaks a rule {rules.sentences(ours, target)[0]}")
    return KeptRules(tuple(rules.sentences(found, target)), tuple(rules.sentences(left, target)))


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
