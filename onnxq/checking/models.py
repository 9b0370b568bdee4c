"""Step 8: open the saved file in the runtime and prove that it is what it should be."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq import own_ops
from onnxq.checking.elsewhere import BROKEN, Elsewhere
from onnxq.checking.outputs.alike import outputs_alike
from onnxq.checking.score import Score
from onnxq.errors import BadModel, CheckFailed
from onnxq.model.load import load_written
from onnxq.passes.regions.step_names import RegionTime, region_times
from onnxq.quality import Quality, compare_outputs, unrepeatable
from onnxq.quality.blank import comparison_notes
from onnxq.quality.decisions import NO_CLASSES, Classes
from onnxq.runtime import native
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.own_files import model_files
from onnxq.runtime.session import THREADS, Feed, Session
from onnxq.runtime.timing import is_below, race
from onnxq.samples.trials import GIVEN, Trials

#: Seconds for which the float and the quantized model are each timed, in turns.
TIMING_SECONDS = 1.0
#: Kernels that round activations to 8 bits inside, which onnxq's do not, keep at least so much of any input.
ROUNDED_DB = 30.0
#: dB by which samples of other batches are worse than the others where they count.
LOST = 3.0
NOT_RUN = "not run: no legal inputs could be made up for it; give --data"


@dataclass(frozen=True)
class Check:
    """What was found.

    Attributes:
        inputs: what the models were run on, in words.
        sqnr: dB, the worst output; NaN where nothing was run.
        contrast: as `quality.Quality.contrast`.
        sqnr_plain: the same with the runtime's graph optimizer off; equal to `sqnr` unless the optimizer does harm.
        outputs: SQNR by output, or by node for a model that was checked node by node.
        float_ms, quantized_ms: least milliseconds of one run, taken in turns on `threads` threads; of one thread, its
            processor time.
        latency_spread: how far `latency_ratio` is to be trusted, plus or minus.
        kernels: integer and packed-weight kernels that ran, by operator.
        bare_sqnr, bare_ms: of the quantized model without onnxq's library, where it has operators that need it to be
            fast, and the library is there.
        kinds: SQNR by kind of input (`trials.Trials.labels`), where there are several.
        decides_alike: whether no more decisions flip than near ties explain, of outputs that say them; with the
            runtime's optimizer and without.
        only_decides: whether no output holds floating-point numbers: the figures in dB are those of decisions.
        worst_sample: SQNR of the worst of the user's own samples, where there are several; NaN where there are not.
        faint_samples: how many of them have less, as their outputs are so small beside those of the others that they
            count as larger ones.
        faint: of such `kinds`, beside the others: SQNR as it is, and by how many dB the outputs are smaller than usual.
        whole: whether the whole models were run, and not single nodes of them.
        proves: whether the user's own samples were among what the models were run on.
        notes: what a user should know, a sentence each.
        kld, flips: of outputs that are scores of classes: mean KL divergence in nats, and share of the places where
            another class is the likeliest; of the worst output and kind of input. NaN where there are none.
        score: by a metric, where one was asked for beside the comparison.
        elsewhere: what was found in the runtime that the model is for, if that is not onnxruntime.
        regions: those that ran, with the times of their steps.
        undone: notes on what only the user can do, before which the runtime that the file is for refuses it.
    """

    inputs: str
    sqnr: float
    contrast: float
    sqnr_plain: float
    outputs: dict[str, float] = field(default_factory=dict)
    float_ms: float = 0.0
    quantized_ms: float = 0.0
    threads: int = THREADS
    kernels: dict[str, int] = field(default_factory=dict)
    bare_sqnr: float = math.nan
    bare_ms: float = 0.0
    kinds: dict[str, float] = field(default_factory=dict)
    whole: bool = True
    proves: bool = True
    notes: tuple[str, ...] = ()
    latency_spread: float = 0.0
    kld: float = math.nan
    flips: float = math.nan
    score: Score | None = None
    elsewhere: Elsewhere | None = None
    regions: tuple[RegionTime, ...] = ()
    worst_sample: float = math.nan
    faint_samples: int = 0
    faint: dict[str, tuple[float, float]] = field(default_factory=dict)
    decides_alike: bool = True
    only_decides: bool = False
    undone: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the outputs were compared at all."""
        return not math.isnan(self.sqnr)

    @property
    def latency_ratio(self) -> float:
        """Time of the quantized model over that of the float one; below 1 is faster. 1 where it was not measured."""
        return self.quantized_ms / self.float_ms if self.float_ms else 1.0

    @property
    def lost_there(self) -> str:
        """That the runtime which the file is for breaks it, though neither the float model nor onnxruntime's outputs,
        in a sentence; empty where it does not."""
        there = self.elsewhere
        if there is None or not (self.sqnr >= BROKEN and there.float_sqnr >= BROKEN):
            return ""
        return there.unlike

    @property
    def further_notes(self) -> tuple[str, ...]:
        """Those of which no warning tells, as one does of `undone` and `lost_there`."""
        return tuple(note for note in self.notes if note not in (*self.undone, self.lost_there))

    def is_slower(self, bound: float) -> bool:
        """Whether the quantized model clearly takes more than `bound` times as long."""
        return is_below(self.latency_ratio, self.latency_spread, bound) is False and self.float_ms > 0

    def to_dict(self) -> dict[str, object]:
        """Everything, `latency_ratio` included, for JSON; what was not measured is None."""
        table = dataclasses.asdict(self) | {"latency_ratio": self.latency_ratio}
        return {key: None if isinstance(x, float) and math.isnan(x) else x for key, x in table.items()}

    def is_another(self, least: float, least_plain: float = -math.inf) -> bool:
        """Whether two files that are to be the same are not: numbers agree by less dB, with the runtime's optimizer and
        without, or more decisions flip than near ties explain."""
        numbers_differ = not self.only_decides and (self.sqnr < least or self.sqnr_plain < least_plain)
        return self.is_known and (numbers_differ or not self.decides_alike)

    @property
    def difference(self) -> str:
        """By what it `is_another`, in words."""
        reached = min(self.sqnr, self.sqnr_plain)
        return f"{reached:.1f} dB" if self.decides_alike else "more decisions flip than near ties explain"

    def noting(self, *notes: str) -> Check:
        return dataclasses.replace(self, notes=(*self.notes, *notes))


