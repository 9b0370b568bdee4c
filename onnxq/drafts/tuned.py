"""Steps 5 and 8 together: which plan to carry out, and which one instead once its file was looked at."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from onnxq import own_ops
from onnxq.checking import verdict
from onnxq.checking.models import Check
from onnxq.checking.score import Score
from onnxq.checking.verdict import misses_floor, stricter
from onnxq.drafts.benches import bench_for
from onnxq.errors import NothingToDo
from onnxq.job import Job
from onnxq.model.types import types_of
from onnxq.plan import COMPUTING, FILE_IS_SLOWER, Method, Plan, in_float
from onnxq.planning import int8_regions
from onnxq.planning.scales import values_to_observe, without_unobserved
from onnxq.planning.shared_weights import reconciled
from onnxq.recipe import Recipe
from onnxq.request import Request
from onnxq.runtime.profile import PlanTime
from onnxq.samples.trials import Trials
from onnxq.summaries.ranges import Ranges
from onnxq.tuning.aim_search import AimSearch
from onnxq.tuning.plan_bench import PlanBench
from onnxq.tuning.timings import Timings
from onnxq.tuning.tune import better, regret, tune

#: Times that a plan is tuned anew because its file misses the floor that the user named.
RETRIES = 2
#: A larger file whose kernels are float ones has to take less than this share of the float model's time.
SURELY_FASTER = 0.9
#: What a plan in bfloat16 has to be better by, in runs of the float model, than one of half its bytes.
LARGER = 0.03


class Drafts:
    """Step 5: the plan to write; and after each check, which one to write instead."""

    def __init__(self, request: Request, job: Job, ranges: Ranges, trials: Trials | None) -> None:
        self._ranges = ranges
        #: With the recipe of the scheme that was chosen.
        self.job = job
        self._full, self._like = job.plan, request.like
        self._may_give_back = request.is_free and not job.recipe.keep_slow
        # A format that the user named is kept, whatever its speed; in which nodes it computes is ours to say.
        self._may_dissolve = request.is_free and not request.recipe.keep_slow
        self._bench: PlanBench | None = None
        if request.is_free and trials and trials.samples:
            self._bench = bench_for(request, job, ranges, trials)
        self._dense = None if request.one_scheme or not request.profile.machine.multiplies_bfloat16 else job.dense
        self._retries = 0 if self._bench is None else RETRIES
        self._metric, self._search = request.metric, AimSearch()
        self._best: tuple[Plan, Score] | None = None
        #: What the user's function found of the last file.
        self.score: Score | None = None

    def first(self) -> Plan:
        """The job's plan, tuned if it may be; or what it became before.

        Raises:
            NothingToDo: it changes nothing.
        """
        plan = self._full if self._bench is None else self._better(self._bench)
        if self._like is not None:
            plan = without_unobserved(self.job.model, self._like.plan, self._ranges)
        if plan.scheme != self.job.plan.scheme:
            self.job = dataclasses.replace(self.job, recipe=dataclasses.replace(self.job.recipe, scheme=plan.scheme))
        if not plan.changes_anything:
            reason = next((choice.reason for choice in plan), "the plan is empty")
            raise NothingToDo(f"{self.job.path}: nothing could be quantized ({reason})")
        return plan

    def _better(self, bench: PlanBench) -> Plan:
        """The tuned plan; where the job has another one in bfloat16, that with the least regret of the two."""
        recipe, full, dense = self.job.recipe, self._full, self._dense
        plan = self._with_best_kernels(bench, self._tuned(bench, recipe))
        plan = self._with_recurrent_kernels(bench, plan)
        if dense is None or not Timings(bench, recipe.accuracy_level).can_tell(dense):
            return plan
        model, self._full = self.job.model, dense
        other = self._tuned(bench, recipe)
        if int8_regions.in_bfloat16(other):  # what they cost together only a run says
            if better(bench, plan, other, recipe, LARGER) is other:
                return other
        elif other.those(Method.PACKED):
            before = regret(bench, plan, full, recipe, values_to_observe(model, full))
            if regret(bench, other, dense, recipe, values_to_observe(model, dense)) < before:
                return other
        self._full = full
        return plan

    def _with_best_kernels(self, bench: PlanBench, plan: Plan) -> Plan:
        """`plan`, or the same with its int8 operators in onnxruntime's own kernels, where those are faster here than
        regions."""
        model, recipe = self.job.model, self.job.recipe
        if recipe.keep_slow or not int8_regions.has_regions(plan) or not plan.those(Method.STATIC):
            return plan
        other = int8_regions.without_regions(plan, model, recipe, types_of(model))
        return better(bench, plan, without_unobserved(model, other, self._ranges), recipe)

    def _with_recurrent_kernels(self, bench: PlanBench, plan: Plan) -> Plan:
        """`plan`, or the same with the kernels of those recurrent layers whose int8 weights it unpacks, where that is
        better on the whole: the noise that a kernel was thought to make may be that of the weights alone."""
        stored = [c for c in plan.those(Method.STORED) if c.op in own_ops.CELLS and c.format == "int8"]
        before = [self._full.choices[c.node] for c in stored if c.node in self._full.choices]
        back = [c for c in before if c.method in COMPUTING and c.format == "int8"]
        return better(bench, plan, plan.replacing(back), self.job.recipe) if back else plan

    def after(self, plan: Plan, proof: Check | None, file: Path) -> Plan | None:
        """What to write in the place of `plan`, of whose `file` the check found `proof`; None: it stays.

        Raises:
            CheckFailed: no plan keeps the user's score.
        """
        better = self._after_check(plan, proof)
        return self._after_score(plan, file) if better is None else better

    def _after_score(self, plan: Plan, file: Path) -> Plan | None:
        """By the user's own score: the plan of the lowest SQNR that keeps it, in few evaluations."""
        if self._metric is None or (self._best and plan is self._best[0]):
            return None
        self.score = score = self._metric.score(self.job.path, file, self._search.count + 1)
        reached = math.inf if self._bench is None else self._bench.quality(plan).sqnr
        self._search.tell(reached, passes=score.is_good)
        if score.is_good and (self._best is None or reached == self._search.passed):
            self._best = plan, score
        aim = None if self._bench is None else self._search.next()
        if aim is not None and self._bench is not None:
            other = self._tuned(self._bench, dataclasses.replace(self.job.recipe, min_sqnr=aim))
            if other.changes_anything and other != plan:
                return other
        if self._best is None:
            score.require_good()
        if self._best is None or self._best[0] is plan:
            return None
        best, found = self._best
        self.score = dataclasses.replace(found, evaluations=self._search.count)
        return best

    def _after_check(self, plan: Plan, proof: Check | None) -> Plan | None:
        """By the check of the saved file: whether it is too slow, or misses the floor that the user named."""
        if proof is None or not proof.whole:
            return None
        may_give_back, self._may_give_back = self._may_give_back, False  # the first file alone is judged by its speed
        may_dissolve, self._may_dissolve = self._may_dissolve, False
        regions = int8_regions.in_bfloat16(plan)
        if may_dissolve and regions and self._is_slow(plan, proof):
            self._full = self._full.replacing(in_float(c, FILE_IS_SLOWER) for c in self._full if c.joins_bf16_region)
            return plan.replacing(in_float(choice, FILE_IS_SLOWER) for choice in regions)
        if may_give_back and plan.those(*COMPUTING) and self._is_slow(plan, proof):
            self._full = self._full.replacing(in_float(c, FILE_IS_SLOWER) for c in self._full.those(*COMPUTING))
            return plan.replacing(in_float(c, FILE_IS_SLOWER) for c in plan.those(*COMPUTING))
        if self._bench is None or not self._retries or not misses_floor(proof, self.job.recipe):
            return None
        self._retries -= 1
        longer = self._tuned(self._bench, stricter(proof, self.job.recipe, self._bench.quality(plan).sqnr))
        return longer if longer.changes_anything else None

    def _is_slow(self, plan: Plan, proof: Check) -> bool:
        """Whether the file is slower than float, as far as times may decide anything."""
        timings = self._timings(proof)
        return timings is not None and timings.is_saved_slower(plan, _time_of(proof), verdict.SLOWER)

    def is_faster(self, plan: Plan, proof: Check | None) -> bool | None:
        """Whether the file of `plan` is clearly faster than float; None where no time is known."""
        timings = None if proof is None else self._timings(proof)
        bound = 1.0 if plan.those(*COMPUTING) else SURELY_FASTER
        return None if timings is None or proof is None else timings.is_saved_faster(plan, _time_of(proof), bound)

    def _timings(self, proof: Check) -> Timings | None:
        """What judges a measured time; None where there is none, or not of the runtime that the file is for."""
        if self._bench is None:
            return None
        there = proof.elsewhere is not None and proof.elsewhere.was_run
        is_timed = there if self._bench.is_for_another else proof.float_ms
        return Timings(self._bench, self.job.recipe.accuracy_level) if is_timed else None

    def _tuned(self, bench: PlanBench, recipe: Recipe) -> Plan:
        """The plan tuned on the samples on which it is worst; and once more if others turn out worse in the end."""
        model, progress = self.job.model, self.job.progress
        observed = values_to_observe(model, self._full)
        bench.watch(self._full)
        tuned = tune(bench, self._full, recipe, observed, progress)
        if bench.overlooks(tuned, recipe.aim):
            tuned = tune(bench, tuned, recipe, observed, progress)
        return reconciled(tuned, model)


def _time_of(proof: Check) -> PlanTime:
    there = proof.elsewhere
    if there is not None and there.was_run:
        return PlanTime(there.quantized_ms / max(there.float_ms, 1e-9), there.spread)
    return PlanTime(proof.latency_ratio, proof.latency_spread)
