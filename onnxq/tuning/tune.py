"""Step 5: measure the plan, and give back to float what costs more than it gives.

Three questions, in this order. Which nodes lose time (kernels timed one by one, borders between int8 and float
included)? Which of the plans between "all in int8" and "nothing" is the best trade-off of time and noise? Which weights
need a finer format to reach the quality that was asked for, or repay its bytes (`refine.py`)?
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from onnxq.plan import COMPUTING, FLOAT_IS_FASTER, Choice, Method, Plan, in_float
from onnxq.planning import int8_regions
from onnxq.preference import SEARCHES, Preference, preference_of
from onnxq.progress import QUIET, Progress
from onnxq.quality import Quality
from onnxq.recipe import Recipe
from onnxq.runtime.profile import PlanTime
from onnxq.runtime.timing import is_below
from onnxq.samples.trials import GIVEN
from onnxq.tuning.costs import NOISIER, Costs, cheapest, predicted_seconds, unfused
from onnxq.tuning.halves import HalfCosts, are_in_half, in_half
from onnxq.tuning.harm import harm
from onnxq.tuning.plan_bench import PlanBench, plan_key
from onnxq.tuning.refine import kind_of, refine, with_finest_weights, with_whole_bytes
from onnxq.tuning.there import There
from onnxq.tuning.timings import Timings

#: A quantized model must beat the float one by this factor to be worth its noise and its conversions.
WORTHWHILE = 0.97
#: Where a plan takes so many times as long as its kernels did one by one, something happens between them that costs do
#: not know: the plan that they were timed in is looked at too.
SURPRISE = 1.3
#: A model that computes in float as before may take so many times as long once it is written by a plan.
SPOILT = 1.05
#: Where it cannot be told which of two models is faster, the quantized one may be larger by this factor.
AS_SMALL = 1.01
#: Prices of a plan's total noise that are tried, in runs of the float model: up to where a ten-thousandth of it tells.
PRICES = tuple(10.0 ** (k / 2) for k in range(-6, 9))
#: Prices that are tried between the best of these and its neighbours.
BETWEEN = 6
#: dB by which the noise of kernels is below that of weights where both together are 1 dB above the weights' alone.
MASKING = 6.0
#: Noise that is worth less than this share of a run is not traced to its nodes.
LEAST_REGRET = 0.02


def tune(bench: PlanBench, plan: Plan, recipe: Recipe, observed: Sequence[str], progress: Progress = QUIET) -> Plan:
    """`plan` with nodes given back to float, or to a finer format, as measured on `bench`.

    Args:
        observed: the activations that the plan quantizes with fixed scales.
        progress: told what is being measured, and how much of it is left.
    """
    found = _tuned(Terms.of(bench, recipe, progress), plan, observed)
    halves = [*int8_regions.in_bfloat16(found), *(c for c in are_in_half(found, plan) if c.method in COMPUTING)]
    if not halves or recipe.keep_slow:
        return found
    # Whether they pay off beside what onnxruntime makes of the rest shows only whole.
    return better(bench, found, found.replacing(in_float(choice, FLOAT_IS_FASTER) for choice in halves), recipe)


def _tuned(terms: Terms, plan: Plan, observed: Sequence[str]) -> Plan:
    bench = terms.bench
    if not plan.those(*COMPUTING) or (terms.keeps_slow and not plan.those(Method.STATIC, Method.DYNAMIC)):
        return _refined(terms, plan)

    def bargain(terms: Terms) -> Plan:
        return _as_short(_bargain(terms, with_whole_bytes(plan), observed), plan)

    found = _refined(terms, bargain(terms))
    if terms.keeps_slow or _computes(found):
        return found
    other = bargain(replace(terms, masked=terms.contrast(bench.quality(found)) + MASKING))
    return better(bench, found, _refined(terms, other), terms.recipe) if _computes(other) else found


def _computes(plan: Plan) -> bool:
    """Whether any kernel gets faster by it."""
    return bool(plan.those(*COMPUTING) or int8_regions.in_bfloat16(plan))


def _refined(terms: Terms, plan: Plan) -> Plan:
    """`plan` with formats of its weights as the quality asked for needs them."""
    bench, recipe = terms.bench, terms.recipe
    refined = refine(bench, plan, recipe, terms.measurements, terms.progress)
    # Each convolution in float among others in bfloat16 parts a region in two: it costs time too, not bytes alone.
    parted = [choice for choice in int8_regions.in_bfloat16(plan) if not refined.choices[choice.node].joins_bf16_region]
    return better(bench, refined, refined.replacing(parted), recipe) if parted else refined


def regret(bench: PlanBench, plan: Plan, full: Plan, recipe: Recipe, observed: Sequence[str]) -> float:
    """What a run of a tuned plan costs with its noise, in runs of the float model; infinite if it misses the aim.

    Args:
        full: the plan before it was tuned.
        observed: the activations that it quantizes with fixed scales.
    """
    terms, timings = Terms.of(bench, recipe, QUIET), Timings(bench, recipe.accuracy_level)
    quality, latency = bench.quality(plan), 1.0
    if plan.those(*COMPUTING):
        costs = timings.costs(full, timings.kernels(full), observed)
        latency = timings.speed(plan, costs, full, WORTHWHILE).ratio
    return terms.regret(quality, latency)


def better(bench: PlanBench, plan: Plan, other: Plan, recipe: Recipe, gain: float = 0.0) -> Plan:
    """`other` if what was measured of the two says that it costs less, its noise included; else `plan`.

    Args:
        gain: runs of the float model that it has to cost less.
    """
    terms, timings = Terms.of(bench, recipe, QUIET), Timings(bench, recipe.accuracy_level)
    costs = []
    for each in (plan, other):
        speed = timings.measured(each, WORTHWHILE)
        if speed is None:
            return plan
        costs.append(terms.regret(bench.quality(each), speed.ratio))
    return other if costs[1] < costs[0] - gain < float("inf") else plan


@dataclass(frozen=True)
class Terms:
    """What a bargain is made by.

    Attributes:
        bar: dB of contrast below which decisions of this model change, on the user's samples. Made-up ones, and those
            of other lengths, are held to the bar of other models: what becomes of noise that accumulates, or of scores
            near a threshold, only a real sequence shows. Where another runtime will run the model, which computes its
            floats in shorter types, what is left of them there is enough.
        measurements: plans that may be measured to find out which nodes do harm.
        keeps_slow: integers are wanted whatever time they take: by the recipe, or as no time is known.
        masked: dB of contrast from which on the noise of kernels costs nothing: there is that of weights beside it.
    """

    bench: PlanBench
    recipe: Recipe
    preference: Preference
    bar: float
    measurements: int
    progress: Progress
    keeps_slow: bool
    masked: float = math.inf

    @classmethod
    def of(cls, bench: PlanBench, recipe: Recipe, progress: Progress) -> Terms:
        kind = kind_of(bench)
        preference = preference_of(recipe.prefer, **kind)
        keeps_slow = recipe.keep_slow or bench.is_for_another
        if keeps_slow:  # integers are wanted: noise well above the bar costs nothing
            preference = replace(preference, clear=0.0)
        bar = preference.bar_of(**kind)
        if bench.floor is not None:  # what float itself loses there
            bar = min(bar, bench.floor.contrast_for(GIVEN, max(0.0, bar - preference.bar)))
        measurements = SEARCHES[recipe.effort].measurements(bench.cost)
        return cls(bench, recipe, preference, bar, measurements, progress, keeps_slow)

    def with_times(self) -> Terms:
        """The same where the times of plans are known after all."""
        preference = preference_of(self.recipe.prefer, **kind_of(self.bench))
        return replace(self, preference=preference, keeps_slow=False)

    def noise_price(self, quality: Quality) -> float:
        """What a plan's noise is worth, in runs of the float model."""
        contrast = self.contrast(quality)
        return 0.0 if contrast >= self.masked else self.preference.price(contrast, self.bar)

    def contrast(self, quality: Quality) -> float:
        """What noise is judged by: made-up samples, and those of other lengths, are held to a lower bar."""
        return quality.contrast_for(GIVEN, max(0.0, self.bar - self.preference.bar))

    def regret(self, quality: Quality, latency: float) -> float:
        """What a plan costs with its noise, in runs of the float model; infinite if it misses the aim."""
        return latency + self.noise_price(quality) if quality.sqnr >= self.recipe.aim else float("inf")


