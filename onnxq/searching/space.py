"""A model opened for searching: its units, what their options cost in bytes and seconds, and what they harm."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.calibrate import hash_model
from onnxq.errors import BadRecipe
from onnxq.job import Job
from onnxq.plan import Plan
from onnxq.planning import int8_regions
from onnxq.planning.scales import values_to_observe
from onnxq.planning.shared_weights import reconciled
from onnxq.runtime.ort.installed import version
from onnxq.searching.layer_errors import LayerErrors
from onnxq.searching.meter import Meter
from onnxq.searching.options import Unit, uniform, units_of, whole
from onnxq.searching.plans_elsewhere import PlansElsewhere, is_worth_it
from onnxq.searching.search import Search
from onnxq.searching.sensitivity import measure
from onnxq.summaries.ranges import Ranges
from onnxq.tuning.plan_bench import PlanBench
from onnxq.tuning.timings import Timings
from onnxq.version import __version__

#: Plans that a search may measure, by `--effort`: what fits into so many counted seconds, at least and at most so many.
RUNS = {"quick": (30.0, 24, 128), "normal": (300.0, 96, 1024), "thorough": (1500.0, 256, 4096)}
#: Share of them by which single layers are measured; the others tell how layers interact.
SINGLE = 0.6


@dataclass
class Space:
    """
    Attributes:
        seconds: of one run, by unit and option; empty where speed does not count.
        other_seconds: of what no unit computes.
        in_float: seconds of the float model.
    """

    job: Job
    search: Search
    seconds: list[NDArray[np.float64]]
    other_seconds: float = 0.0
    in_float: float = 0.0

    @property
    def units(self) -> Sequence[Unit]:
        return self.search.units

    @property
    def elements(self) -> int:
        """Weights that are chosen for."""
        return sum(unit.elements for unit in self.units)

    def plan(self, chosen: Sequence[int]) -> Plan:
        """What is carried out for these options."""
        return reconciled(int8_regions.prune(self.search.plan(chosen), self.job.model), self.job.model)

    def nbytes(self, chosen: Sequence[int]) -> int:
        """What the units' weights take."""
        return sum(unit.options[i].nbytes for unit, i in zip(self.units, chosen, strict=True))

    def bits(self, chosen: Sequence[int]) -> float:
        return 8 * self.nbytes(chosen) / max(1, self.elements)

    def latency(self, chosen: Sequence[int]) -> float:
        """Expected time relative to float; 1 where speed does not count."""
        if not self.seconds or not self.in_float:
            return 1.0
        own = sum(float(each[i]) for each, i in zip(self.seconds, chosen, strict=True))
        return (own + self.other_seconds) / self.in_float


def open_space(
    job: Job, bench: PlanBench, plans: Sequence[Plan], ranges: Ranges, *, progress_file: Path | None, fast: bool
) -> Space:
    """Everything that a search chooses by, measured.

    Args:
        plans: the whole model in each form (`options.candidates`).
        progress_file: where what was measured is kept.
        fast: whether speed counts.

    Raises:
        BadRecipe: there is nothing to choose.
    """
    units = units_of(job, plans, ranges)
    if all(len(unit.options) < 2 for unit in units):
        raise BadRecipe(f"'{job.path}' has no weight for which there is a choice among these formats: name others")
    base = whole(plans, units)
    elsewhere = [PlansElsewhere(each, bench).figures for each in job.environment.shared if is_worth_it(each, bench)]
    bench.watch(plans[len(plans) // 2])
    budget = RUNS[job.recipe.effort]
    most = max(budget[1], min(budget[2], int(budget[0] / bench.cost)))
    key = {
        "model": hash_model(job.model),
        "data": job.data_hash,
        "held back": job.sampling.held_back,
        "classes": repr(sorted(bench.classes.items())),
        "plans": [plan.to_json() for plan in plans],
        "recipe": repr(dataclasses.replace(job.recipe, effort="normal")),
        "version": __version__,
        "onnxruntime": version(),
    }
    meter = Meter(bench, progress_file, key, most, job.progress, *elsewhere[-1:])
    try:
        errors = LayerErrors(job, plans, units, ranges)
        single = max(len(units) + 1, int(SINGLE * most)) if most > len(units) else most
        sensitivity = measure(meter, base, units, min(single, most), errors, job.progress)
    finally:
        meter.save()
    space = Space(job, Search(meter, base, units, sensitivity, job.progress, uniform(plans, units)), [])
    if fast:
        _add_seconds(space, bench, plans)
    return space


def _add_seconds(space: Space, bench: PlanBench, plans: Sequence[Plan]) -> None:
    """Time the kernels of each of the plans, and so of each option."""
    timings = Timings(bench, space.job.recipe.accuracy_level)
    differences = [np.zeros(len(unit.options)) for unit in space.units]
    own = [0.0] * len(space.units)
    for number, plan in enumerate(plans):
        costs = timings.costs(plan, timings.kernels(plan), values_to_observe(bench.model, plan))
        space.in_float = costs.total_float
        for unit, entry in enumerate(space.units):
            for i, option in enumerate(entry.options):
                if option.plan != number:
                    continue
                # What is stored computes as in float: nothing is known of it, and its difference is 0.
                names = [choice.node for choice in option.choices if choice.node in costs.quantized_seconds]
                in_float = sum(costs.float_seconds.get(name, 0.0) for name in names)
                differences[unit][i] = sum(costs.quantized_seconds[name] for name in names) - in_float
                own[unit] = max(own[unit], in_float)
    space.seconds = [seconds + each for seconds, each in zip(own, differences, strict=True)]
    space.other_seconds = max(0.0, space.in_float - sum(own))
