"""The written model in the runtime that it was written for, where that is installed."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from onnxq.errors import BadModel, amount
from onnxq.quality import compare_outputs
from onnxq.runtime.consumers import Consumer, in_order, open_in, version_of
from onnxq.runtime.session import Session
from onnxq.runtime.timing import race
from onnxq.samples.trials import Trials

#: dB below which a model is another one.
BROKEN = 10.0
#: Seconds for which both models are timed there, in turns.
SECONDS = 1.0


@dataclass(frozen=True)
class Elsewhere:
    """What was found there.

    Attributes:
        runtime: its name, and its version where it is installed.
        was_run: whether it was installed, and took the model.
        sqnr: dB of the worst output, against what onnxruntime makes of the float model.
        float_sqnr: the same of the float model there, which may compute in shorter types than float32.
        float_ms, quantized_ms: least milliseconds of a run of each, in turns.
        spread: how far what one is of the other is to be trusted, plus or minus.
        is_of_faint: whether `sqnr` counts faint outputs as more than they are (`Quality.is_of_faint`).
        types: how many convolutions and products of the written model compute in which type.
    """

    runtime: str
    was_run: bool = False
    sqnr: float = math.nan
    float_sqnr: float = math.nan
    float_ms: float = 0.0
    quantized_ms: float = 0.0
    types: dict[str, int] = field(default_factory=dict)
    spread: float = 0.0
    is_of_faint: bool = False

    @property
    def notes(self) -> list[str]:
        """What a user should know, a sentence each."""
        if not self.was_run:
            return [f"rules only: not run in {self.runtime}, which is not installed here"]
        found = []
        if self.types.get("bf16"):
            found.append(
                f"{amount(self.types['bf16'], 'operator')} in bf16 there, as in the float model; "
                "INFERENCE_PRECISION_HINT=f32 has all compute in float32"
            )
        return [*found, *filter(None, [self.unlike])]

    @property
    def unlike(self) -> str:
        """That the written model is another one there, in a sentence; empty where it is not."""
        if not self.was_run or self.sqnr >= BROKEN:
            return ""
        return f"{self.runtime} makes something else of the model than onnxruntime: {self.sqnr:.1f} dB"


def run_elsewhere(
    consumer: str, theirs: Consumer | None, reference: Session, quantized: Path, trials: Trials, threads: int
) -> Elsewhere:
    """Both models in that runtime, on `trials`.

    Args:
        consumer: a file of `runtime/consumers`.
        theirs: the float model there.
        reference: the float model in onnxruntime.
    """
    name = f"{consumer} {version_of(consumer)}".strip()
    ours = open_in(consumer, quantized, threads)
    if ours is None or theirs is None or not trials.feeds:
        return Elsewhere(name)
    wanted = [reference.run(feed) for feed in trials.feeds]
    compared = functools.partial(compare_outputs, reference.outputs, wanted, labels=trials.labels)
    run_ours, run_theirs = in_order(ours, reference.outputs), in_order(theirs, reference.outputs)
    try:
        found = compared([run_ours(feed) for feed in trials.feeds])
        as_float = compared([run_theirs(feed) for feed in trials.feeds])
        timing = race([theirs, ours], [trials.feeds[0]] * 2, seconds=SECONDS, bound=1.0)
    except BadModel:
        return Elsewhere(name)
    types: Counter[str] = ours.precisions()
    float_ms, quantized_ms = (1e3 * seconds for seconds in timing.seconds)
    spread = timing.spreads[1]
    return Elsewhere(
        name, True, found.sqnr, as_float.sqnr, float_ms, quantized_ms, dict(types), spread, found.is_of_faint
    )