def _bargain(terms: Terms, plan: Plan, observed: Sequence[str]) -> Plan:
    """The best plan between `plan` and the one with every kernel in float."""
    bench = terms.bench
    timings = Timings(bench, terms.recipe.accuracy_level)
    terms.progress.start("timing every kernel")
    if bench.there is not None and plan.those(Method.STATIC) and not terms.recipe.keep_slow:
        float_plan = _back(bench, plan, plan.those(*COMPUTING), NOISIER)
        known = timings.costs_there(bench.there, plan, float_plan, observed)
        if known is not None:
            return _bargain_there(terms.with_times(), timings, bench.there, plan, known)
    kernels = timings.kernels(plan)
    not_fused = unfused(bench.model, plan, kernels)
    if not_fused and not bench.is_for_another:  # another runtime fuses other nodes
        plan = _back(bench, plan, not_fused, "onnxruntime does not fuse it to an int8 kernel")
        kernels = timings.kernels(plan)
    costs = timings.costs(plan, kernels, observed)
    if terms.recipe.prefer == "size":  # bfloat16 takes twice the bytes of int8
        costs = replace(costs, halves=HalfCosts())
    if terms.keeps_slow:
        costs = costs.optimistic()
    float_plan = _back(bench, plan, plan.those(*COMPUTING), NOISIER if bench.is_for_another else FLOAT_IS_FASTER)
    best = _reaching(terms, plan, costs, float_plan)
    if best is None:
        return _in_float(terms, plan)
    if bench.there is not None and not terms.recipe.keep_slow:
        best = _best_there(terms, timings, bench.there, [float_plan, best, plan])
    if not _computes(best) or terms.keeps_slow:
        return best
    terms.progress.start("timing against float")
    speed = timings.speed(best, costs, plan, WORTHWHILE)
    thought = predicted_seconds(best, costs, plan) / costs.total_float if costs.total_float else 1.0
    if speed.ratio > SURPRISE * thought and plan_key(best) != plan_key(plan):
        other = timings.speed(plan, costs, plan, WORTHWHILE)
        if terms.regret(bench.quality(plan), other.ratio) < terms.regret(bench.quality(best), speed.ratio):
            best, speed = plan, other
    return best if _is_worthwhile(bench, best, float_plan, speed) else float_plan