def check_models(
    in_float: Session,
    quantized: Path,
    trials: Trials,
    *,
    threads: int = THREADS,
    seconds: float = TIMING_SECONDS,
    bound: float = 1.05,
    bare: bool = False,
    classes: Mapping[str, Classes] = NO_CLASSES,
) -> Check:
    """Compare two whole models on `trials`. Without any, the quantized model is only opened.

    Args:
        in_float: the float model.
        bound: time until it is clear whether the quantized model takes so much longer than the float one.
        bare: run the quantized model without onnxq's library too, if that is there.
        classes: outputs that are scores of classes.

    Raises:
        CheckFailed: the quantized model does not load, does not run, or has other outputs than the float one.
        BadModel: the float model does not run on `trials`.
    """
    feeds = trials.feeds
    wanted = [in_float.run(feed) for feed in feeds]
    random = unrepeatable(in_float.outputs, wanted[0], in_float.run(feeds[0])) if feeds else frozenset()
    compared = functools.partial(
        compare_outputs, in_float.outputs, wanted, ignored=random, labels=trials.labels, classes=classes
    )
    try:
        optimized = Session(quantized, threads=threads)
        plain = Session(quantized, optimize=False, threads=0)  # not timed
        _require_outputs(in_float, optimized)
        if not feeds:
            return _not_run(trials, threads)
        each = Quality(random)
        run = functools.partial(outputs_alike, quantized, in_float.outputs, wanted, trials.samples, random)
        on = compared(_noting_each(each, in_float.outputs, wanted, run(optimized), trials.labels))
        further = _on_further(in_float, optimized, quantized, trials, random, classes)
        off, alone = compared(run(plain)), Quality()
        timed = [in_float, optimized]
        if bare and native.path() is not None:
            timed.append(Session(quantized, threads=threads, library=False))
            alone = compared(run(timed[-1]))
        timing = race(timed, [feeds[0]] * len(timed), seconds=seconds, bound=bound)
        ran = _kernels_of(quantized, feeds, threads)
    except BadModel as error:
        raise CheckFailed(f"the saved model is broken: {error}") from error
    times = [1e3 * each for each in timing.seconds]
    check = dataclasses.replace(
        _found(trials, _with_further(on, each, further), off, alone, each),
        float_ms=times[0],
        quantized_ms=times[1],
        threads=threads,
        kernels=quantized_kernels(ran),
        regions=_regions(ran, quantized),
        bare_ms=times[2] if len(timed) > 2 else 0.0,
        latency_spread=timing.spreads[1],
    )
    return _noted(check, on, off, alone)


def _found(trials: Trials, on: Quality, off: Quality, alone: Quality, each: Quality) -> Check:
    """What the outputs say: with the runtime's optimizer, without it, without onnxq's library, by sample."""
    is_known = bool(on.outputs)
    worst = each.worst_alike() if len(each.labels) > 1 and each.outputs else math.nan
    return Check(
        trials.words,
        sqnr=on.sqnr if is_known else math.nan,
        contrast=on.contrast if is_known else math.nan,
        sqnr_plain=off.sqnr if is_known else math.nan,
        outputs=on.by_output(),
        bare_sqnr=alone.sqnr if is_known and alone.outputs else math.nan,
        kinds=on.by_label() if is_known and len(on.labels) > 1 else {},
        proves=trials.proves,
        notes=(*comparison_notes(on, samples=trials.feeds if trials.proves else ()), *trials.notes),
        kld=on.kld,
        flips=on.flips,
        decides_alike=on.decides_alike and off.decides_alike,
        only_decides=on.only_decides,
        worst_sample=worst,
        faint_samples=0 if math.isnan(worst) else each.below(worst),
        faint=on.faint() if is_known and len(on.labels) > 1 else {},
    )


