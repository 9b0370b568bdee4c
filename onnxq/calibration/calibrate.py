"""Step 4: watch the activations the plan needs while the float model runs on samples, one sample at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq import collectors
from onnxq.calibration.memory import in_groups, whole_session
from onnxq.calibration.observations import Observations
from onnxq.calibration.observers import HIDDEN, Observer, open_observer
from onnxq.calibration.resume import EVERY, Checkpoint, Every, State, pending
from onnxq.encoding import lazy
from onnxq.model import graph
from onnxq.runtime.session import THREADS, Feed
from onnxq.samples.prefetch import prefetch
from onnxq.samples.source import Data
from onnxq.summaries import native
from onnxq.summaries.histogram import Histogram
from onnxq.summaries.ranges import Ranges
from onnxq.summaries.summary import MOMENTUM, Extremes, Summary

#: Constants of more bytes count in a model's hash by about so many numbers.
SAMPLED_BYTES, SAMPLE = 1 << 16, 1 << 10

#: What one summary takes, twice: in the library and where it is read to.
SUMMARY_BYTES = 1 << 16

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Keep:
    """What is kept of an activation besides its extremes and sums.

    Attributes:
        histograms: without, methods that need none are served, in less time.
        channels: by name, the axis of the channels whose extremes are kept.
        momentum: weight of a new sample in the moving averages of the extremes.
        trails: whether each sample's own extremes are kept, of which averages over several shards are made.
    """

    histograms: bool = True
    channels: Mapping[str, int] = field(default_factory=dict)
    momentum: float = MOMENTUM
    trails: bool = False

    def empty(self, name: str) -> Summary:
        histogram = Histogram() if self.histograms else None
        trail: list[Extremes] | None = [] if self.trails else None
        return Summary(momentum=self.momentum, histogram=histogram, axis=self.channels.get(name), trail=trail)


def keep_for(method: str) -> Keep:
    """What a file name of `collectors/`, with or without parameters, needs."""
    found = collectors.get(method)
    return Keep(found.needs_histogram, momentum=found.momentum or MOMENTUM)


@dataclass(frozen=True)
class Means:
    """What observing may take.

    Attributes:
        threads: of one operator; 0 leaves it to onnxruntime.
        memory: bytes that may be spent, besides running the model. Names that need more are observed in groups, each
            in a pass of its own over the data. None: 512 MiB.
        checkpoint: a file in which progress is left, from which an interrupted call of the same kind goes on. It stays
            until the caller has saved what follows from it: `checkpoint.remove`.
        every: how often that is.
    """

    threads: int = THREADS
    memory: int | None = None
    checkpoint: Path | None = None
    every: Every = EVERY


def calibrate(
    model: ir.Model,
    names: Sequence[str],
    data: Data,
    method: str,
    *,
    threads: int = THREADS,
    progress: Progress = lambda samples: None,
) -> Ranges:
    """The range of each activation in `names`, over all samples of `data`.

    Args:
        model: prepared, in float; not changed.
        method: a file name of `collectors/`.
        progress: called with 1 after each run of the model.

    Values that are never computed, or hold no finite number, get no range and a line in `problems`.
    """
    return observe(model, names, data, keep_for(method), means=Means(threads), progress=progress).ranges(method)


def observe(
    model: ir.Model,
    names: Sequence[str],
    data: Data,
    keep: Keep = Keep(),
    *,
    means: Means = Means(),
    shard: tuple[int, int] | None = None,
    start: Progress = lambda runs: None,
    progress: Progress = lambda runs: None,
) -> Observations:
    """A summary of each activation in `names`, over all samples of `data`.

    Args:
        shard: (number, count): take only every count-th sample, from the number-th on.
        start, progress: called with the runs of the model that there will be, and with 1 after each.

    Raises:
        BadModel, BadData: the model or the data fail on some sample.
        BadOutput: the checkpoint cannot be written.
    """
    samples = data if shard is None else data.shard(*shard)
    keep = replace(keep, trails=shard is not None)
    identity = {"model": hash_model(model), "data": data.hash()}
    kind = {"names": list(names), "shard": shard, **dataclasses.asdict(keep)}
    saved = Checkpoint(means.checkpoint, {**identity, **kind}, means.every)
    state = saved.load()
    groups = _groups(model, pending(names, state), samples, means)
    if state.current:
        groups.insert(0, list(state.current))
    # A finished group has not been looked at again: what it took counts as done, as far as anybody can tell.
    start((len(groups) + bool(state.finished)) * samples.count)
    progress(bool(state.finished) * samples.count + state.done)
    for group in groups:
        first = state.current or {name: keep.empty(name) for name in group}
        observer = open_observer(model, first, means.threads, names)
        state = replace(state, problems=state.problems | dict.fromkeys(observer.hidden, HIDDEN))
        _watch(observer, samples, state, saved, progress)
        data.require_numbers()
        state = State(state.finished | observer.read(), problems=state.problems)
        saved.save(state)
    found = {name: state.finished[name] for name in names}
    # Of values in subgraphs, which one of the observers sees in another form (expose_values.py), the rank is not told.
    outside = {value.name for node in model.graph for value in node.outputs} | {i.name for i in model.graph.inputs}
    unranked = frozenset(names) - outside
    seen = Observations(
        **identity, samples=samples.count, summaries=found, shard=shard, unranked=unranked, problems=state.problems
    )
    return seen.settled() if shard is None else seen


def _watch(observer: Observer, samples: Data, state: State, saved: Checkpoint, progress: Progress) -> None:
    """One pass over the samples that `state` has not seen, of which it is the beginning."""
    seen = state.done
    with contextlib.closing(prefetch(samples.after(seen))) as rest:
        for sample in rest:
            observer.run(sample)
            seen += 1
            progress(1)
            if saved.is_due():
                saved.save(replace(state, current=observer.read(), done=seen))


def _groups(model: ir.Model, names: Sequence[str], data: Data, means: Means) -> list[list[str]]:
    """`names` in groups that take at most the memory given each, or are of one name."""
    if not names:
        return []
    sizes = dict.fromkeys(names, SUMMARY_BYTES)
    if not native.available():
        counts = element_counts(model, names, next(iter(data)), means.threads)
        sizes = {name: SUMMARY_BYTES + 4 * counts[name] for name in names}
    return in_groups(names, sizes.__getitem__, means.memory)


def hash_model(model: ir.Model) -> str:
    """A hash of the graph and of its constants; of large weights a sample counts, and none of those made when read.

    In which order a graph names its constants does not count: it may change with the opset, which targets raise.
    """
    digest = hashlib.blake2b(digest_size=16)
    for each in graph.graphs(model):
        for _, value in sorted(each.initializers.items()):
            tensor = value.const_value
            digest.update(f"{value.name} {value.dtype} {value.shape}".encode())
            if tensor is not None and (tensor.nbytes <= SAMPLED_BYTES or not isinstance(tensor, ir.LazyTensor)):
                digest.update(_sample(tensor))
    for node in graph.nodes(model):
        inputs = " ".join(value.name or "" if value is not None else "-" for value in node.inputs)
        digest.update(f"{node.domain}:{node.op_type} {node.name} {inputs} ".encode())
        for key, attribute in sorted(node.attributes.items()):
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR):
                digest.update(f"{key}={attribute.value} ".encode())
    return digest.hexdigest()


def _sample(tensor: ir.TensorProtocol) -> bytes:
    """The tensor's bytes, or every n-th number of it if there are many."""
    if tensor.dtype.is_string():
        return str(tensor.numpy().tolist()).encode()
    if tensor.nbytes <= SAMPLED_BYTES:
        return tensor.tobytes()
    found = tensor.numpy().reshape(-1)[:: max(1, tensor.size // SAMPLE)].tobytes()
    lazy.release(tensor)
    return found


def element_counts(model: ir.Model, names: Sequence[str], sample: Feed, threads: int = THREADS) -> dict[str, int]:
    """Elements of each value on one sample, found without keeping the values: only their sizes are made outputs.

    Values in subgraphs, which may not be computed at all, count as 0.
    """
    measured = model.clone()
    known = {output.name: output for node in measured.graph for output in node.outputs}
    sized = [name for name in names if name in known]
    del measured.graph.outputs[:]
    for i, name in enumerate(sized):
        node = ir.node("Size", [known[name]], name=f"onnxq_size_{i}")
        node.outputs[0].name = f"onnxq_size_{i}"
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        measured.graph.append(node)
        measured.graph.outputs.append(node.outputs[0])
    counts = whole_session(measured, threads).run(sample) if sized else []
    given = {name: sample[name].size for name in names if name in sample}
    return dict.fromkeys(names, 0) | given | {name: int(np.asarray(n)) for name, n in zip(sized, counts, strict=True)}
