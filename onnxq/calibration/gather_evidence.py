"""What data say of the layers whose codes they help to choose: each layer's input is looked at while the model runs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnxq import algorithms, formats
from onnxq.calibration.calibrate import hash_model
from onnxq.calibration.find_ranges import Effort
from onnxq.calibration.layers.follow_codes import FollowingWalk
from onnxq.calibration.layers.pass_samples import CannotBeCut
from onnxq.calibration.look_at_inputs import Looking, partial_of, remove
from onnxq.errors import NothingToDo
from onnxq.files import staging
from onnxq.formats import Granularity
from onnxq.job import Job
from onnxq.model.layer_inputs import LayerInput, Patches, layer_inputs
from onnxq.model.weights import Weight, find_weights
from onnxq.plan import Choice
from onnxq.samples.sampling import HELD_BACK
from onnxq.summaries.evidence import Evidence, Index, Layer, read_index
from onnxq.summaries.ranges import NO_RANGES, Ranges

#: Of kernels with fewer numbers, as those of depthwise convolutions, none can make up for another.
LEAST = 16


def needed(job: Job) -> dict[str, list[LayerInput]]:
    """By weight, where it is multiplied, if its codes are to be chosen by data; empty where there are no data."""
    names = dict(_named(job)) if job.knows_data else {}
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
        if word in algorithms.WITH_DATA or (word and choice is not None and choice.rank_by(job.recipe)):
            yield weight.value.name or "", word


def _algorithm(job: Job, weight: Weight, choice: Choice) -> str:
    block, role = choice.block, weight.role
    granularity = Granularity(role.channel) if block is None else Granularity(role.contraction, block)
    format, thorough = formats.get(choice.format or ""), job.recipe.effort == "thorough"
    chosen = algorithms.choose(weight.node.op_type, format, granularity, has_data=True, thorough=thorough)
    return choice.algorithm_by(job.recipe) or chosen


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
    assert job.data is not None
    job.data.require_numbers()
    return {**found, **walk.found}


def of_float_layers(
    job: Job, inputs: Mapping[str, list[LayerInput]], effort: Effort, scratch: Path, file: Path | None
) -> Evidence:
    """The evidence for these weights behind layers as they are in float; for parameters see `evidence_of`."""
    distinct = _distinct(inputs)
    place = scratch / "evidence.npz" if file is None else file
    if file is not None and file.exists():
        shapes = {_name(each): (each.rows.groups, each.rows.k) for each in distinct}
        data = None if job.data is None else _hash_of_seen(job)
        index = read_index(file, shapes, model=hash_model(job.model), data=data)
    else:
        index = gather(job, distinct, effort, place, is_kept=file is not None)
    numbers = {name: number for number, name in enumerate(index.inputs)}
    return {name: _layer(several, numbers, place) for name, several in inputs.items()}


def of_all_layers(job: Job, effort: Effort, file: Path, shard: tuple[int, int] | None = None) -> Index:
    """Leave evidence for every weight of which data can tell anything in `file`: for any format.

    Raises:
        NothingToDo: there is no such weight.
        BadModel, BadData: the model or the data fail on some sample.
        BadOutput: it cannot be written.
    """
    known = {name: several for name, several in layer_inputs(job.model).items() if _is_worth_it(several[0])}
    if not known:
        raise NothingToDo(f"'{job.path}' has no weights whose codes could be chosen by what data say of their inputs")
    return gather(job, _distinct(known), effort, file, is_kept=True, shard=shard)


def gather(
    job: Job,
    distinct: Sequence[LayerInput],
    effort: Effort,
    file: Path,
    *,
    is_kept: bool,
    shard: tuple[int, int] | None = None,
) -> Index:
    """Look at these inputs and leave what was seen in `file`; what the file is of.

    Args:
        is_kept: whether it is for more than this run, which then leaves its progress beside it and goes on from there.
        shard: (number, count): of every count-th sample only, from the number-th on.
    """
    names = [_name(each) for each in distinct]
    index = Index(hash_model(job.model), _hash_of_seen(job), names, shard=shard)
    by_name, partial = dict(zip(names, distinct, strict=True)), partial_of(file)
    if not is_kept:
        Looking(job, effort, index).at(by_name, file)
        return index
    with staging.whole(file, replace=job.guard.force) as staged:
        Looking(job, effort, index, partial).at(by_name, staged)
        job.guard.require_unread(file)
    remove(partial)
    return index


def _distinct(inputs: Mapping[str, list[LayerInput]]) -> list[LayerInput]:
    return list(dict.fromkeys(each.seen for several in inputs.values() for each in several))


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
