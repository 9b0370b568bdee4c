"""Which weights need a longer format to reach the quality that was asked for, or repay its bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnxq import formats
from onnxq.plan import Choice, Method, Plan, finer
from onnxq.preference import RECURRENT_BAR, Preference, preference_of
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe, twin
from onnxq.samples.trials import GIVEN
from onnxq.schemes import SCHEMES
from onnxq.tuning.costs import NOISIER
from onnxq.tuning.harm import harm, sharing
from onnxq.tuning.plan_bench import PlanBench

#: Finer weights are looked for only where they might gain more than this share.
LEAST_GAIN = 0.02
#: Share of a file that nobody misses: it may grow by so much for what its smallest weights add to the noise,
SPARE = 0.005
#: if that is at least this share of all of it.
LEAST_HEARD = 0.05
#: dB of contrast below the bar of recurrent models down to which 8-bit weights may go.
SLACK = 3.0
#: dB that weights may add to the noise of the int8 kernels, where those are what keeps a plan from the bar.
ADDED = 1.0
#: dB of contrast that nodes in float16 leave where their numbers lie in its range: rounding alone leaves 50 and more.
HALF_BAR = 35.0
REASON = "a shorter format costs too much accuracy here"
#: As where a weight is read both as it is and transposed: codes of either are stored.
NO_SMALLER = "a shorter format would be no smaller here"
SPARED = "so few weights take next to no room"
HALF_REASON = "computing in float16 costs too much accuracy here"


def refine(bench: PlanBench, plan: Plan, recipe: Recipe, measurements: int, progress: Progress = QUIET) -> Plan:
    """`plan` with finer weights, and fewer kernels in float16: as many as the quality asked for needs, and in 8-bit
    schemes as many as pay off.

    The most harmful bytes come first.
    """
    four_bits = any(choice.format is not None and formats.get(choice.format).bits < 8 for choice in plan)
    for _ in range(3):  # four bits to eight, eight to sixteen, sixteen to float32
        better = _refined_once(bench, plan, recipe, four_bits, measurements, progress)
        if better == plan:
            break
        plan = better
    return plan if four_bits or recipe.prefer == "size" else _with_spare_bytes(bench, plan, recipe)


def _with_spare_bytes(bench: PlanBench, plan: Plan, recipe: Recipe) -> Plan:
    """`plan` with finer formats of its smallest weights, where these cost next to nothing and are heard: last layers
    have few weights, and each of them much to say."""
    coarse = {c.node: c for c in plan.those(Method.STORED) if _is_coarse(c) and not _is_named(c, recipe)}
    fine = [found for choice in coarse.values() if (found := _finer(bench, choice, recipe)) is not None]
    room = SPARE * bench.size(plan) * bench.size_in_float
    chosen: list[Choice] = []
    for unit in sorted(sharing(bench, fine).values(), key=_weights_of):
        room -= _weights_of(unit) * (_bits(unit[0]) - _bits(coarse[unit[0].node])) / 8
        if room < 0:
            break
        chosen += (dataclasses.replace(c, reason=SPARED) if c.reason == REASON else c for c in unit)
    if not chosen:
        return plan
    spared = plan.replacing(chosen)
    is_heard = bench.glance(spared).noise_ratio() < (1 - LEAST_HEARD) * bench.glance(plan).noise_ratio()
    return spared if is_heard else plan


def with_finest_weights(plan: Plan) -> Plan:
    """`plan` without the noise of weights that meet float activations: `refine` sees to it, at the price of bytes."""
    stored = plan.those(Method.STORED, Method.PACKED)
    in_float = (Choice(choice.node, choice.op, Method.KEEP) for choice in stored if _is_coarse(choice))
    return with_whole_bytes(plan).replacing(in_float)


def kind_of(bench: PlanBench) -> dict[str, bool]:
    """What preferences, and their bars, depend on."""
    return {"is_recurrent": bench.is_recurrent, "is_detector": bench.is_detector}


def with_whole_bytes(plan: Plan) -> Plan:
    """`plan` with weights of 8 bits where int8 kernels read them."""
    short = (choice for choice in plan.those(Method.STATIC) if _has_finer(choice))
    return plan.replacing(filter(None, (finer(choice, "") for choice in short)))


def _refined_once(
    bench: PlanBench, plan: Plan, recipe: Recipe, four_bits: bool, measurements: int, progress: Progress
) -> Plan:
    """With some weights in the next longer format; `four_bits`: the plan was asked for in fewer than eight."""
    kind = kind_of(bench)
    preference = preference_of(recipe.prefer, **kind)
    is_named = recipe.scheme not in SCHEMES  # a format by its word is held to what the user asked for, and no more
    # Who names four bits, or a format, wants it for its size; who computes in float16 wants that wherever it will do.
    bargains = not (four_bits or recipe.keep_slow or bench.is_for_another or plan.those(Method.HALF))
    bar = preference.bar_of(**kind)
    stricter = max(0.0, bar - preference.bar)
    floor = _floor(bench, plan, recipe, preference, asks_for_bits=four_bits or is_named)

    def noise_price(candidate: Plan) -> float:
        """What the noise is worth, in bytes relative to float."""
        return preference.bytes_price(bench.quality(candidate).contrast_for(GIVEN, stricter), bar)

    def price(candidate: Plan) -> float:
        return bench.size(candidate) + noise_price(candidate)

    coarse = [c for c in plan if _has_finer(c) and not _is_named(c, recipe)]
    fine = {c.node: found for c in coarse if (found := _finer(bench, c, recipe)) is not None}
    if not fine:
        return plan
    finest = plan.replacing(fine.values())
    if plan.shortens_floats and not (four_bits or is_named):
        most = bench.quality(finest).contrast_for(GIVEN, floor.of_others) - ADDED
        floor = dataclasses.replace(floor, contrast=max(floor.contrast, min(HALF_BAR, most)))
    missed = floor.missed(plan)
    is_enough = not missed
    if is_enough and not (bargains and noise_price(finest) + LEAST_GAIN < noise_price(plan)):
        return plan
    noise = harm(bench, finest, [c for c in coarse if c.node in fine], measurements, progress)
    # Nodes that share a weight stay together: it gets the longer format for all of them, and takes its bytes once.
    units = sorted(
        sharing(bench, fine.values()).values(), key=lambda unit: _noise_per_weight(unit, noise), reverse=True
    )
    ranked = [_saying_where(choice, missed) for unit in units for choice in unit]
    needed = 0 if is_enough else _fewest(plan, ranked, lambda candidate: not floor.missed(candidate))
    counts = _growing(needed, len(ranked)) if bargains else [needed]
    progress.start("measuring longer formats", len(counts))
    priced = []
    for count in counts:
        priced.append((price(plan.replacing(ranked[:count])), count))
        progress.advance(1)
    chosen = ranked[: min(priced)[1]]
    is_short = not plan.those(Method.HALF)  # in float16 a node's weights are as long as its numbers are
    if chosen and is_short and bench.size(plan.replacing(chosen)) <= bench.size(plan):
        chosen = [dataclasses.replace(choice, reason=NO_SMALLER) for choice in chosen]
    return plan.replacing(chosen)


@dataclass(frozen=True)
class _Floor:
    """What a plan is to reach: dB of each output, and of contrast, in which other samples than the user's may be lower
    by `of_others`."""

    bench: PlanBench
    aim: float
    contrast: float
    of_others: float

    def missed(self, plan: Plan) -> list[tuple[str, str]]:
        """Outputs, and kinds of samples, at which the plan does not reach it, the worst first."""
        return self.bench.quality(plan).short_of(self.aim, self.contrast, GIVEN, self.of_others)


def _floor(bench: PlanBench, plan: Plan, recipe: Recipe, preference: Preference, *, asks_for_bits: bool) -> _Floor:
    least = RECURRENT_BAR - preference.lower - SLACK if bench.is_recurrent else preference.weights_bar
    of_others = max(0.0, least - preference.weights_bar)
    aim, wanted = recipe.aim, float("-inf") if asks_for_bits else least
    if plan.those(Method.STATIC, Method.DYNAMIC):
        # What is lost in the int8 kernels no weight brings back.
        best = bench.quality(with_finest_weights(plan))
        wanted = min(wanted, best.contrast_for(GIVEN, of_others) - ADDED)
        aim = aim if recipe.min_sqnr is not None else min(aim, best.sqnr - ADDED)
    return _Floor(bench, aim, wanted, of_others)


def _saying_where(choice: Choice, missed: Sequence[tuple[str, str]]) -> Choice:
    """With the output, and the kind of samples, that suffer most."""
    if not missed or choice.reason not in (REASON, HALF_REASON):
        return choice
    output, label = missed[0]
    where = "" if label in ("", GIVEN) else f" of {label}"
    return dataclasses.replace(choice, reason=f"{choice.reason}: '{output}'{where}")


def _has_finer(choice: Choice) -> bool:
    """Whether a longer format of its weights is weighed here; int8 kernels with 8 bits are the minimum cut's."""
    if choice.method is Method.STATIC:
        return choice.format is not None and formats.get(choice.format).bits < 8
    return choice.method in (Method.PACKED, Method.STORED, Method.HALF)


