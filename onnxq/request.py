"""Everything that a user asks for of `quantize`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.calibration.find_ranges import Effort
from onnxq.checking.labeled import LabelMetric
from onnxq.checking.score import Metric
from onnxq.errors import BadRecipe
from onnxq.job import Environment, Job
from onnxq.output.signature import Signature, read_signature
from onnxq.plan import Plan
from onnxq.recipe import Recipe
from onnxq.runtime.own_functions import failing, shown
from onnxq.runtime.profile import MachineProfile
from onnxq.samples.sampling import Sampling
from onnxq.searching.budget import Budget
from onnxq.summaries.ranges import Ranges


@dataclass(frozen=True)
class Learned:
    """What was learned of a model that was about to be written.

    Attributes:
        job: with a model whose weights know their codes, and other biases.
        ranges: of activations.
        notes: what was done, in sentences.
    """

    job: Job
    ranges: Ranges
    notes: tuple[str, ...] = ()


#: From the float job, the one to start from (its biases may have been corrected), the plan, the ranges and where it
#: will be written.
Learn = Callable[[Job, Job, Plan, Ranges, Path], Learned]


def learned_by(learn: Learn, *arguments: Any) -> Learned:
    """What `learn` makes of these; one that is not ours may do anything.

    Raises:
        BadRecipe: it fails, or gives something else.
    """
    what = "the function that was given as learn"
    is_ours = str(getattr(learn, "__module__", "")).partition(".")[0] == "onnxq"
    with contextlib.nullcontext() if is_ours else failing(what, BadRecipe):
        found = learn(*arguments)
    if not isinstance(found, Learned):
        raise BadRecipe(f"{what} gave {shown(found)} in the place of a Learned")
    return found


@dataclass(frozen=True)
class Request:
    """Everything that the user asked for.

    Attributes:
        output: None: the model's name with the scheme in it, in the current folder.
        plan: to be carried out as it is, without tuning.
        check: run the saved file.
        ranges, evidence: files of them; `effort` is what finding them may take.
        profile: the times to decide by.
        like: how another model was made, to be made again.
        metric: what the user scores models by.
        budget: what a search for the plan may spend; None: nothing is searched for.
        formats: those it chooses from; none: the usual ones.
        logits: outputs that the user says are scores of classes.
        learn: makes another model of the one that is about to be written; None: it is written as it is.
        one_scheme: `auto` stands for one scheme, whatever times say: parts of a folder share weights.
    """

    model: Path
    output: Path | None
    recipe: Recipe
    target: str
    plan: Plan | None
    check: bool
    sampling: Sampling
    ranges: Path | None
    evidence: Path | None
    effort: Effort
    environment: Environment
    profile: MachineProfile
    like: Signature | None = None
    metric: Metric | LabelMetric | None = None
    budget: Budget | None = None
    formats: tuple[str, ...] = ()
    logits: tuple[str, ...] = ()
    one_scheme: bool = False
    learn: Learn | None = None

    @property
    def is_free(self) -> bool:
        """Whether the plan is for us to make."""
        return self.plan is None and self.like is None

    def repeating(self, like: str | Path | None) -> Request:
        """This request, with recipe, target, plan, check and samples held back of the model at `like`.

        Raises:
            BadModel: `like` is no model.
            BadRecipe: it does not say how it was made, or quantizing alone does not make it again.
        """
        if like is None:
            return self
        old = read_signature(like)
        if old.is_trained:
            raise BadRecipe(
                f"'{like}' was trained, and quantizing alone would make an untrained one: "
                "repeat the command 'onnxq train' with which it was made"
            )
        held_back = self.sampling.held_back if old.held_back is None else old.held_back
        return dataclasses.replace(
            self,
            recipe=old.asked_recipe,
            target=old.plan.target,
            plan=old.plan if old.is_given else None,
            check=old.is_checked,
            sampling=dataclasses.replace(self.sampling, held_back=held_back),
            like=old,
        )
