"""Where the tuner's times come from: the machine profile, and a measurement for what it does not hold.

1. A kernel is told by what it computes, not by its node's name: nodes that are alike share an entry, the mean of them.
2. An entry is made once. What is decided follows from the profile alone, so who is given it decides the same.
3. Into a profile that is closed nothing is measured: kernels must be there, and whole plans that are not are predicted
   from their kernels.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence

from onnxq.calibration import calibrate
from onnxq.errors import BadRecipe
from onnxq.model import graph
from onnxq.plan import COMPUTING, Choice, Method, Plan
from onnxq.planning import int8_regions
from onnxq.planning.attention import attention_at
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.profile import PlanTime
from onnxq.runtime.timing import is_below
from onnxq.tuning.costs import Costs, attribute_costs, borders, conversions, owners_of, predicted_seconds
from onnxq.tuning.costs_there import costs_there, made_in_floats
from onnxq.tuning.halves import HalfCosts, all_in_half, are_in_half, conversion_rate, half_costs, seconds_in_half
from onnxq.tuning.kernel_words import form_of, hash_of_plan, hash_of_trace, words_of
from onnxq.tuning.plan_bench import PlanBench
from onnxq.tuning.there import There

#: Seconds for which each of two models is timed in turns.
TIMING_SECONDS = 0.5
#: How far a time that was predicted from kernels is to be trusted, relative to float.
PREDICTED = 0.05


class Timings:
    """The times of one model's kernels and plans.

    Args:
        bench: with the profile.
        accuracy_level: of MatMulNBits, by which its kernels differ.
    """

    def __init__(self, bench: PlanBench, accuracy_level: int) -> None:
        self._bench, self._profile, self._level = bench, bench.profile, accuracy_level

    def can_tell(self, plan: Plan) -> bool:
        """Whether the profile holds the kernels of `plan`, or they can be timed."""
        return not self._profile.is_closed or not self._missing(plan)

    def kernels(self, plan: Plan) -> list[Kernel]:
        """The kernels that run for `plan`; timed if the profile lacks any of them, and they can be."""
        return self._bench.kernels(plan, timed=not self._profile.is_closed and bool(self._missing(plan)))

    def costs(self, plan: Plan, kernels: Sequence[Kernel], observed: Sequence[str]) -> Costs:
        """What the nodes of `plan` cost.

        Args:
            kernels: of `kernels(plan)`.
            observed: the activations that the plan quantizes with fixed scales.

        Raises:
            BadRecipe: the profile is closed, and lacks some of the kernels.
        """
        bench, profile = self._bench, self._profile
        elements = calibrate.element_counts(bench.model, observed, bench.feeds[0])
        missing = self._missing(plan)
        if missing and profile.is_closed:
            raise BadRecipe(
                f"the profile {profile.source} lacks {len(missing)} of this model's kernels, such as '{missing[0]}': "
                "run 'onnxq profile' on its machine with this model, and the same scheme, target and data"
            )
        if not profile.is_closed and (missing or self._model not in profile.models):
            self._note(plan, attribute_costs(bench.model, plan, bench.kernels(None), kernels, elements))
        found = self._looked_up(plan, elements)
        found.halves = self._halves(plan, elements, found.float_seconds)
        return found

    def _halves(self, plan: Plan, elements: Mapping[str, int], in_float: Mapping[str, float]) -> HalfCosts:
        """What nodes of `plan` cost in bfloat16, on machines that multiply it; of a closed profile as far as that
        says."""
        bench, profile = self._bench, self._profile
        halves = all_in_half(bench.model, plan)
        made = {choice.node: self._keys(choice, plan.kernels_of) for choice in are_in_half(halves, plan)}
        keys = {node: found[1] for node, found in made.items() if found}
        if not profile.machine.multiplies_bfloat16 or not keys:
            return HalfCosts()
        if not profile.is_closed and any(key not in profile.kernels for key in keys.values()):
            kernels, owners = bench.kernels(halves), owners_of(bench.model, halves)
            seen: dict[str, list[float]] = {}
            for node, seconds in seconds_in_half(kernels, owners).items():
                if node in keys:
                    seen.setdefault(keys[node], []).append(seconds)
            for key, each in seen.items():
                profile.kernels.setdefault(key, statistics.fmean(each))
            profile.kernels.setdefault(self._half_conversion, conversion_rate(kernels, elements))
        times = {node: profile.kernel(key) for node, key in keys.items()}
        found = {node: seconds for node, seconds in times.items() if seconds is not None}
        return half_costs(bench.model, found, profile.kernel(self._half_conversion) or 0.0, elements, in_float)

    def speed(self, plan: Plan, costs: Costs, full: Plan, bound: float) -> PlanTime:
        """`plan` against float; timed until it is clear whether it takes less than `bound` times as long.

        Args:
            costs: of `full`, of which `plan` has some nodes back in float.
        """
        found = self.measured(plan, bound)
        if found is None:
            seconds = predicted_seconds(plan, costs, full) + borders(self._bench.model, plan, costs)
            found = PlanTime(seconds / costs.total_float if costs.total_float else 1.0, PREDICTED)
        return found

    def measured(self, plan: Plan, bound: float) -> PlanTime | None:
        """`plan` against float; None where the profile is closed and does not say."""
        key = f"{self._model} {hash_of_plan(plan, self._level)} tuned"
        if key not in self._profile.plans and not self._profile.is_closed:
            race = self._bench.speed(plan, TIMING_SECONDS, bound)
            self._profile.plans[key] = PlanTime(race.ratio(), race.spreads[1])
        return self._profile.plan(key)

    def costs_there(self, there: There, plan: Plan, in_float: Plan, observed: Sequence[str]) -> Costs | None:
        """What the nodes of `plan` cost in the runtime that it is for; None where that is not known.

        Args:
            in_float: the same with all of them in float.
        """
        bench, profile, model = self._bench, self._profile, self._model_there(there)
        elements = calibrate.element_counts(bench.model, observed, bench.feeds[0])
        noted = there_notes(self._model, there.consumer, list(elements))

        def is_known() -> bool:
            kernels = [rounding for rounding, _ in noted.values()]
            has_kernels = all(key in profile.kernels for key in kernels) and not self._missing(plan, there.consumer)
            return has_kernels and model in profile.models

        if not is_known() and not profile.is_closed:
            before, after = (there.kernels(each, bench.feeds[0]) for each in (in_float, plan))
            if before and after:
                self._note_there(plan, there, costs_there(bench.model, plan, before, after, elements), noted)
        if not is_known():
            return None
        found = Costs(total_float=profile.model(model) or 0.0, release=made_in_floats(bench.model, plan))
        self._look_up_kernels(found, plan, there.consumer)
        for name, (rounding, unpacking) in noted.items():
            found.conversion[name] = profile.kernel(rounding) or 0.0
            if (seconds := profile.kernel(unpacking)) is not None:
                found.release[name] = seconds
        return found

    def _note_there(self, plan: Plan, there: There, measured: Costs, noted: Mapping[str, tuple[str, str]]) -> None:
        profile = self._profile
        self._note_kernels(plan, measured, there.consumer)
        profile.models.setdefault(self._model_there(there), measured.total_float)
        for name, (rounding, unpacking) in noted.items():
            profile.kernels.setdefault(rounding, measured.conversion[name])
            if name in measured.release:
                profile.kernels.setdefault(unpacking, measured.release[name])

    def _model_there(self, there: There) -> str:
        return f"{self._model} {there.consumer}"

    def ratios_there(self, there: There, plans: Sequence[Plan]) -> list[PlanTime] | None:
        """Times of plans in the runtime that they are for, by that of the float model; None where that is not
        known."""
        keys = [f"{self._model} {hash_of_plan(plan, self._level)} by float in {there.consumer}" for plan in plans]
        if not self._profile.is_closed and not all(key in self._profile.plans for key in keys):
            for key, found in zip(keys, there.ratios(plans, self._bench.feeds[0]) or (), strict=False):
                self._profile.plans[key] = found
        known = [self._profile.plan(key) for key in keys]
        times = [each for each in known if each is not None]
        return times if len(times) == len(keys) else None

    def is_saved_slower(self, plan: Plan, seen: PlanTime, bound: float) -> bool:
        """Whether the saved file of `plan` clearly takes more than `bound` times as long as the float model.

        Args:
            seen: what was measured just now, for a profile that is not closed.
        """
        found = self._saved(plan, seen)
        return found is not None and is_below(found.ratio, found.spread, bound) is False

    def is_saved_faster(self, plan: Plan, seen: PlanTime, bound: float = 1.0) -> bool | None:
        """Whether the saved file of `plan` clearly takes less than `bound` times as long as the float model; None: the
        profile does not say.

        Args:
            seen: as `is_saved_slower` takes it.
        """
        found = self._saved(plan, seen)
        return None if found is None else is_below(found.ratio, found.spread, bound) is True

    def _saved(self, plan: Plan, seen: PlanTime) -> PlanTime | None:
        key = f"{self._model} {hash_of_plan(plan, self._level)} saved"
        if not self._profile.is_closed:
            self._profile.plans.setdefault(key, seen)
        return self._profile.plan(key)

    def _missing(self, plan: Plan, consumer: str = "") -> list[str]:
        """Entries that the profile lacks for those nodes of `plan` that may compute in another way than in float.

        Args:
            consumer: another runtime whose kernels are meant.
        """
        known = self._profile.kernels
        keys = (key for c in plan.those(*COMPUTING) for key in self._keys(c, plan.kernels_of, consumer))
        return list(dict.fromkeys(key for key in keys if key not in known))

    def _note(self, plan: Plan, costs: Costs) -> None:
        """Enter what was measured, where there is no entry yet."""
        self._note_kernels(plan, costs)
        if costs.conversion_rate is not None:
            self._profile.kernels.setdefault(self._conversion, costs.conversion_rate)
        self._profile.models.setdefault(self._model, costs.total_float)

    def _note_kernels(self, plan: Plan, costs: Costs, consumer: str = "") -> None:
        seen: dict[str, list[float]] = {}
        for choice in plan.those(*COMPUTING):
            if keys := self._keys(choice, plan.kernels_of, consumer):
                times = (costs.float_seconds.get(choice.node, 0.0), costs.quantized_seconds.get(choice.node, 0.0))
                for key, seconds in zip(keys, times, strict=True):
                    seen.setdefault(key, []).append(seconds)
        for key, each in seen.items():
            self._profile.kernels.setdefault(key, statistics.fmean(each))

    def _looked_up(self, plan: Plan, elements: Mapping[str, int]) -> Costs:
        found = Costs(conversion_rate=self._profile.kernel(self._conversion))
        self._look_up_kernels(found, plan)
        total = self._profile.model(self._model)
        found.total_float = sum(found.float_seconds.values()) if total is None else total
        _fill_in(found, plan)
        found.conversion = conversions(found.conversion_rate, elements)
        return found

    def _look_up_kernels(self, costs: Costs, plan: Plan, consumer: str = "") -> None:
        for choice in plan.those(*COMPUTING):
            if keys := self._keys(choice, plan.kernels_of, consumer):
                in_float, quantized = (self._profile.kernel(key) for key in keys)
                costs.float_seconds[choice.node] = in_float or 0.0
                costs.quantized_seconds[choice.node] = quantized or 0.0

    def _keys(self, choice: Choice, kernels_of: str, consumer: str = "") -> tuple[str, ...]:
        """(key of the float kernel, of the quantized one); nothing for a node that did not run."""
        words = self._words_of(choice)
        if words is None:
            return ()
        where = f" | in {consumer}" if consumer else ""
        return f"{words} | float{where}", f"{words} | {form_of(choice, kernels_of, self._level)}{where}"

    def _words_of(self, choice: Choice) -> str | None:
        if choice.method is not Method.FUSED:
            return self._words.get(choice.node)
        found = [self._words[node] for node in self._fused.get(choice.node, ()) if node in self._words]
        return " ".join(found) if found else None

    @functools.cached_property
    def _fused(self) -> dict[str, list[str]]:
        """By the node that it is called after, the nodes of each attention."""
        found = filter(None, map(attention_at, graph.nodes(self._bench.model)))
        return {each.softmax.name or "": [node.name or "" for node in each.inner] for each in found}

    @functools.cached_property
    def _words(self) -> dict[str, str]:
        return words_of(self._bench.model, self._bench.trace)

    @functools.cached_property
    def _model(self) -> str:
        return hash_of_trace(self._words.values())

    @property
    def _conversion(self) -> str:
        """An element from float to int8 or back, which depends on the model: on where its values lie in memory."""
        return f"conversion of an element | {self._model}"

    @property
    def _half_conversion(self) -> str:
        """The same to bfloat16 or back."""
        return f"conversion of an element to bfloat16 | {self._model}"


def there_notes(model: str, consumer: str, values: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By value, what a profile calls the time that another runtime takes to round it, and to make floats of its codes.

    Such a time depends on the kernels around it: it is one model's, whose values are told by their number.
    """
    of = {name: f"of value {number} of {len(values)} | {model} in {consumer}" for number, name in enumerate(values)}
    return {name: (f"rounding {word}", f"unpacking {word}") for name, word in of.items()}


def _fill_in(costs: Costs, plan: Plan) -> None:
    """Take convolutions in branches that no timed sample takes to be like those that ran."""
    static = [choice.node for choice in plan.those(Method.STATIC) if choice.op in int8_regions.CONVOLUTIONS]
    ran = [node for node in static if node in costs.float_seconds]
    for node in [node for node in static if ran and node not in costs.float_seconds]:
        costs.float_seconds[node] = statistics.fmean(costs.float_seconds[each] for each in ran)
        costs.quantized_seconds[node] = statistics.fmean(costs.quantized_seconds[each] for each in ran)
        costs.total_float += costs.float_seconds[node]