def _reaching(terms: Terms, plan: Plan, costs: Costs, float_plan: Plan) -> Plan | None:
    """The best plan by these costs, with reasons; None if none reaches the quality that was asked for."""
    start = plan if terms.keeps_slow else cheapest(terms.bench.model, plan, costs, {})
    best = _best_bargain(terms, plan, costs, [start, float_plan])
    return None if best is None else _with_reasons(best, start)


def _in_float(terms: Terms, plan: Plan) -> Plan:
    reason = f"would miss {terms.recipe.aim:g} dB at the outputs"
    return _back(terms.bench, plan, plan.those(*COMPUTING), reason)


def _bargain_there(terms: Terms, timings: Timings, there: There, plan: Plan, costs: Costs) -> Plan:
    """The same by the times of kernels in the runtime that the plan is for, and of the best plans in the end."""
    bench = terms.bench
    float_plan = _back(bench, plan, plan.those(*COMPUTING), f"float is faster in {there.consumer}")
    best = _reaching(terms, plan, costs, float_plan)
    if best is None:
        return _in_float(terms, plan)
    fastest = cheapest(bench.model, plan, costs, {})
    return _best_there(terms, timings, there, [float_plan, best, _with_reasons(fastest, fastest), plan])


def _best_there(terms: Terms, timings: Timings, there: There, plans: Sequence[Plan]) -> Plan:
    """The best of some plans, timed in the runtime that they are for: the first is in float, the second the one that
    stays where they cannot be timed, the last has every kernel in integers.

    Where times are known, integers have to be worth their noise and their conversions; and where the float model as it
    was is clearly faster than what is written of it in float, nothing is.
    """
    distinct = list({plan_key(plan): plan for plan in plans}.values())
    terms.progress.start(f"timing {len(distinct)} plans in {there.consumer}")
    times = timings.ratios_there(there, distinct) if len(distinct) > 1 or not terms.keeps_slow else None
    if times is None:
        return plans[1]
    bound = math.inf if terms.keeps_slow else WORTHWHILE * min(1.0, times[0].ratio)
    best, least = None, float("inf")
    for plan, time in zip(distinct, times, strict=True):
        is_slow = time.ratio > bound if plan.those(*COMPUTING) else _is_spoilt(terms, time)
        if is_slow:
            continue
        found = terms.regret(terms.bench.quality(with_finest_weights(plan)), time.ratio)
        if found < least:
            best, least = plan, found
    full, reason = plans[-1], f"float is faster in {there.consumer}"
    if best is None and not terms.keeps_slow:
        return full.replacing(Choice(c.node, c.op, Method.KEEP, elements=c.elements, reason=reason) for c in full)
    if best is distinct[0] and min((time.ratio for time in times[1:]), default=math.inf) >= 1:
        return _back(terms.bench, full, full.those(*COMPUTING), reason)
    return plans[1] if best is None else best


def _is_spoilt(terms: Terms, time: PlanTime) -> bool:
    """Whether a model that computes in float as before takes clearly longer than before."""
    return not terms.keeps_slow and is_below(time.ratio, time.spread, SPOILT) is False


