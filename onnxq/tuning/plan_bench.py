"""What a plan gives: the real rewritten model, run in onnxruntime on held-back samples. Nothing is simulated."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.origin import HALVES, STORED_TYPE
from onnxq.model.weights import fits_half, weights_of
from onnxq.passes.regions.step_names import with_names
from onnxq.plan import Plan
from onnxq.planning.shared_weights import together
from onnxq.quality import MAX_DB, Quality, arrays_of, compare_outputs, unrepeatable
from onnxq.quality.decisions import Classes, scores_rare_events
from onnxq.runtime import work
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.profile import MachineProfile, new_profile
from onnxq.runtime.session import THREADS, Feed, Session
from onnxq.runtime.timing import Race, least_seconds, race
from onnxq.runtime.work import NodeRun
from onnxq.samples.trials import GIVEN, Trial, Trials
from onnxq.tuning.there import There
from onnxq.tuning.watched import Watched

Rewrite = Callable[[Plan], ir.Model]

#: Runs that find the time of each kernel: what fits into so many counted seconds (`runtime/work.py`: budgets that are
#: counted and not timed), but at least and at most so many.
PROFILE_SECONDS, PROFILE_RUNS = 0.5, (4, 64)
#: Counted seconds that a plan takes to be carried out and loaded, and how many more a byte and a node of the model.
SECONDS_A_PLAN, SECONDS_A_BYTE, SECONDS_A_NODE = 0.05, 1e-8, 2e-4
#: Samples of the user's that a plan is measured on: all that the float model runs in so many counted seconds, but at
#: least so many.
QUALITY_SECONDS, LEAST_FEEDS = 1.0, 2
#: And those that choices are ranked on, of which more plans are measured than are judged.
RANKING_SECONDS = 0.25
#: Operators whose time is that of the kernels in their subgraphs.
CONTROL_FLOW = ("If", "Loop", "Scan")
#: Labels that are looked at while plans are compared: those on which the noise is worst.
WATCHED = 4
#: Numbers that an output has to have on those that are looked at: of a single score nothing can be told.
LEAST_NUMBERS = 16
#: Numbers in the inputs of a sample up to which that many are looked at: of pictures and sounds they take too long.
SMALL = 1024
#: dB by which samples that are not looked at may be worse than those that are.
OVERLOOKED = 2.0
#: Samples are long that hold so many times the numbers of the median one.
LONG = 3.0
#: Bytes that a constant takes in a file beside its numbers: names, shape, and the node that unpacks it.
BYTES_PER_CONSTANT = 150
#: So many of the user's samples at most are looked at for other branches than the first one takes.
TRACED = 8
#: dB below which two runtimes do not compute the same model.
ALIKE = 10.0


@dataclass
class PlanBench:
    """Runs plans for one model on a few samples.

    Attributes:
        model: prepared, in float.
        rewrite: carries a plan out.
        trials: samples; the first is the one that is timed, and others are where they take branches that it does not
            take. Of a slow model only the first few of the user's are used.
        timed: the samples that are timed.
        trace: every node of the float model that runs on the first sample; and those that run only on the others.
        run_seconds: of a run on the first one, counted.
        known: times that need not be measured, and where those that are will be noted down.
        traced: what tells every node that runs on a sample, where that may be known; None: `work.trace`.
        threads: of one operator, when time is measured. Quality is measured on all threads there are.
        classes: outputs that are scores of classes.
        there: the runtime that plans are for, where that is another one and installed.
        is_for_another: it is another one than onnxruntime on a processor, whose times say nothing of it.
    """

    model: ir.Model
    rewrite: Rewrite
    trials: Trials
    threads: int = THREADS
    known: MachineProfile | None = None
    traced: Callable[[Feed], list[NodeRun]] | None = None
    classes: Mapping[str, Classes] = field(default_factory=dict)
    there: There | None = None
    is_for_another: bool = False

    def __post_init__(self) -> None:
        self.profile = new_profile(self.threads) if self.known is None else self.known
        typical = self.trials.samples[0].feed
        self.trace = work.trace(self.model, typical) if self.traced is None else self.traced(typical)
        self.run_seconds = work.seconds(self.trace)
        self.timed: list[Feed] = [typical]
        session = Session(self.model, threads=0)
        self._kernels: dict[Hashable, list[Kernel]] = {}
        self.outputs = session.outputs
        self._samples: list[Trial] = []
        self._wanted: list[list[NDArray]] = []
        session.run(typical)
        # Of a slow model fewer: a plan is measured dozens of times.
        given, most = 0, max(LEAST_FEEDS, int(QUALITY_SECONDS / self.run_seconds))
        for trial in self.trials.samples:
            given += trial.label == GIVEN
            if trial.label == GIVEN and given > most:
                continue
            self._samples.append(trial)
            self._wanted.append(session.run(trial.feed))
        self.feeds = [trial.feed for trial in self._samples]
        for feed, runs in self._of_other_branches():
            self.timed.append(feed)
            self.trace = [*self.trace, *runs]
        self._watched = list(range(len(self.feeds)))
        self._random = unrepeatable(self.outputs, self._wanted[0], session.run(self.feeds[0]))
        self._found: dict[Hashable, dict[int, Quality]] = {}
        self._nbytes: dict[Hashable, int] = {}
        self._sets: dict[tuple[int, ...], Watched] = {}
        self.size_in_float = _bytes_of(self.model)
        self.is_recurrent = _is_recurrent(self.feeds[0], self._wanted[0])
        self.is_detector = _is_detector(self.feeds[0], self._wanted[0])

    @functools.cached_property
    def unfit_for_half(self) -> set[str]:
        """Nodes with weights that float16 does not hold."""
        nodes = graph.nodes(self.model)
        return {node.name or "" for node in nodes for w in weights_of(node) if not fits_half(w.tensor)}

    @functools.cached_property
    def leaders(self) -> dict[str, str]:
        """By node, the first one of those that get the same format; nodes that are alone are left out."""
        return together(self.model)

    @functools.cached_property
    def floor(self) -> Quality | None:
        """Of the float model in the runtime that plans are for: what nodes that stay in float lose there, where it
        computes them in shorter types than float32. None where that is not known, or it gives something else."""
        if self.there is None:
            return None
        labels = [trial.label for trial in self._samples]
        try:
            got = [self.there.run(feed) for feed in self.feeds]
        except BadModel:
            return None
        found = compare_outputs(self.outputs, self._wanted, got, self._random, labels, self.classes)
        return found if found.sqnr >= ALIKE else None

    @functools.cached_property
    def cost(self) -> float:
        """Counted seconds that measuring one plan takes: what may be measured is derived from it."""
        nodes = sum(1 for _ in graph.nodes(self.model))
        load = SECONDS_A_PLAN + SECONDS_A_BYTE * self.size_in_float + SECONDS_A_NODE * nodes
        return load + self.run_seconds * len(self._watched)

    def quality(self, plan: Plan) -> Quality:
        """The quality of `plan` on the samples looked at. No sample is run twice for plans that do the same."""
        return self._on(plan, self._watched)

    def glance(self, plan: Plan) -> Quality:
        """The same on fewer of the user's samples, where the model is slow: which choice does more harm than another
        shows on those."""
        most = max(LEAST_FEEDS, int(RANKING_SECONDS / self.run_seconds))
        given = [i for i in self._watched if self._samples[i].label == GIVEN]
        return self._on(plan, [i for i in self._watched if i not in given[most:]])

    def watch(self, plan: Plan) -> None:
        """Look only at the user's samples from now on, and at those of others on which `plan` is worst.

        Samples that take several times the work of others are looked at only if they are clearly worse.
        """
        found = self._quality_everywhere(plan).contrasts()
        contrasts = {label: found.get(label, MAX_DB) for label in self._others}  # not of those without a number
        worst = min((contrasts[label] for label in self._others if not self._is_long(label)), default=MAX_DB)
        labels = [each for each in self._others if not self._is_long(each) or contrasts[each] < worst - OVERLOOKED]
        self._look_at(sorted(labels, key=contrasts.__getitem__)[:WATCHED])

    def overlooks(self, plan: Plan, aim: float = -math.inf) -> bool:
        """Whether `plan` is worse on samples that are not looked at, or below an `aim` that it reaches on those that
        are; from now on they are looked at too."""
        quality = self._quality_everywhere(plan)
        contrasts, decibels = quality.contrasts(), quality.by_label()
        seen = {self._samples[i].label for i in self._watched}
        worst = min((contrasts[label] for label in seen if label in contrasts), default=MAX_DB)
        missed = {each for each, found in contrasts.items() if each not in seen and found < worst - OVERLOOKED}
        if all(decibels[label] >= aim for label in seen if label in decibels):
            missed |= {each for each, found in decibels.items() if each not in seen and found < aim}
        if missed:
            self._look_at([label for label in self._others if label in seen | missed])
        return bool(missed)

    @functools.cached_property
    def _others(self) -> list[str]:
        """Labels of the samples that were made up."""
        return [label for label in dict.fromkeys(trial.label for trial in self._samples) if label != GIVEN]

    def _look_at(self, labels: Sequence[str]) -> None:
        """At the user's samples and these, one of each label, or two if there are few, or more of few numbers."""
        count = 1 if len(labels) > WATCHED // 2 else 2
        own = {label: [i for i, trial in enumerate(self._samples) if trial.label == label] for label in labels}
        given = [i for i, trial in enumerate(self._samples) if trial.label == GIVEN]
        self._watched = sorted({*given, *(i for found in own.values() for i in self._telling(found, count))})

    def _telling(self, samples: Sequence[int], count: int) -> list[int]:
        """The first `count` samples; where their outputs are of few numbers as many, the largest first, as it takes."""
        numbers = {i: min((x.size for x in self._floats(i)), default=LEAST_NUMBERS) for i in samples}
        is_large = sum(x.size for x in self.feeds[samples[0]].values()) > SMALL
        if is_large or sum(numbers[i] for i in samples[:count]) >= LEAST_NUMBERS:
            return list(samples[:count])
        taken: list[int] = []
        for i in sorted(samples, key=lambda i: -numbers[i]):
            if len(taken) >= count and sum(numbers[j] for j in taken) >= LEAST_NUMBERS:
                break
            taken.append(i)
        return taken

    def _floats(self, sample: int) -> list[NDArray]:
        return [x for output in self._wanted[sample] for x in arrays_of(output) if x.dtype.kind in "fV" and x.size]

    def _is_long(self, label: str) -> bool:
        """Whether a label's samples hold several times as many numbers as most."""
        work = [sum(x.size for output in wanted for x in arrays_of(output)) for wanted in self._wanted]
        own = [n for n, trial in zip(work, self._samples, strict=True) if trial.label == label]
        return max(own) > LONG * statistics.median(work)

    def size(self, plan: Plan) -> float:
        """Bytes of the constants of `plan`'s model relative to those of the float model."""
        if plan_key(plan) not in self._nbytes:
            self._on(plan, self._watched)
        return self._nbytes[plan_key(plan)] / max(1, self.size_in_float)

    def _quality_everywhere(self, plan: Plan) -> Quality:
        return self._on(plan, range(len(self._samples)))

    def _on(self, plan: Plan, samples: Sequence[int]) -> Quality:
        """The quality on these samples, of which those are run that were not run before."""
        found = self._found.setdefault(plan_key(plan), {})
        if missing := [i for i in samples if i not in found]:
            model = self.rewrite(plan)
            self._nbytes[plan_key(plan)] = _bytes_of(model)
            session = Session(model, threads=0)
            everything = self._of(tuple(range(len(self._samples))))
            for i in missing:
                found[i] = everything.compared(session, i)
        quality = Quality(self._random, classes=self.classes)
        for i in samples:
            quality.merge(found[i])
        return quality

    @property
    def watched(self) -> Watched:
        """The samples looked at."""
        return self._of(tuple(self._watched))

    def _of(self, samples: tuple[int, ...]) -> Watched:
        if samples not in self._sets:
            feeds, wanted = [self.feeds[i] for i in samples], [self._wanted[i] for i in samples]
            labels = [self._samples[i].label for i in samples]
            self._sets[samples] = Watched(self.outputs, feeds, wanted, labels, self._random, self.classes)
        return self._sets[samples]

    def kernels(self, plan: Plan | None, *, timed: bool = True) -> list[Kernel]:
        """The kernels that ran, with their times, for `plan` or (None) for the float model.

        Where they are not `timed` they run once, and their times mean nothing.

        Where other processes took so much of the machine that no run of some kernel was undisturbed, all are scaled to
        the processor time of the best run.
        """
        of_plan = None if plan is None else plan_key(plan)
        key = (of_plan, timed or (of_plan, True) in self._kernels)
        if key not in self._kernels:
            model = self.model if plan is None else self.rewrite(plan)
            found: dict[str, list[Kernel]] = {}
            for feed in self.timed:
                known = {*found}
                for kernel in self._ran(model, feed, timed=timed):
                    if kernel.name not in known:  # else it is in no branch that this sample alone takes
                        found.setdefault(kernel.name, []).append(kernel)
            self._kernels[key] = [kernel for those in found.values() for kernel in those]
        return self._kernels[key]

    def _ran(self, model: ir.Model, feed: Feed, *, timed: bool) -> list[Kernel]:
        session = Session(model, threads=self.threads, profile=True)
        session.run(feed)
        if not timed:
            return with_names(session.kernels(), model)
        fewest, most = PROFILE_RUNS
        least = least_seconds(session, feed, max(fewest, min(most, int(PROFILE_SECONDS / self.run_seconds))))
        kernels = with_names(session.kernels(), model)
        total = sum(kernel.seconds for kernel in kernels)
        # Their time holds that of the kernels in their subgraphs, which are listed too.
        has_subgraphs = any(kernel.op in CONTROL_FLOW for kernel in kernels)
        if self.threads == 1 and total > least and not has_subgraphs:
            kernels = [dataclasses.replace(k, seconds=k.seconds * least / total) for k in kernels]
        return kernels

    def _of_other_branches(self) -> Iterator[tuple[Feed, list[NodeRun]]]:
        """Samples that run nodes with weights in branches which no sample before them takes, and those nodes."""
        inner = [node for owner in graph.nodes(self.model) if graph.is_op(owner, "If") for node in graph.inside(owner)]
        left = {node.name or "" for node in inner if any(weights_of(node))} - {run.node for run in self.trace}
        traced = functools.partial(work.trace, self.model) if self.traced is None else self.traced
        looked_at: Counter[str] = Counter()
        for trial in self._samples:
            looked_at[trial.label] += 1
            if not left or looked_at[trial.label] > (TRACED if trial.label == GIVEN else 1):
                continue
            if runs := [run for run in traced(trial.feed) if run.node in left]:
                left -= {run.node for run in runs}
                yield trial.feed, runs

    def speed(self, plan: Plan, seconds: float, bound: float) -> Race:
        """`plan` against float, until it is clear whether it takes less than `bound` times as long."""
        sessions = [_Branches(Session(model, threads=self.threads)) for model in (self.model, self.rewrite(plan))]
        return race(sessions, [self.timed] * 2, seconds=seconds, bound=bound)


