"""Step 4: watch the activations the plan needs while the float model runs on samples, one sample at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import collectors, encoding
from onnxq.collectors import Collector
from onnxq.data import Data
from onnxq.passes.expose_values import ExposeValues
from onnxq.ranges import Range, Ranges
from onnxq.runtime import THREADS, Feed, Session

#: Activations are observed in groups, each group in a pass of its own over the data, so that one sample's observed
#: activations need no more memory than this.
GROUP_BYTES = 1 << 29

#: Constants of more bytes count in a model's hash by about so many numbers.
SAMPLED_BYTES, SAMPLE = 1 << 16, 1 << 10

Progress = Callable[[int], None]


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
    make = collectors.get(method)
    found: dict[str, Collector] = {name: make() for name in names}
    problems: dict[str, str] = {}
    # Of values in bodies, which come out in another form (expose_values.py), the rank is not seen.
    outside = {value.name for node in model.graph for value in node.outputs} | {i.name for i in model.graph.inputs}
    ranks: dict[str, set[int]] = {name: set() for name in names if name in outside}
    for group in _groups(model, names, data, threads):
        for name, x in _observe(model, group, data, problems, threads, progress):
            found[name].update(x)
            if name in ranks:
                ranks[name].add(x.ndim)
    values: dict[str, Range] = {}
    for name, collector in found.items():
        seen = collector.range()
        if seen is None:
            problems.setdefault(name, "never computed, or not finite, on the calibration data")
        else:
            values[name] = seen
    same = {name: next(iter(seen)) for name, seen in ranks.items() if len(seen) == 1}
    return Ranges(hash_model(model), data.hash(), method, values, same, problems)


def hash_model(model: ir.Model) -> str:
    """A hash of the graph and of its constants; of large weights a sample counts, and none of those made when read."""
    digest = hashlib.blake2b(digest_size=16)
    for each in (model.graph, *model.graph.subgraphs()):
        for value in each.initializers.values():
            tensor = value.const_value
            digest.update(f"{value.name} {value.dtype} {value.shape}".encode())
            if tensor is not None and (tensor.nbytes <= SAMPLED_BYTES or not isinstance(tensor, ir.LazyTensor)):
                digest.update(_sample(tensor))
    for node in model.graph.all_nodes():
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
    encoding.release(tensor)
    return found


def _observe(
    model: ir.Model,
    names: Sequence[str],
    data: Data,
    problems: dict[str, str],
    threads: int,
    progress: Progress,
) -> Iterator[tuple[str, NDArray]]:
    """Each value's name and its array on each sample, as they are computed."""
    tapped = model.clone()
    expose = ExposeValues(names)
    expose(tapped)
    taps = {name: output for name, output in zip(names, expose.outputs, strict=True) if output is not None}
    problems |= {name: "inside a body that cannot be observed" for name in names if name not in taps}
    session = Session(tapped, threads=threads)
    for sample in data:
        for name, x in zip(taps, session.run(sample, list(taps.values())), strict=True):
            if x is not None and x.size:
                yield name, x
        progress(1)


def _groups(model: ir.Model, names: Sequence[str], data: Data, threads: int) -> Iterable[list[str]]:
    """`names` in groups whose arrays, on the first sample, take at most `GROUP_BYTES` together."""
    sizes = element_counts(model, names, next(iter(data)), threads)
    group: list[str] = []
    total = 0
    for name in names:
        if group and total + 4 * sizes[name] > GROUP_BYTES:
            yield group
            group, total = [], 0
        group.append(name)
        total += 4 * sizes[name]
    if group:
        yield group


def element_counts(model: ir.Model, names: Sequence[str], sample: Feed, threads: int = THREADS) -> dict[str, int]:
    """Elements of each value on one sample, found without keeping the values: only their sizes are made outputs.

    Values inside bodies, which may not be computed at all, count as 0.
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
    counts = Session(measured, threads=threads).run(sample) if sized else []
    return dict.fromkeys(names, 0) | {name: int(np.asarray(n)) for name, n in zip(sized, counts, strict=True)}