def _with_reasons(best: Plan, fastest: Plan) -> Plan:
    """`best`, in which nodes are in float for their time if they are so in the fastest plan too, and else for their
    noise."""
    was = {choice.node: choice for choice in fastest.those(*COMPUTING)}
    back = [c for c in best if c.method not in COMPUTING and c.reason in (FLOAT_IS_FASTER, NOISIER)]
    return best.replacing(replace(c, reason=NOISIER if c.node in was else FLOAT_IS_FASTER) for c in back)


def _as_short(plan: Plan, asked: Plan) -> Plan:
    """`plan` with the bits that were `asked` for where int8 kernels read the weights: how few those may be, and not
    where integers are worth their noise, is what `refine` finds out."""
    short = (asked.choices[choice.node] for choice in plan.those(Method.STATIC) if choice.node in asked.choices)
    return plan.replacing(choice for choice in short if choice.method is Method.STATIC)


def _is_worthwhile(bench: PlanBench, best: Plan, float_plan: Plan, speed: PlanTime) -> bool:
    """Whether `best` is faster than float; where that cannot be told, whether its file is no larger."""
    is_faster = is_below(speed.ratio, speed.spread, WORTHWHILE)
    return bench.size(best) <= AS_SMALL * bench.size(float_plan) if is_faster is None else is_faster


def _best_bargain(terms: Terms, plan: Plan, costs: Costs, candidates: Sequence[Plan]) -> Plan | None:
    """The best of the `candidates`, of which the first is the fastest, and of plans that give the most harmful nodes
    back to float, ever more of them."""
    quality = terms.bench.quality(with_finest_weights(candidates[0]))
    if terms.noise_price(quality) <= LEAST_REGRET and quality.sqnr >= terms.recipe.aim:
        return _least_regret(terms, costs, plan, candidates)
    noise, in_halves = _noise_by_node(terms, plan, costs)
    terms.progress.start("measuring bargains", len(PRICES) + BETWEEN)

    def at(price: float) -> Plan:
        worth, of_halves = (
            {node: price * costs.total_float * share for node, share in each.items()} for each in (noise, in_halves)
        )
        priced = replace(costs, halves=costs.halves.plus(of_halves))
        found = cheapest(terms.bench.model, plan, priced, worth)
        terms.bench.quality(with_finest_weights(found))
        terms.progress.advance(1)
        return found

    plans = [at(price) for price in PRICES]
    best = _least_regret(terms, costs, plan, [*candidates, *plans])
    near = [index for index, found in enumerate(plans) if best is not None and plan_key(found) == plan_key(best)]
    if best is None or not near:
        return best
    low, high = PRICES[max(0, near[0] - 1)], PRICES[min(len(PRICES), near[-1] + 2) - 1]
    step = (high / low) ** (1 / (BETWEEN + 1))
    return _least_regret(terms, costs, plan, [best, *(at(low * step**k) for k in range(1, BETWEEN + 1))])


def _noise_by_node(terms: Terms, plan: Plan, costs: Costs) -> tuple[dict[str, float], dict[str, float]]:
    """Each node's share of the noise of all that compute in integers; and, in the same measure, what those add that
    could be in bfloat16: looked for where all of them in it are worth looking at."""
    bench = terms.bench
    silent = with_finest_weights(_back(bench, plan, plan.those(*COMPUTING), ""))
    in_integers = plan.those(Method.STATIC, Method.DYNAMIC)
    noise = harm(bench, silent, in_integers, terms.measurements, terms.progress)
    halves = [in_half(choice) for choice in in_integers if choice.node in costs.halves.seconds]
    noise_of_halves: dict[str, float] = {}
    if halves and terms.noise_price(bench.quality(silent.replacing(halves))) > LEAST_REGRET:
        noise_of_halves = harm(bench, silent, halves, terms.measurements, terms.progress)
    total = sum(noise.values()) or 1.0
    shares, of_halves = ({node: each / total for node, each in found.items()} for found in (noise, noise_of_halves))
    return shares, of_halves


def _least_regret(terms: Terms, costs: Costs, full: Plan, plans: Iterable[Plan]) -> Plan | None:
    """The plan with the best trade-off among those that reach the quality asked for; None if none does."""
    best, least = None, float("inf")
    for plan in plans:
        quality = terms.bench.quality(with_finest_weights(plan))
        latency = predicted_seconds(plan, costs, full) / costs.total_float if costs.total_float else 1.0
        found = terms.regret(quality, latency)
        if found < least:
            best, least = plan, found
    return best


def _back(bench: PlanBench, plan: Plan, choices: Iterable[Choice], reason: str) -> Plan:
    return int8_regions.prune(plan.replacing(in_float(choice, reason) for choice in choices), bench.model)