class _Branches:
    """Runs every branch."""

    def __init__(self, session: Session) -> None:
        self._session, self.threads = session, session.threads

    def run(self, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            self._session.run(feed)


def plan_key(plan: Plan) -> Hashable:
    """What a plan does, without its reasons."""
    choices = tuple((c.node, c.method, c.format, c.block, c.granularity, c.algorithm, c.rank) for c in plan)
    return choices if plan.regions else (choices, "without regions")


def _bytes_of(model: ir.Model) -> int:
    """What the constants of a model take in its file, near enough to compare plans."""
    values = [value for each in model.graphs() for value in each.initializers.values()]
    # What was in half precision in the file was widened to be computed with.
    sizes = [
        value.const_value.nbytes // (2 if value.meta.get(STORED_TYPE) in HALVES else 1)
        for value in values
        if value.const_value is not None
    ]
    return sum(sizes) + BYTES_PER_CONSTANT * len(sizes)


def _is_recurrent(feed: Feed, outputs: Sequence[NDArray]) -> bool:
    """Whether an output looks like the next value of one of several float inputs: then errors add up over time."""
    floats = [x for x in feed.values() if x.dtype.kind == "f" and x.size > 1]
    made = [y for output in outputs for y in arrays_of(output)]
    return len(feed) > 1 and any(x.shape == y.shape and x.dtype == y.dtype for x in floats for y in made)


def _is_detector(feed: Feed, outputs: Sequence[NDArray]) -> bool:
    """Whether an output looks like scores to be compared with a threshold.

    One with the shape of an input is none: it is a gain for each of its numbers, as of a filter, or a mask. Nor are
    scores beside boxes: nearly all are 0, so that the same error has 30 dB less of contrast than beside their contrary.
    """
    inputs = {x.shape for x in feed.values()}
    found = (x for output in outputs for x in arrays_of(output))
    return any(scores_rare_events(x) for x in found if x.shape not in inputs)