def _noting_each(
    each: Quality,
    names: Sequence[str],
    wanted: Sequence[Sequence[NDArray]],
    got: Iterable[Sequence[NDArray]],
    labels: Sequence[str],
) -> Iterator[Sequence[NDArray]]:
    """`got`; the user's own samples are taken into `each` on the way, under a label each."""
    for number, (x, y, label) in enumerate(zip(wanted, got, labels, strict=True)):
        if label == GIVEN:
            each.add(names, x, y, str(number))
        yield y


def _not_run(trials: Trials, threads: int) -> Check:
    nan = math.nan
    return Check(trials.words, nan, nan, nan, threads=threads, proves=False, notes=(NOT_RUN, *trials.notes))


def _on_further(
    in_float: Session,
    optimized: Session,
    quantized: Path,
    trials: Trials,
    random: frozenset[str],
    classes: Mapping[str, Classes],
) -> Quality:
    names, samples = in_float.outputs, trials.further
    wanted = [in_float.run(trial.feed) for trial in samples]
    got = outputs_alike(quantized, names, wanted, samples, random, optimized)
    return compare_outputs(names, wanted, got, random, [trial.label for trial in samples], classes)


def _with_further(on: Quality, each: Quality, further: Quality) -> Quality:
    """`on`, and what was seen on `further` samples if they are clearly worse than any other, of the user's if there
    are such."""
    before, after, both = (Quality(on.ignored, classes=on.classes) for _ in range(3))
    before.merge(each if each.outputs else on)
    after.merge(before)
    after.merge(further)
    both.merge(on)
    if after.sqnr < before.sqnr - LOST:
        both.merge(further)
    return both


def _require_outputs(in_float: Session, quantized: Session) -> None:
    if quantized.outputs != in_float.outputs:
        ours, wanted = (", ".join(session.outputs) for session in (quantized, in_float))
        raise CheckFailed(f"the quantized model has other outputs ({ours}) than the float one ({wanted})")


def _kernels_of(quantized: Path, feeds: Sequence[Feed], threads: int) -> list[Kernel]:
    """The kernels that ran on these, or, once they took long, on those of other shapes than any before."""
    profiled, end = Session(quantized, threads=threads, profile=True), time.monotonic() + TIMING_SECONDS
    seen = set[frozenset[tuple[str, tuple[int, ...]]]]()
    for feed in feeds:
        shapes = frozenset((name, np.shape(x)) for name, x in feed.items())
        if shapes not in seen or time.monotonic() < end:
            profiled.run(feed)
        seen.add(shapes)
    return profiled.kernels()


def _regions(ran: Iterable[Kernel], quantized: Path) -> tuple[RegionTime, ...]:
    """What regions took, by step; of a file in onnxruntime's own format nobody can tell whose steps they were."""
    kernels = list(ran)
    is_told = not model_files.is_ort(quantized) and any(kernel.step is not None for kernel in kernels)
    return region_times(kernels, load_written(quantized)) if is_told else ()


def _noted(check: Check, on: Quality, off: Quality, alone: Quality) -> Check:
    """`check` with what is odd about it.

    Args:
        on, off, alone: quality with the runtime's optimizer, without it, and without onnxq's library.

    Raises:
        CheckFailed: without the library the model computes something else.
    """
    is_other = not alone.only_decides and alone.sqnr < min(on.sqnr - 6, ROUNDED_DB)
    here, there = (f"{alone.sqnr:.1f} dB", f"{on.sqnr:.1f} dB") if is_other else alone.flips_beyond(on)
    if check.bare_ms and here:
        raise CheckFailed(
            f"without onnxq's library the saved model computes something else ({here}) than with it ({there})"
        )
    is_worse = not on.only_decides and on.sqnr < off.sqnr - 6 and on.sqnr < 40
    here, there = (f"{on.sqnr:.1f} dB", f"{off.sqnr:.1f} dB") if is_worse else on.flips_beyond(off)
    if here:
        check = check.noting(
            f"with onnxruntime's optimizer on, the outputs are worse ({here}) than with it off ({there})"
        )
    return check


def quantized_kernels(kernels: Iterable[Kernel]) -> dict[str, int]:
    """How many kernels of each operator computed on integers or packed weights."""
    words = ("QLinear", "QGemm", "MatMulInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "ConvInteger")
    packed = (
        own_ops.MATMUL,
        own_ops.DENSE,
        own_ops.GATHER,
        own_ops.REGION,
        own_ops.BF16_REGION,
        own_ops.RECURRENT,
        "MatMulBnb4",
        "GatherBlockQuantized",
        "QMoE",
    )  # com.microsoft has a MatMulNBits too
    counted = (kernel for kernel in kernels if kernel.step is None)
    found = Counter(kernel.op for kernel in counted if kernel.op.startswith((*words, *packed)))
    return dict(sorted(found.items()))