def _is_coarse(choice: Choice) -> bool:
    """Whether its weights are codes with scales."""
    return choice.format is not None and formats.get(choice.format).scale_type is not None


def _noise_per_weight(sharers: Sequence[Choice], noise: Mapping[str, float]) -> float:
    return sum(noise[choice.node] for choice in sharers) / max(1, _weights_of(sharers))


def _weights_of(sharers: Sequence[Choice]) -> int:
    return max(choice.elements for choice in sharers)


def _bits(choice: Choice) -> int:
    return 32 if choice.format is None else formats.get(choice.format).bits


def _is_named(choice: Choice, recipe: Recipe) -> bool:
    """Whether the user named this node's number format and no floor: it stays, and the check says what it costs."""
    return recipe.min_sqnr is None and recipe.scheme_for(choice.node, choice.op) not in SCHEMES


def _finer(bench: PlanBench, choice: Choice, recipe: Recipe) -> Choice | None:
    # That a node is in float for its noise says more than how long its weights are then.
    reason = HALF_REASON if choice.method is Method.HALF else NOISIER if choice.reason == NOISIER else REASON
    found = finer(choice, reason)
    if found is not None and found.format is not None and recipe.symmetric is False:
        found = dataclasses.replace(found, format=twin(found.format, symmetric=False))
    if found is None or found.format != "float16" or choice.node not in bench.unfit_for_half:
        return found
    return Choice(choice.node, choice.op, Method.KEEP, elements=choice.elements, reason=reason)


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
