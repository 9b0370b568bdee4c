"""Nodes for which the runtime that a model is for would refuse the file, where it takes the float model."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from onnxq.errors import BadModel
from onnxq.job import Job
from onnxq.output import write
from onnxq.plan import Choice, Method, Plan, in_float
from onnxq.planning import int8_regions
from onnxq.runtime.consumers import Consumer, open_in
from onnxq.samples.trials import Trials
from onnxq.summaries.ranges import Ranges


def taken_there(job: Job, plans: Sequence[Plan], ranges: Ranges, trials: Trials | None) -> list[Plan]:
    """The plans without what the runtime of the job's target refuses, each node with the reason.

    Whole where that takes it, is not installed, or does not take the float model, whose refusal is the user's to hear.
    Only trying tells: OpenVINO rounds no joined sequences, for example, and little of what it knows as float64.
    """
    changing = any(plan.changes_anything for plan in plans)
    if not job.target.consumer or not changing or not _Reader(job, ranges, trials).takes_float():
        return [*plans]
    return [_taken(_Reader(dataclasses.replace(job, plan=plan), ranges, trials)) for plan in plans]


def _taken(reader: _Reader) -> Plan:
    job = reader.job
    if not reader.why_not(job.plan):
        return job.plan
    units: dict[str, list[Choice]] = {}  # nodes that share a weight have one form of it
    for choice in job.plan:
        if choice.method is not Method.KEEP:
            units.setdefault(choice.shares or choice.node, []).append(choice)
    refused = reader.refused([*units.values()])
    found = job.plan.replacing(choice for unit, why in refused for choice in reader.in_float(unit, why))
    found = int8_regions.prune(found, job.model)
    return job.plan if reader.why_not(found) else found


@dataclasses.dataclass(frozen=True)
class _Reader:
    """That runtime, which opens plans and runs one sample."""

    job: Job
    ranges: Ranges
    trials: Trials | None

    def takes_float(self) -> bool:
        try:
            session = self.job.open_there()
            if session is not None:
                self._run(session)
        except BadModel:
            return False
        return session is not None

    def why_not(self, plan: Plan) -> str:
        """Why it does not take the file of a plan; empty if it does."""
        if not plan.changes_anything:
            return ""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tried.onnx"
            write.save(self.job.rewritten(plan, self.ranges, is_final=True), path)
            try:
                session = open_in(self.job.target.consumer, path, self.job.threads)
                if session is not None:
                    self._run(session)
            except BadModel as error:
                return f"else {error}"
        return ""

    def refused(self, units: Sequence[Sequence[Choice]]) -> list[tuple[Sequence[Choice], str]]:
        """Those of `units` that it does not take, found by halves, and why."""
        why = self.why_not(self._alone(itertools.chain(*units))) if units else ""
        if not why or len(units) == 1:
            return [(unit, why) for unit in units if why]
        middle = len(units) // 2
        return self.refused(units[:middle]) + self.refused(units[middle:])

    def in_float(self, unit: Sequence[Choice], why: str) -> list[Choice]:
        """The kernels of nodes in float; their weights too, where they may not be unpacked there."""
        unpacked = [in_float(choice, why) for choice in unit]
        return unpacked if not self.why_not(self._alone(unpacked)) else [_kept(choice, why) for choice in unit]

    def _alone(self, choices: Iterable[Choice]) -> Plan:
        kept = self.job.plan.replacing(_kept(choice, choice.reason) for choice in self.job.plan)
        return kept.replacing(choices)

    def _run(self, session: Consumer) -> None:
        if self.trials is not None and self.trials.feeds:
            session.run(self.trials.feeds[0])


def _kept(choice: Choice, reason: str) -> Choice:
    return Choice(choice.node, choice.op, Method.KEEP, elements=choice.elements, reason=reason)
