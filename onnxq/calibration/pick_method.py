"""`--calibration auto`: the method whose ranges do the least harm to the model's outputs, measured and not guessed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import collectors
from onnxq.progress import QUIET, Progress
from onnxq.quality import Quality, unrepeatable
from onnxq.runtime import work
from onnxq.runtime.session import Feed, Session
from onnxq.runtime.work import NodeRun
from onnxq.summaries.ranges import Ranges

#: The word, and the method that is taken unless another one's noise is clearly less: by 1 dB. What is measured is every
#: node in int8, of which tuning gives some back to float; differences below that did not last (squeezenet1_1).
AUTO, DEFAULT = "auto", "percentile"
CLEARLY = 0.8
#: Samples that the methods are measured on: all that the float model runs in so many counted seconds (`work.py`).
#: Fewer than so many decide nothing: the method that happens to suit them may clip what others need.
SECONDS, LEAST_SAMPLES = 2.0, 4
#: Times the least noise, on half of the samples, from which on a method is not measured on the other half.
HOPELESS = 2.0


def names() -> tuple[str, ...]:
    """Every word that says how ranges are found."""
    return (AUTO, *collectors.names())


def least_noise(
    model: ir.Model,
    candidates: Mapping[str, Ranges],
    rewrite: Callable[[Ranges], ir.Model],
    feeds: Iterable[Feed],
    progress: Progress = QUIET,
    traced: Callable[[Feed], Iterable[NodeRun]] | None = None,
) -> str:
    """The method of the ranges with which the quantized model's outputs are nearest to the float model's.

    `DEFAULT` where the feeds are too few to tell.

    Args:
        candidates: by method, `DEFAULT` among them.
        rewrite: carries out the plan with these ranges; every node that may become int8 does.
        feeds: samples that the ranges were not found on.
        traced: what tells every node that runs on one of them, where that may be known; None: `work.trace`.
    """
    session = Session(model, threads=0)
    feeds = iter(feeds)
    wanted = [(feed, session.run(feed)) for feed in itertools.islice(feeds, 1)]
    if not wanted:
        return DEFAULT
    feed, once = wanted[0]
    affordable = int(SECONDS / work.seconds(work.trace(model, feed) if traced is None else traced(feed)))
    if affordable >= LEAST_SAMPLES:
        wanted += [(feed, session.run(feed)) for feed in itertools.islice(feeds, affordable - 1)]
    if len(wanted) < LEAST_SAMPLES:
        return DEFAULT
    random = unrepeatable(session.outputs, once, session.run(feed))
    noise: dict[str, float] = {}
    least = math.inf
    progress.start("comparing calibration methods", len(candidates))
    for method, ranges in candidates.items():
        twin = next((other for other in noise if candidates[other].values == ranges.values), None)
        if twin is None:
            most = math.inf if method == DEFAULT else HOPELESS * least
            on_some, noise[method] = _noise(rewrite(ranges), wanted, random, most)
            least = min(least, on_some)
        else:
            noise[method] = noise[twin]
        progress.advance(1)
    best = min(noise, key=lambda method: (noise[method], method))
    return best if noise[best] < CLEARLY * noise[DEFAULT] else DEFAULT


def _noise(
    model: ir.Model, wanted: list[tuple[Feed, list[NDArray]]], random: frozenset[str], most: float
) -> tuple[float, float]:
    """On half of the samples, and on all of them: infinite, and not measured, if the half has more than `most`."""
    session, found, half = Session(model, threads=0), Quality(random), math.nan
    for number, (feed, outputs) in enumerate(wanted, 1):
        found.add(session.outputs, outputs, session.run(feed))
        if number == (len(wanted) + 1) // 2:
            half = _comparable(found.noise_ratio())
            if half > most:
                return half, math.inf
    return half, _comparable(found.noise_ratio())


def _comparable(noise: float) -> float:
    """What can be compared: no number at all is the worst."""
    return math.inf if math.isnan(noise) else noise
