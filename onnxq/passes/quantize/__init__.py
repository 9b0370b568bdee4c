"""Passes that carry a plan out, one kind of choice each. A target names those that it has, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from onnxq.passes import Pass
from onnxq.passes.quantize._weight_forms import Codes
from onnxq.plan import Plan
from onnxq.planning.scales import Scales
from onnxq.recipe import Recipe
from onnxq.summaries.evidence import Evidence
from onnxq.targets import Target


@dataclass(frozen=True)
class Work:
    """What there is to carry out, and all that may be needed for it.

    Attributes:
        scales: of the activations that the plan quantizes, by value name.
        ranks: number of dimensions of activations, by value name, as far as known.
        nodes: names of the nodes that the prepared model has.
        evidence: what data say of layers.
        is_final: whether the target will run the model; else it is measured here, by onnxruntime.
    """

    plan: Plan
    recipe: Recipe
    target: Target
    scales: Scales
    ranks: Mapping[str, int]
    nodes: frozenset[str]
    evidence: Evidence = field(default_factory=dict)
    is_final: bool = False


class PlanPass(Pass):
    """A pass that carries out its part of a plan."""

    #: How codes are chosen.
    codes = Codes()

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    @classmethod
    def of(cls, work: Work) -> Self:
        """The pass for this work."""
        return cls(work.plan)
