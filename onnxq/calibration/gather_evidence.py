"""What data say of the layers whose codes they help to choose: each layer's input is looked at while the model runs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq import algorithms, formats
from onnxq.calibration.calibrate import hash_model
from onnxq.calibration.find_ranges import Effort
from onnxq.calibration.layers.follow_codes import CannotBeCut, FollowingWalk
from onnxq.calibration.memory import in_groups
from onnxq.files import staging
from onnxq.formats import Granularity
from onnxq.job import Job
from onnxq.model.layer_inputs import LayerInput, Patches, layer_inputs
from onnxq.model.weights import Weight, find_weights
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.plan import Choice, has_rank
from onnxq.runtime.session import Session
from onnxq.samples.prefetch import prefetch
from onnxq.samples.sampling import HELD_BACK
from onnxq.samples.source import Data
from onnxq.summaries.evidence import Evidence, Index, Layer, add_index, add_input, read_index
from onnxq.summaries.gram import HELD_ROWS, Gram, finite_rows, spread_out
from onnxq.summaries.ranges import NO_RANGES, Ranges

#: Of kernels with fewer numbers, as those of depthwise convolutions, none can make up for another.
LEAST = 16


def needed(job: Job) -> dict[str, list[LayerInput]]:
    """By weight, where it is multiplied, if its codes are to be chosen by data; empty where there are no data."""
    names = {} if job.data is None else dict(_named(job))
    known = layer_inputs(job.model) if names else {}
    return {name: known[name] for name in names if name in known and _is_worth_it(known[name][0])}


def follows_codes(job: Job) -> bool:
    """Whether samples are followed through quantized layers for any of its weights."""
    return any(word in algorithms.FOLLOWING for _, word in _named(job))


def _is_worth_it(each: LayerInput) -> bool:
    return each.rows.k >= LEAST or not isinstance(each.rows, Patches)


def _named(job: Job) -> Iterator[tuple[str, str]]:
    """The weights for whose format data choose codes, and by which algorithm."""
    for weight in find_weights(job.model):
        choice = job.plan.choices.get(weight.node.name or "")
        word = "" if choice is None or choice.format is None else _algorithm(job, weight, choice)
        if word in algorithms.WITH_DATA or (word and _has_rank(job, choice)):
            yield weight.value.name or "", word


def _has_rank(job: Job, choice: Choice | None) -> bool:
    """Whether what codes leave of its weight is made up for, which data help with."""
    return choice is not None and has_rank(choice) and job.recipe.rank_for(choice.node, choice.op) > 0


def _algorithm(job: Job, weight: Weight, choice: Choice) -> str:
    block, role = choice.block, weight.role
    granularity = Granularity(role.channel) if block is None else Granularity(role.contraction, block)
    format, thorough = formats.get(choice.format or ""), job.recipe.effort == "thorough"
    chosen = algorithms.choose(weight.node.op_type, format, granularity, has_data=True, thorough=thorough)
    return job.recipe.algorithm_for(weight.node.name or "", weight.node.op_type) or chosen


def evidence_of(
    job: Job,
    inputs: Mapping[str, list[LayerInput]],
    effort: Effort,
    scratch: Path,
    file: Path | None = None,
    ranges: Ranges = NO_RANGES,
) -> Evidence:
    """The evidence for these weights, from `file` if it is there, else gathered.

    Without a file, samples are followed through layers that are quantized, where the algorithm wants that and a weight
    is read in one place. A file holds for all formats, so what it says is of float layers.

    Args:
        inputs: as `needed` gives them.
        effort: what observing may take; layers that need more memory are looked at in turns, the samples gone through
            once for each.
        scratch: a folder for what is of no use later.
        file: where it is left for the next time: K² numbers for each input of K numbers.
        ranges: of activations, where the plan quantizes them.

    Raises:
        BadModel, BadData: the model or the data fail on some sample.
        BadRecipe: the file is of another model or other data, or damaged.
        BadOutput: it cannot be written.
    """
    words = dict(_named(job))
    followed = {
        name: several[0]
        for name, several in inputs.items()
        if file is None and len(several) == 1 and words[name] in algorithms.FOLLOWING
    }
    rest = {name: several for name, several in inputs.items() if name not in followed}
    found = of_float_layers(job, rest, effort, scratch, file) if rest else {}
    if not followed:
        return found
    walk = FollowingWalk(dataclasses.replace(job, evidence=found), ranges, effort.memory, scratch)
    try:
        walk.through(followed)
    except CannotBeCut:
        (folder := scratch / "float_layers").mkdir()
        others = {name: inputs[name] for name in followed}
        return {**found, **of_float_layers(job, others, effort, folder, None)}
    return {**found, **walk.found}


def of_float_layers(
    job: Job, inputs: Mapping[str, list[LayerInput]], effort: Effort, scratch: Path, file: Path | None
) -> Evidence:
    """The evidence for these weights behind layers as they are in float; for parameters see `evidence_of`."""
    assert job.data is not None
    distinct = list(dict.fromkeys(each.seen for several in inputs.values() for each in several))
    key = {"model": hash_model(job.model), "data": _hash_of_seen(job)}
    place = scratch / "evidence.npz" if file is None else file
    if file is not None and file.exists():
        index = read_index(file, {_name(each): (each.rows.groups, each.rows.k) for each in distinct}, **key)
    else:
        index = Index(**key, inputs=[_name(each) for each in distinct])
        with contextlib.nullcontext(place) if file is None else staging.whole(file, replace=job.guard.force) as staged:
            _gather(job, distinct, effort, staged)
            add_index(staged, index)
    numbers = {name: number for number, name in enumerate(index.inputs)}
    return {name: _layer(several, numbers, place) for name, several in inputs.items()}


def _hash_of_seen(job: Job) -> str:
    """Of the data, and of how many of them are held back where those are more than usual: evidence of samples on which
    plans are compared would flatter those that fit them."""
    assert job.data is not None
    held_back = job.sampling.held_back
    usual = job.data.hash()
    return usual if held_back == HELD_BACK else hashlib.sha256(f"{usual} but {held_back}".encode()).hexdigest()


def _layer(several: Sequence[LayerInput], numbers: Mapping[str, int], file: Path) -> Layer:
    first = several[0]
    return Layer(first.channel, first.rows.groups, file, tuple(numbers[_name(each)] for each in several))


def _name(each: LayerInput) -> str:
    """What a file calls an input, however the weight lies beside it."""
    return f"{each.value} {each.rows}"


def _gather(job: Job, distinct: Sequence[LayerInput], effort: Effort, file: Path) -> None:
    assert job.data is not None
    groups = in_groups(distinct, _nbytes, effort.memory)
    samples, held_back = job.data.split(job.sampling.held_back)
    job.progress.start("looking at layers", len(groups) * (samples.count + held_back.count), "samples")
    number = 0
    for group in groups:
        for gram, rows in _watched(job, group, samples, held_back):
            add_input(file, number, gram, rows)
            number += 1


def _nbytes(each: LayerInput) -> int:
    return 4 * each.rows.groups * each.rows.k**2


def _watched(
    job: Job, group: Sequence[LayerInput], samples: Data, held_back: Data
) -> Iterator[tuple[Gram, list[NDArray]]]:
    """What is seen of these inputs in one pass over the samples: sums, and rows of those held back."""
    run = runner(job, list(dict.fromkeys(each.value for each in group)))
    grams = {each: Gram.empty(each.rows.groups, each.rows.k) for each in group}
    kept: dict[LayerInput, list[NDArray]] = {each: [] for each in group}
    for seen in run(samples):
        for each, gram in grams.items():
            if each.value in seen:
                gram.update(each.rows(seen[each.value], samples.count))
    for seen in run(held_back):
        for each, rows in kept.items():
            if each.value in seen:
                found = finite_rows(each.rows(seen[each.value], samples.count))
                rows.append(spread_out(found, -(-HELD_ROWS // held_back.count)))
    yield from ((grams[each], kept[each]) for each in group)


def runner(job: Job, names: Sequence[str]) -> Callable[[Data], Iterator[dict[str, NDArray]]]:
    """A function that runs the float model on samples and gives these values of each run that were computed."""
    tapped = job.model.clone()
    expose = ExposeValues(names)
    expose(tapped)
    outputs = {name: out for name, out in zip(names, expose.outputs, strict=True) if out is not None}
    session = Session(tapped, threads=0)

    def run(data: Data) -> Iterator[dict[str, NDArray]]:
        with contextlib.closing(prefetch(data)) as samples:
            for sample in samples if outputs else ():
                found = zip(outputs, session.run(sample, list(outputs.values())), strict=True)
                yield {name: np.asarray(x) for name, x in found if x is not None and np.size(x)}
                job.progress.advance(1)

    return run
