"""On what the plans of a job are measured."""

from __future__ import annotations

from onnxq.checking.logits import classes_of
from onnxq.job import Job
from onnxq.request import Request
from onnxq.samples.trials import Trials
from onnxq.summaries.ranges import Ranges
from onnxq.tuning.plan_bench import PlanBench
from onnxq.tuning.there import there_of


def bench_for(request: Request, job: Job, ranges: Ranges, trials: Trials) -> PlanBench:
    """Of the plans of `job`, whose activations have these ranges, on these samples."""
    known = (request.profile, job.trace, classes_of(job.model, request.logits), there_of(job, ranges))
    another = bool(job.target.consumer)
    return PlanBench(job.model, lambda plan: job.rewritten(plan, ranges), trials, job.threads, *known, another)
