"""`search`: which plans there are that no other beats in both size and accuracy, measured one by one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from onnxq.boundary import bounded
from onnxq.calibration.find_ranges import Effort
from onnxq.drafts.budgeted import asked, bench_of, candidates_of
from onnxq.drafts.opening import calibrated, opened, remembering, with_evidence
from onnxq.errors import BadRecipe
from onnxq.files import mirror
from onnxq.files.guard import Guard
from onnxq.files.staging import scratch
from onnxq.job import Environment
from onnxq.output import write as save
from onnxq.plan import Plan
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe
from onnxq.request import Request
from onnxq.runtime.profile import new_profile
from onnxq.runtime.session import THREADS
from onnxq.samples.reading import How, reading_of
from onnxq.samples.sampling import LIMIT, Sampling
from onnxq.samples.source import DataSource
from onnxq.searching import meter
from onnxq.searching.knapsack import Bound
from onnxq.searching.meter import Figures
from onnxq.searching.space import Space, open_space
from onnxq.tuning.plan_bench import Rewrite

#: Sizes between the least and the largest at which the best plan is looked for.
POINTS = 10


@dataclass(frozen=True)
class Point:
    """A plan that no other one beats.

    Attributes:
        bits: of a weight in the mean.
        size: of the file, relative to the float model's.
        nbytes: of the file, without what it says of how it was made.
        latency: expected, relative to float; None where times were not asked for.
        figures: what was measured.
    """

    plan: Plan
    bits: float
    size: float
    nbytes: int
    latency: float | None
    figures: Figures

    def to_dict(self) -> dict[str, object]:
        """Everything, for JSON; the plan as `Plan.to_json` writes it."""
        found = {"bits": self.bits, "size": self.size, "bytes": self.nbytes, "latency": self.latency}
        measured = {name: getattr(self.figures, name) for name in self.figures.__struct_fields__}
        return found | measured | {"plan": json.loads(self.plan.to_json())}


@dataclass(frozen=True)
class Frontier:
    """What a search found.

    Attributes:
        points: the smallest first.
        runs, fresh: plans measured, and how many of them in this run.
        elements: weights that are chosen for.
        harm: what `Figures.harm` is, in words.
    """

    model: Path
    points: tuple[Point, ...]
    runs: int
    fresh: int
    elements: int
    harm: str

    def to_json(self) -> str:
        """Everything, for machines."""
        table = {"model": str(self.model), "runs": self.runs, "weights": self.elements, "harm": self.harm}
        return json.dumps(table | {"points": [point.to_dict() for point in self.points]}, indent=1)

    @bounded
    def nearest(self, quantity: Literal["size", "bits"], amount: float) -> Point:
        """The most accurate point within a bound.

        Args:
            quantity: `size` or `bits`.
            amount: at most so much of it.

        Raises:
            BadRecipe: there is none.
        """
        within = [point for point in self.points if getattr(point, quantity) <= amount]
        if not within:
            least = min(getattr(point, quantity) for point in self.points)
            raise BadRecipe(f"no point has {quantity} of {amount:g} or less; the smallest has {least:.4g}")
        return min(within, key=lambda point: point.figures.harm)


@bounded
def search(  # noqa: PLR0913 - a door for users
    model: str | Path,
    recipe: Recipe | str = "auto",
    *,
    target: str = "ort-cpu",
    data: DataSource | None = None,
    preprocessing: How = None,
    tokenizer: str | Path | None = None,
    lengths: Sequence[int] | None = None,
    limit: int | None = LIMIT,
    seed: int | None = None,
    evidence: str | Path | None = None,
    effort: Effort = Effort(),  # noqa: B008
    formats: Sequence[str] = (),
    logits: Sequence[str] = (),
    latency: bool = False,
    points: int = POINTS,
    progress_file: str | Path | None = None,
    threads: int = THREADS,
    guard: Guard | None = None,
    progress: Progress = QUIET,
) -> Frontier:
    """Which plans of the model at `model` no other one beats in both size and accuracy.

    Args:
        recipe: rules for single nodes, and how much is measured (`Recipe.effort`); its scheme has to be `auto`.
        formats: what is chosen from, with a block size or without (`uint4/64`); by default the usual ones.
        latency: time kernels too, and choose from those that compute in integers.
        points: sizes at which the best plan is looked for.
        progress_file: where what was measured is kept, until the search ends.
        target, data, preprocessing, tokenizer, lengths, limit, seed, evidence, effort, logits: as of `quantize`.
        threads, guard, progress: likewise.

    Raises:
        OnnxqError: one of its kinds (`errors.py`).
    """
    if not 2 <= points <= 1000:
        raise BadRecipe(f"a front of {points} points is none; 2 to 1000")
    environment = Environment(threads, progress, Guard() if guard is None else guard)
    kept = None if progress_file is None else Path(progress_file)
    if kept is not None:
        environment.guard.writes(kept, "-o", meter.is_progress)
    here, _, data = mirror.read_and_written(model, None, data)
    request = Request(
        model=here,
        output=None,
        recipe=Recipe(recipe) if isinstance(recipe, str) else recipe,
        target=target,
        plan=None,
        check=True,
        sampling=Sampling(data, reading_of(preprocessing, tokenizer, lengths), limit, seed),
        ranges=None,
        evidence=None if evidence is None else Path(evidence),
        effort=effort,
        environment=environment,
        profile=new_profile(threads),
    )
    request = asked(request, "latency=1" if latency else "size=1", formats, logits)
    with environment.sharing(effort.cluster):
        return _found(request, points, kept, latency=latency)


def _found(request: Request, points: int, progress_file: Path | None, *, latency: bool) -> Frontier:
    job = opened(request, writes=False)
    with remembering(request, job), contextlib.ExitStack() as kept:
        job, ranges, trials = calibrated(request, job)
        plans = candidates_of(request, job, ranges, trials)
        job = with_evidence(request, job, kept, ranges, plans)
        job.tell_gaps()
        bench = bench_of(request, job, ranges, trials)
        space = open_space(job, bench, plans, ranges, progress_file=progress_file, fast=latency)
        folder = kept.enter_context(scratch())
        gauge = space.search.meter
        try:
            found = _front([_point(space, chosen, bench.rewrite, folder) for chosen in _best_of_sizes(space, points)])
        finally:
            gauge.save()
        if progress_file is not None:
            meter.remove(progress_file)
        words = "KL divergence" if bench.classes else "noise over variation"
        return Frontier(job.path, tuple(found), gauge.count, gauge.fresh, space.elements, words)


def _best_of_sizes(space: Space, points: int) -> list[tuple[int, ...]]:
    """The best choice for each of several sizes, from the least to the largest; each corrected in its share of what
    may be measured."""
    costs = [unit.costs for unit in space.units]
    least, most = (sum(float(pick(each)) for each in costs) for pick in (np.min, np.max))
    found: dict[tuple[int, ...], None] = {}
    for number, most_bytes in enumerate(np.geomspace(max(1.0, least), max(1.0, most), points)):
        bounds = [Bound(costs, float(most_bytes) * (1 + 1e-9))]
        solution = space.search.least_harm(bounds)
        if solution is None:
            continue
        share = space.search.meter.left // (points - number)
        found[space.search.corrected(solution, bounds, share).chosen] = None
    return list(found)


def _point(space: Space, chosen: tuple[int, ...], rewrite: Rewrite, folder: Path) -> Point:
    job, figures = space.job, space.search.measured(chosen).figures
    plan = space.plan(chosen)
    job.progress.start("writing")
    nbytes = save.save(rewrite(plan), folder / "point.onnx")
    latency = space.latency(chosen) if space.seconds else None
    return Point(plan, space.bits(chosen), nbytes / max(1, job.file_nbytes), nbytes, latency, figures)


def _front(points: Sequence[Point]) -> list[Point]:
    """Those of which no other one is as small and does less harm."""
    found: list[Point] = []
    for point in sorted(points, key=lambda point: (point.nbytes, point.figures.harm)):
        if not found or point.figures.harm < found[-1].figures.harm:
            found.append(point)
    return found
