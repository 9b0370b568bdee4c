"""Step 5 where the user gave a budget: the plan to write is searched for; what its file shows may lead to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from onnxq import targets
from onnxq.checking import labeled
from onnxq.checking.models import Check
from onnxq.checking.score import Evaluate, Metric, Score
from onnxq.drafts.benches import bench_for
from onnxq.drafts.taken_there import taken_there
from onnxq.errors import BadRecipe, CheckFailed
from onnxq.job import Job
from onnxq.output.write import own_data
from onnxq.plan import Plan
from onnxq.request import Request
from onnxq.samples.trials import Trials
from onnxq.searching.budget import Budget, parse_budget
from onnxq.searching.drop_search import DropSearch
from onnxq.searching.knapsack import Bound, require_solver, solve
from onnxq.searching.options import Form, candidates, forms
from onnxq.searching.search import Solution, within
from onnxq.searching.space import Space, open_space
from onnxq.summaries.ranges import Ranges
from onnxq.tuning.plan_bench import PlanBench

#: Files that are written at most until one keeps its bound.
FILES = 5
#: Times that what a file holds besides weights is looked at anew, for the plan that is likely then.
SIZES = 4
#: A plan of which so much more or less is expected than may be spent need not be written to know whether it fits.
NEAR = 0.3
#: By what share a time may exceed its bound: it is measured.
LATENCY_TOLERANCE = 0.03


#: Samples that a search keeps from calibration, to measure on.
HELD_BACK = 24


def asked(request: Request, budget: Budget | str | None, formats: Sequence[str], logits: Sequence[str]) -> Request:
    """`request` with these words for a search.

    Raises:
        BadRecipe: they do not go together, or with what else was asked for.
    """
    if isinstance(formats, str) or isinstance(logits, str):
        raise BadRecipe("formats and logits are lists of words: formats=['uint4', 'int8']")
    request = dataclasses.replace(request, formats=tuple(formats), logits=tuple(logits))
    if budget is None:
        if formats:
            raise BadRecipe("--formats are what a search chooses from: give --budget too")
        return request
    if not request.is_free or not request.check:
        raise BadRecipe("--budget is for a plan that is searched for: leave out --plan, --like and --no-check")
    recipe = request.recipe
    if recipe.scheme != "auto":
        why = f"leave out '{recipe.scheme}', or name --formats to choose from"
        raise BadRecipe(f"--budget chooses formats itself: {why}")
    found = parse_budget(budget)
    fast = found.quantity == "latency" and request.sampling.source is not None
    recipe = dataclasses.replace(recipe, scheme="w8a8" if fast else "w4a16", keep_slow=True, balance=False)
    sampling = dataclasses.replace(request.sampling, held_back=max(HELD_BACK, request.sampling.held_back))
    request = dataclasses.replace(request, recipe=recipe, sampling=sampling, budget=found)
    forms_of(request)
    return request


def scored(request: Request, evaluate: Evaluate | str | None, metric: str | None, max_drop: float | None) -> Request:
    """`request` with what models are scored by, if the user says that."""
    sampling, budget = request.sampling, request.budget
    if evaluate is not None and metric is not None:
        raise BadRecipe("--evaluate and --metric exclude each other: a score is one number")
    allowed = budget.amount if budget is not None and budget.bounds_accuracy else max_drop
    if evaluate is None and metric is None:
        if max_drop is not None:
            raise BadRecipe("--max-drop is about a score: give --evaluate module:function, or --metric")
        return request
    if metric is None:
        assert evaluate is not None
        return dataclasses.replace(request, metric=Metric(evaluate, allowed))
    sampling = dataclasses.replace(sampling, held_back=labeled.HELD_BACK)
    found = labeled.LabelMetric(metric, sampling, allowed, request.logits)
    return dataclasses.replace(request, sampling=sampling, metric=found)


def forms_of(request: Request) -> list[Form]:
    """What a search for this request chooses from; nothing if none is asked for."""
    if request.budget is None:
        return []
    fast, has_data = request.budget.quantity == "latency", request.sampling.source is not None
    thorough = request.recipe.effort == "thorough"
    return forms(request.formats, targets.get(request.target), fast=fast, has_data=has_data, thorough=thorough)


def candidates_of(request: Request, job: Job, ranges: Ranges, trials: Trials | None) -> list[Plan]:
    """The whole model in each of these forms, as far as the runtime that it is for takes it."""
    found = forms_of(request)
    plans = candidates(job, found, ranges) if found else []
    return taken_there(job, plans, ranges, trials)


def bench_of(request: Request, job: Job, ranges: Ranges, trials: Trials | None) -> PlanBench:
    """What a search measures plans on.

    Raises:
        BadRecipe: the model cannot be run whole.
    """
    require_solver()
    if trials is None:
        raise BadRecipe(f"'{job.path}' is too large to be run whole, which a search does: name a format instead")
    if not trials.samples:
        raise BadRecipe("a search runs the model, for which no legal inputs could be made up: give --data")
    return bench_for(request, job, ranges, trials)


def progress_of(output: Path) -> Path:
    """The file beside an output in which a search keeps what it measured."""
    return output.with_name(f"{output.name}.search")


class BudgetDrafts:
    """As `tuned.Drafts`, for a plan within a budget.

    Args:
        plans: what to choose from (`searching.options.candidates`).
        nbytes_of: tells what the file of a plan takes, with everything in it.
    """

    def __init__(
        self,
        request: Request,
        job: Job,
        ranges: Ranges,
        trials: Trials | None,
        plans: Sequence[Plan],
        output: Path,
        nbytes_of: Callable[[Plan], int],
    ) -> None:
        assert request.budget is not None
        self._budget: Budget = request.budget
        self.job, self._metric, self._files = job, request.metric, 0
        bench = bench_of(request, job, ranges, trials)
        if self._budget.bounds_accuracy and self._metric is None and not bench.classes:
            raise BadRecipe(
                "--budget drop=… is about a score: give --metric or --evaluate, or say by --logits which output decides"
            )
        fast, self._progress_file = self._budget.quantity == "latency", progress_of(output)
        self.space: Space = open_space(job, bench, plans, ranges, progress_file=self._progress_file, fast=fast)
        self._before, self._nbytes_of = job.file_nbytes, nbytes_of
        self._nbytes: dict[tuple[int, ...], int] = {}
        #: Bytes of the file that are no unit's; share of the bound that is aimed at, where files miss it.
        self._other, self._margin = 0, 1.0
        self._drop = DropSearch(*self._levels())
        self._level = 0.0
        self._best: tuple[Plan, Score | None] | None = None
        self._solution: Solution | None = None
        self.score: Score | None = None

    def first(self) -> Plan:
        """The plan of the search.

        Raises:
            CheckFailed: no plan keeps the bound.
        """
        if self._budget.bounds_accuracy:
            return self._of(self._smallest_by_flips() if self._metric is None else self._next_smallest())
        if self._budget.quantity == "size":
            self._settle()
        return self._of(self._within())

    def after(self, plan: Plan, proof: Check | None, file: Path) -> Plan | None:
        """What to write in the place of `plan`, of whose `file` the check found `proof`; None: it stays.

        Raises:
            CheckFailed: no plan keeps the bound.
        """
        self._files += 1
        if self._budget.bounds_accuracy:
            return self._after_flips(proof) if self._metric is None else self._after_score(plan, file)
        other = self._after_size(file) if self._budget.quantity == "size" else self._after_time(proof)
        if other is None and self._metric is not None:
            self.score = self._metric.score(self.job.path, file, 1)
            self.score.require_good()
        return other

    def _refusal(self, why: str) -> CheckFailed:
        """That the bound cannot be kept. What was measured serves a search for another one."""
        kept = (
            f"; '{self._progress_file}' keeps what was measured for other bounds"
            if self._progress_file.exists()
            else ""
        )
        return CheckFailed(f"no plan keeps --budget {self._budget}: {why}{kept}")

    def is_faster(self, plan: Plan, proof: Check | None) -> bool | None:
        """Whether the file is faster than float: who bounds something else has not asked."""
        return None

    # -- bounds on size and time ---------------------------------------------------------------------------------------

    def bounds(self) -> list[Bound]:
        """What the knapsack may not exceed."""
        space, amount = self.space, self._budget.amount
        costs = [unit.costs for unit in space.units]
        if self._budget.quantity == "bits":
            return [Bound(costs, amount * space.elements / 8)]
        if self._budget.quantity == "size":
            return [Bound(costs, amount * self._before - self._other)]
        return [Bound(space.seconds, amount * self._margin * space.in_float - space.other_seconds)]

    def _settle(self) -> None:
        """Find what files near the bound hold besides weights: nodes, functions and metadata, which count in small
        ones and are others for each plan."""
        space, chosen = self.space, tuple([len(unit.options) - 1 for unit in self.space.units])
        for _ in range(SIZES):
            self._other = self._file_nbytes(chosen) - space.nbytes(chosen)
            likely = solve(space.search.sensitivity.added, self.bounds())
            if likely is None or tuple(likely) in self._nbytes:
                return
            chosen = tuple(likely)

    def _file_nbytes(self, chosen: Sequence[int]) -> int:
        """What the file of these options takes: written once to be known."""
        key = tuple(chosen)
        if key not in self._nbytes:
            self._nbytes[key] = self._nbytes_of(self.space.plan(key))
        return self._nbytes[key]

    def _fits(self, chosen: Sequence[int]) -> bool:
        """Whether these options are within the bound, in the file that would be written."""
        if self._budget.quantity != "size":
            return within(self.bounds(), chosen)
        most, expected = self._budget.amount * self._before, self.space.nbytes(chosen) + self._other
        if abs(expected - most) > NEAR * most:
            return expected <= most
        return self._file_nbytes(chosen) <= most

    def _within(self) -> Solution:
        try:
            found = self._found_within()
            for _ in range(SIZES):
                if self._fits(found.chosen):
                    break
                self._other = self._file_nbytes(found.chosen) - self.space.nbytes(found.chosen)
                found = self._found_within()
            return found
        finally:
            self.space.search.meter.save()

    def _found_within(self) -> Solution:
        search, bounds = self.space.search, self.bounds()
        found = search.least_harm(bounds, self._fits)
        if found is None:
            advice = "name shorter --formats, or ask for more"
            raise self._refusal(f"{self._least()}; {advice}")
        return search.corrected(found, bounds, search.meter.left)

    def _least(self) -> str:
        """The least that there is, in words."""
        space = self.space
        shortest = [len(unit.options) - 1 for unit in space.units]
        if self._budget.quantity == "bits":
            return f"with these formats weights take {space.bits(shortest):.3f} bits at least"
        if self._budget.quantity == "size":
            least = (space.nbytes(shortest) + self._other) / max(1, self._before)
            return f"with these formats the file has {least:.1%} of the float model's size at least"
        fastest = [int(np.argmin(each)) for each in space.seconds]
        return f"the fastest kernels take {space.latency(fastest):.2f} of the float model's time"

    def _after_size(self, file: Path) -> Plan | None:
        assert self._solution is not None
        real = file.stat().st_size + sum(data.stat().st_size for data in own_data(file))
        if real <= self._budget.amount * self._before:
            return None
        self._nbytes[self._solution.chosen] = real
        self._other = real - self.space.nbytes(self._solution.chosen)
        return self._again(f"the file has {real:,} bytes")

    def _after_time(self, proof: Check | None) -> Plan | None:
        if self._budget.quantity != "latency" or proof is None or not proof.float_ms:
            return None
        ratio, wanted = proof.latency_ratio, self._budget.amount
        if ratio <= wanted * (1 + LATENCY_TOLERANCE) + proof.latency_spread:
            return None
        self._margin *= wanted / ratio
        return self._again(f"the file takes {ratio:.2f} of the float model's time")

    def _again(self, why: str) -> Plan:
        if self._files >= FILES:
            raise self._refusal(why)
        return self._of(self._within())

    # -- bounds on the score -------------------------------------------------------------------------------------------

    def _levels(self) -> tuple[float, float]:
        sensitivity = self.space.search.sensitivity
        high = sensitivity.harm([int(np.argmax(each)) for each in sensitivity.added])
        return max(sensitivity.floor, high * 1e-6), high

    def _smallest_by_flips(self) -> Solution:
        """The smallest plan with so few flipped decisions."""
        best = None
        try:
            while (level := self._drop.next()) is not None:
                found = self.space.search.least_bytes(level)
                passes = found is not None and (found.figures.flips or 0.0) <= self._margin * self._budget.amount
                self._drop.tell(level, passes=passes)
                best = found if passes else best
        finally:
            self.space.search.meter.save()
        if best is None:
            raise self._refusal("even the longest formats flip more decisions")
        return best

    def _after_flips(self, proof: Check | None) -> Plan | None:
        """The check may see samples that the search did not look at."""
        if proof is None or not proof.flips > self._budget.amount:
            return None
        if self._files >= FILES:
            raise self._refusal(f"{proof.flips:.2%} of the file's decisions flip")
        self._margin *= 0.8 * self._budget.amount / proof.flips
        self._drop = DropSearch(*self._levels())
        return self._of(self._smallest_by_flips())

    def _next_smallest(self) -> Solution:
        self._level = self._drop.next() or self._drop.low
        found = self.space.search.least_bytes(self._level)
        return found if found is not None else self.space.search.measured([0] * len(self.space.units))

    def _after_score(self, plan: Plan, file: Path) -> Plan | None:
        assert self._metric is not None
        if self._best is not None and plan is self._best[0]:
            return None
        self.score = score = self._metric.score(self.job.path, file, self._drop.count + 1)
        self._drop.tell(self._level, passes=score.is_good)
        if score.is_good and self._level == self._drop.passed:
            self._best = plan, score
        if self._drop.next() is not None:
            return self._of(self._next_smallest())
        if self._best is None:
            score.require_good()
            return None
        best, found = self._best
        self.score = found if found is None else dataclasses.replace(found, evaluations=self._drop.count)
        return None if best is plan else best

    def _of(self, solution: Solution) -> Plan:
        self._solution = solution
        return self.space.plan(solution.chosen)
