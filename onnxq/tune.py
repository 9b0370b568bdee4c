"""Between plan and rewrite: measure, and give back what costs more than it gives.

Three questions, in this order. Which nodes lose time (kernels timed one by one, borders between int8 and float
included)? Which of the plans between "all in int8" and "nothing" is the best bargain of time and noise? Which weights
need a finer format to reach the quality that was asked for, or repay its bytes?
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence

from onnxq import calibrate, formats, passengers
from onnxq.costs import Costs, attribute_costs, cheapest, predicted_seconds, unfused
from onnxq.measure import Bench
from onnxq.plan import COMPUTING, Choice, Method, Plan, finer, in_float
from onnxq.quality import Quality, noise_ratio
from onnxq.recipe import SCHEMES, Recipe

#: A quantized model must beat the float one by this factor to be worth its noise and its conversions.
WORTHWHILE = 0.97
#: Seconds for which each of two models is timed in turns.
TIMING_SECONDS = 0.5
#: What the whole noise of a plan is taken to be worth, in runs of the float model, from "next to nothing" to "all".
PRICES = tuple(10.0 ** (k / 2) for k in range(-6, 5))
#: dB of contrast below which noise is expensive; for models that read their own output, where it accumulates; and for
#: those whose outputs are compared with a threshold, where every score near it may flip.
BAR, RECURRENT_BAR, DETECTOR_BAR = 30.0, 42.0, 56.0
#: Plans measured to find out which nodes add how much noise, at most; and seconds after which no more are begun.
MEASUREMENTS, MEASURING_SECONDS = 128, 15.0
#: dB of contrast above which no use of a model has been seen to notice; scores beside a threshold still flip at 50.
CLEAR = 60.0
#: Shares of the float model's bytes that one dB of contrast below `CLEAR` is worth.
BYTES_PER_DB = 0.004
#: Finer weights are looked for only where they might gain more than this share.
LEAST_GAIN = 0.02
#: dB of contrast below the bar down to which 8-bit schemes may go before their weights must get a finer format.
SLACK = 3.0

Say = Callable[[str], None]


def tune(bench: Bench, plan: Plan, recipe: Recipe, observed: Sequence[str], say: Say = lambda text: None) -> Plan:
    """`plan` with nodes given back to float, or to a finer format, as measured on `bench`.

    Args:
        observed: the activations that the plan quantizes with fixed scales.
        say: told what is being measured.
    """
    if plan.those(*COMPUTING) and (not recipe.keep_slow or plan.those(Method.STATIC, Method.DYNAMIC)):
        plan = _bargain(bench, plan, recipe, observed, say)
    return _refine(bench, plan, recipe, say)


def _bargain(bench: Bench, plan: Plan, recipe: Recipe, observed: Sequence[str], say: Say) -> Plan:
    """The best plan between `plan` and the one with every kernel in float."""
    say("timing every kernel")
    kernels = bench.kernels(plan)
    not_fused = unfused(bench.model, plan, kernels)
    if not_fused:
        plan = _back(bench, plan, not_fused, "onnxruntime does not fuse it to an int8 kernel")
        kernels = bench.kernels(plan)
    elements = calibrate.element_counts(bench.model, observed, bench.feeds[0])
    costs = attribute_costs(bench.model, plan, bench.kernels(None), kernels, elements)
    if recipe.keep_slow:
        costs = costs.hopeful()
    float_plan = _back(bench, plan, plan.those(*COMPUTING), "float is faster here")
    start = plan if recipe.keep_slow else cheapest(bench.model, plan, costs, {})
    say("measuring the noise of every node")
    candidates = [start, *_with_less_noise(bench, recipe, plan, costs, start), float_plan]
    best = _least_regret(bench, recipe, costs, plan, candidates)
    if best is None:
        return _back(bench, plan, plan.those(*COMPUTING), f"would miss {recipe.min_sqnr:g} dB at the outputs")
    if not best.those(*COMPUTING) or recipe.keep_slow:
        return best
    say("timing against float")
    return best if bench.speed(best, TIMING_SECONDS) < WORTHWHILE else float_plan


def _with_less_noise(bench: Bench, recipe: Recipe, plan: Plan, costs: Costs, start: Plan) -> Iterable[Plan]:
    """Plans that give the most harmful nodes back to float, ever more of them; none if `start` has little noise."""
    if regret(bench, recipe, bench.quality(_finest(start)), 0.0) == 0:
        return
    in_integers = plan.those(Method.STATIC, Method.DYNAMIC)
    noise = harm(bench, _finest(_back(bench, plan, plan.those(*COMPUTING), "")), in_integers)
    total = sum(noise.values()) or 1.0
    for price in PRICES:
        worth = {node: price * costs.total_float * share / total for node, share in noise.items()}
        yield cheapest(bench.model, plan, costs, worth)


def _least_regret(bench: Bench, recipe: Recipe, costs: Costs, full: Plan, plans: Iterable[Plan]) -> Plan | None:
    """The plan with the best bargain among those that reach the quality asked for; None if none does."""
    best, least = None, float("inf")
    for plan in plans:
        quality = bench.quality(_finest(plan))
        latency = predicted_seconds(plan, costs, full) / costs.total_float if costs.total_float else 1.0
        if quality.sqnr >= recipe.min_sqnr and regret(bench, recipe, quality, latency) < least:
            best, least = plan, regret(bench, recipe, quality, latency)
    return best


def _finest(plan: Plan) -> Plan:
    """`plan` without the noise of weights that meet float activations: `_refine` sees to it, at the price of bytes."""
    stored = plan.those(Method.STORED, Method.PACKED)
    coarse = [c for c in stored if c.format is not None and formats.get(c.format).scale_type is not None]
    return plan.replacing(Choice(choice.node, choice.op, Method.KEEP) for choice in coarse)


def regret(bench: Bench, recipe: Recipe, quality: Quality, latency: float) -> float:
    """What is to be made small: latency relative to float, plus a price on noise.

    From `CLEAR` on noise costs nothing. Each dB less is worth 0.2 % of the float model's time; from 6 dB above the bar
    1 % more; below the bar, where classifiers and detectors begin to change their minds, another 3 %. Whoever keeps
    slow nodes has integers in mind: noise well above the bar then costs nothing.
    """
    bar = _bar(bench)
    worth = ((CLEAR, 0.0 if recipe.keep_slow else 0.002), (bar + 6, 0.01), (bar, 0.03))
    return latency + sum(price * max(0.0, level - quality.contrast) for level, price in worth)


def _bar(bench: Bench) -> float:
    if bench.is_detector:
        return DETECTOR_BAR
    return RECURRENT_BAR if bench.is_recurrent else BAR


def harm(bench: Bench, base: Plan, choices: Sequence[Choice]) -> dict[str, float]:
    """The noise that each choice adds to `base`, as noise over variation summed over the outputs.

    Measured on groups of neighbours, all else being as in `base`; the groups that add most are halved, down to single
    nodes at best: the number of measurements must not grow with the model, as their cost does. What the halves do not
    explain (operators that cannot be int8 alone) stays with them in equal parts.
    """
    end = time.perf_counter() + MEASURING_SECONDS
    floor = noise_ratio(bench.quality(base))

    def added(group: Sequence[Choice]) -> float:
        return max(0.0, noise_ratio(bench.quality(passengers.prune(base.replacing(group), bench.model))) - floor)

    size = max(8, math.ceil(2 * len(choices) / MEASUREMENTS))
    # A heap of (minus the noise, first index, group): whatever adds most comes first.
    groups = [(i, list(choices[i : i + size])) for i in range(0, len(choices), size)]
    pending = [(-added(group), i, group) for i, group in groups]
    noticeable = -sum(noise for noise, _, _ in pending) / max(1, len(choices))
    heapq.heapify(pending)
    left = MEASUREMENTS - len(pending)
    found: dict[str, float] = {}
    while pending:
        negative, first, group = heapq.heappop(pending)
        if len(group) > 1 and -negative > noticeable and left > 0 and time.perf_counter() < end:
            half = len(group) // 2
            parts = [(added(part), i, part) for i, part in ((first, group[:half]), (first + half, group[half:]))]
            left -= len(parts)
            rest = max(0.0, -negative - sum(noise for noise, _, _ in parts))
            for noise, i, part in parts:
                heapq.heappush(pending, (-noise - rest * len(part) / len(group), i, part))
        else:
            found |= {choice.node: -negative / len(group) for choice in group}
    return found


def _refine(bench: Bench, plan: Plan, recipe: Recipe, say: Say) -> Plan:
    """`plan` with finer weights: as many as the quality asked for needs, and in 8-bit schemes as many as pay off.

    The most harmful bytes come first.
    """
    four_bits = any(choice.format is not None and formats.get(choice.format).bits < 8 for choice in plan)
    is_named = recipe.scheme not in SCHEMES  # a format by its word is held to what the user asked for, and no more
    bar = RECURRENT_BAR if bench.is_recurrent else BAR
    wanted = 0.0 if four_bits or is_named else bar - SLACK
    bargains = not four_bits and not recipe.keep_slow  # who names four bits, or a format, wants it for its size

    def enough(candidate: Plan) -> bool:
        quality = bench.quality(candidate)
        return quality.sqnr >= recipe.min_sqnr and quality.contrast >= wanted

    def noise_price(candidate: Plan) -> float:
        """What the noise is worth, in bytes relative to float."""
        return BYTES_PER_DB * max(0.0, CLEAR - bench.quality(candidate).contrast)

    def price(candidate: Plan) -> float:
        return bench.size(candidate) + noise_price(candidate)

    def may_pay(fine: Plan) -> bool:
        """Whether finer weights would pay off if they cost nothing."""
        return bargains and noise_price(fine) + LEAST_GAIN < noise_price(plan)

    reason = "a shorter format costs too much accuracy here"

    def better(choice: Choice) -> Choice | None:
        found = finer(choice, reason)
        if found is None or found.format != "float16" or choice.node not in bench.unfit_for_half:
            return found
        return Choice(choice.node, choice.op, Method.KEEP, elements=choice.elements, reason=reason)

    for _ in range(3):  # four bits to eight, eight to sixteen, sixteen to float32
        coarse = plan.those(Method.PACKED, Method.STORED)
        fine = {c.node: found for c in coarse if (found := better(c)) is not None}
        if not fine or (enough(plan) and not may_pay(plan.replacing(fine.values()))):
            return plan
        say("finding the weights that need a finer format")
        noise = harm(bench, plan.replacing(fine.values()), [c for c in coarse if c.node in fine])
        ranked = sorted(fine.values(), key=lambda c: noise[c.node] / max(1, c.elements), reverse=True)
        needed = 0 if enough(plan) else _fewest(plan, ranked, enough)
        counts = _growing(needed, len(ranked)) if bargains else [needed]
        best = min((plan.replacing(ranked[:count]) for count in counts), key=price)
        if best == plan:
            return plan
        plan = best
    return plan


def _fewest(plan: Plan, ranked: Sequence[Choice], enough: Callable[[Plan], bool]) -> int:
    """With how many of the `ranked` choices, taken in order, `plan` is good enough; all of them if it never is."""
    low, high = 0, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(plan.replacing(ranked[:middle])) else (middle, high)
    return high


def _growing(least: int, most: int) -> list[int]:
    """`least`, `most` and some numbers between them, each half again as far from `least` as the one before."""
    counts, step = [], 0.0
    while least + step < most:
        counts.append(least + int(step))
        step = max(int(step) + 1.0, 1.5 * step)
    return [*counts, most]


def _back(bench: Bench, plan: Plan, choices: Iterable[Choice], reason: str) -> Plan:
    return passengers.prune(plan.replacing(in_float(choice, reason) for choice in choices), bench.model)
