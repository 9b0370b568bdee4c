"""How much noise each choice of a plan adds at the outputs, in a bounded number of measurements."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

from onnxq.plan import Choice, Plan
from onnxq.planning import int8_regions
from onnxq.progress import QUIET, Progress
from onnxq.tuning.plan_bench import PlanBench


def harm(
    bench: PlanBench, base: Plan, choices: Sequence[Choice], measurements: int, progress: Progress = QUIET
) -> dict[str, float]:
    """The noise that each choice adds to `base`, as noise over variation summed over the outputs.

    Measured on groups of neighbours, all else being as in `base`; the groups that add most are halved, down to single
    nodes at best: the number of measurements must not grow with the model, as their cost does. What the halves do not
    explain (operators that cannot be int8 alone) stays with them in equal parts. Nodes that share a weight are one:
    it has one format, the longest that any of them needs, so one of them alone would show no noise.
    """
    if not choices:
        return {}  # weights only: nothing computes in integers
    floor = bench.glance(base).noise_ratio()

    def added(group: Sequence[Sequence[Choice]]) -> float:
        members = [choice for together in group for choice in together]
        noise = bench.glance(int8_regions.prune(base.replacing(members), bench.model)).noise_ratio()
        progress.advance(1)
        return max(0.0, noise - floor)

    progress.start("measuring which nodes do harm", measurements)
    units = list(sharing(bench, choices).values())
    size = max(min(8, math.ceil(len(units) / 4)), math.ceil(2 * len(units) / measurements))
    # A heap of (minus the noise, first index, group): whatever adds most comes first.
    groups = [(i, units[i : i + size]) for i in range(0, len(units), size)]
    pending = [(-added(group), i, group) for i, group in groups]
    noticeable = -sum(noise for noise, _, _ in pending) / max(1, len(units))
    heapq.heapify(pending)
    left = measurements - len(pending)
    found: dict[str, float] = {}
    while pending:
        negative, first, group = heapq.heappop(pending)
        if len(group) > 1 and -negative > noticeable and left > 0:
            half = len(group) // 2
            parts = [(added(part), i, part) for i, part in ((first, group[:half]), (first + half, group[half:]))]
            left -= len(parts)
            rest = max(0.0, -negative - sum(noise for noise, _, _ in parts))
            for noise, i, part in parts:
                heapq.heappush(pending, (-noise - rest * len(part) / len(group), i, part))
        else:
            for unit in group:
                found |= {choice.node: -negative / len(group) / len(unit) for choice in unit}
    return found


def sharing(bench: PlanBench, choices: Iterable[Choice]) -> dict[str, list[Choice]]:
    """The choices, those of nodes that get the same format together, by the first of these."""
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(bench.leaders.get(choice.node, choice.node), []).append(choice)
    return found
