"""Biases of convolutions that take away what rounding weights does to the mean of each output.

Activations behind a ReLU are positive, so errors of weights that do not cancel shift a whole channel: by
E[x] · (q − w), which the bias can give back, and costs nothing. Only where data do not choose the codes, which sees to
that by itself; and not for `rtn`, whose files hold the very numbers.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction (ICCV 2019), section 4.2,
with means that samples tell in the place of those of a normalization.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import algorithms
from onnxq.calibration.look_at_inputs import runner
from onnxq.calibration.memory import in_groups
from onnxq.encoding.lazy import Encoding
from onnxq.errors import amount
from onnxq.job import WHOLE_MODEL_BYTES, Job
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.layer_inputs import ROWS, LayerInput, Patches, layer_inputs
from onnxq.model.weights import Weight, find_weights
from onnxq.passes.encodings import encodings
from onnxq.plan import Method, Plan
from onnxq.runtime import work
from onnxq.runtime.session import Feed, Session
from onnxq.samples.source import Data
from onnxq.summaries.gram import finite_rows
from onnxq.summaries.ranges import NO_RANGES, Ranges

#: Part of the noise at the outputs that has to remain at most, on samples held back, for biases to be corrected.
GAIN = 0.95
#: Counted seconds (`runtime/work.py`) that the float model may run to tell means. Where a run takes long, so many
#: samples do at least, if they have `ROWS` rows for every layer, and so many of those held back tell whether it helps,
#: if the outputs have so many numbers.
SECONDS, FEW, FEW_HELD, ENOUGH_NUMBERS = 3.0, 8, 3, 1 << 18


@dataclass
class _Errors:
    """What rounding does to the outputs of a layer.

    Attributes:
        error: [groups, K, outputs of a group], by which the weight is off.
        fitted, held_back: how many rows there were, and the sum [N] of the outputs' errors.
    """

    error: NDArray[np.float32]
    fitted: list[NDArray[np.float64]]
    held_back: list[NDArray[np.float64]]

    def add(self, to: list[NDArray[np.float64]], x: NDArray) -> None:
        """Rows [rows, groups, K]."""
        x = finite_rows(x)
        errors = np.matmul(x.transpose(1, 0, 2), self.error).transpose(1, 0, 2)
        new = np.array(len(x), np.float64), errors.sum(axis=0, dtype=np.float64).ravel()
        to[:] = [a + b for a, b in zip(to, new, strict=True)] if to else new

    def shift(self) -> NDArray[np.float32]:
        """[N]: the mean of the outputs' errors, for those that are nearer to float without it on rows held back."""
        if not self.fitted or not self.held_back or not self.fitted[0]:
            return np.zeros(self.error.shape[0] * self.error.shape[2], np.float32)
        mean = self.fitted[1] / self.fitted[0]
        count, total = self.held_back
        helps = count * mean * mean < 2 * mean * total
        return np.where(helps & np.isfinite(mean), mean, 0).astype(np.float32)


@dataclass(frozen=True)
class Corrected:
    """The job with other biases, of which it tells in notes."""

    job: Job
    notes: tuple[str, ...] = ()


def biases_corrected(job: Job, plan: Plan, ranges: Ranges, memory: int | None = None) -> Corrected:
    """The job with biases that make up for how `plan` rounds the weights in front of them.

    Without data nothing is done, nor to models that are not run whole otherwise; and nothing where the outputs of the
    whole model on samples held back are not nearer to float by it: errors of layers may have made up for each other.

    Args:
        ranges: of activations, where the plan quantizes them.
        memory: bytes for what is looked at; layers that need more are looked at in turns. None: 512 MiB.

    Raises:
        BadModel, BadData: the model or the data fail on some sample.
    """
    is_run = job.data is not None and (ranges is not NO_RANGES or job.nbytes <= WHOLE_MODEL_BYTES)
    layers = dict(_layers(job, plan, ranges)) if is_run else {}
    shifts: dict[str, NDArray[np.float32]] = {}
    for group in in_groups(list(layers), lambda name: 4 * layers[name][0].tensor.size, memory):
        for name, errors in _seen(job, {name: layers[name] for name in group}).items():
            shift = errors.shift()
            if shift.any():
                shifts[layers[name][0].node.name or ""] = shift
    if not shifts:
        return Corrected(job)
    made = dataclasses.replace(job, model=_with_biases(job.model, shifts))
    before, after = _noises(job, [each.rewritten(plan, ranges) for each in (job, made)])
    if not after <= GAIN * before:
        return Corrected(job)
    note = f"biases of {amount(len(shifts), 'convolution')} make up for how their weights are rounded"
    return Corrected(made, (note,))


def _noises(job: Job, models: Sequence[ir.Model]) -> list[float]:
    """How far the outputs of each model are from those in float on samples held back, of which `FEW_HELD` are enough if
    the outputs are large: the sum of noise to signal."""
    assert job.data is not None
    names = [value.name or "" for value in job.model.graph.outputs]
    in_float, *sessions = (Session(model, threads=0) for model in (job.model, *models))
    powers: list[dict[str, NDArray[np.float64]]] = [{} for _ in sessions]
    least = math.inf
    for number, sample in enumerate(job.data.split(job.sampling.held_back)[1]):
        if number >= FEW_HELD and number * least >= ENOUGH_NUMBERS:
            break
        outputs = [np.asarray(x) for x in in_float.run(sample, names)]
        least = min([least, *(x.size for x in outputs if x.dtype.kind == "f")])
        for session, sums in zip(sessions, powers, strict=True):
            for name, wanted, found in zip(names, outputs, session.run(sample, names), strict=True):
                if wanted.dtype.kind == "f" and wanted.shape == np.shape(found):
                    exact = wanted.astype(np.float64)
                    new = np.array([np.square(found - exact).sum(), np.square(exact).sum()])
                    sums[name] = sums.get(name, 0) + new
    return [float(sum(noise / power if power else noise for noise, power in sums.values())) for sums in powers]


def _layers(job: Job, plan: Plan, ranges: Ranges) -> Iterator[tuple[str, tuple[Weight, LayerInput, Encoding]]]:
    """By weight, the convolutions whose codes the weights alone choose, and how those are made.

    Only of float activations: where these are rounded too they err more, and nothing was gained (docs/algorithms.md).
    """
    known = {name: several[0] for name, several in layer_inputs(job.model).items() if len(several) == 1}
    found = [
        weight
        for weight in find_weights(job.model)
        if weight.node.op_type == "Conv"
        and plan.method(weight.node.name) is Method.STORED
        and isinstance(getattr(known.get(weight.value.name or ""), "rows", None), Patches)
        and plan.choices[weight.node.name or ""].algorithm_by(job.recipe) != algorithms.PLAIN
        and (len(weight.node.inputs) < 3 or weight.node.inputs[2] is None or graph.constant(weight.node.inputs[2]))
    ]
    if not found:
        return
    known_as = encodings(job.rewritten(plan, ranges), {weight.value.name or "" for weight in found})
    for weight in found:
        name = weight.value.name or ""
        several = known_as.get(name, [])
        if len(several) == 1 and several[0].layer is None and several[0].format.scale_type is not None:
            yield name, (weight, known[name], several[0])


def _seen(job: Job, layers: Mapping[str, tuple[Weight, LayerInput, Encoding]]) -> dict[str, _Errors]:
    assert job.data is not None
    samples, held_back = job.data.split(job.sampling.held_back)
    job.progress.start("looking at biases", samples.count + held_back.count, "samples")
    run = runner(job, list(dict.fromkeys(seen.value for _, seen, _ in layers.values())))
    found = {name: _Errors(_error(*layer), [], []) for name, layer in layers.items()}

    def add(data: Data, kind: Literal["fitted", "held_back"], like: int) -> None:
        for values in run(data):
            for name, (_, seen, _) in layers.items():
                if seen.value in values:
                    found[name].add(getattr(found[name], kind), seen.rows(values[seen.value], like))

    sample = next(iter(samples))
    first = next(run([sample]), {})
    affordable = int(SECONDS / work.seconds(job.trace(sample)))
    readers = [each for _, each, _ in layers.values()]
    add(fewer := _fewer(samples, readers, first, max(FEW, affordable)), "fitted", fewer.count)
    add(fewer := _fewer(held_back, readers, first, max(FEW_HELD, affordable // 3)), "held_back", fewer.count)
    return found


def _fewer(samples: Data, readers: Sequence[LayerInput], first: Feed, few: int) -> Data:
    """Samples evenly spread over these, `few` at least and as many as all layers have `ROWS` rows in.

    Args:
        first: what they read in one run.
    """
    rows = min(len(each.rows(first[each.value], few)) if each.value in first else 1 for each in readers)
    return samples.shard(1, max(1, samples.count // max(few, -(-ROWS // max(1, rows)))))


def _error(weight: Weight, seen: LayerInput, encoding: Encoding) -> NDArray[np.float32]:
    """[groups, K, outputs of a group]: by how much the codes are off."""
    w = np.asarray(encoding.tensor.numpy(), np.float32)
    off = (encoding.result().dequantize() - w).reshape(seen.rows.groups, -1, seen.rows.k)
    return np.ascontiguousarray(off.transpose(0, 2, 1))


def _with_biases(model: ir.Model, shifts: Mapping[str, NDArray[np.float32]]) -> ir.Model:
    """A copy of `model` in which the outputs of these nodes are so much less."""
    made = model.clone()
    names = Names(made)
    for node in list(graph.nodes(made)):
        shift = shifts.get(node.name or "")
        if shift is None:
            continue
        old = node.inputs[2] if len(node.inputs) > 2 else None
        tensor, kind = graph.constant(old), graph.constant(node.inputs[1])
        assert kind is not None and isinstance(node.graph, ir.Graph)
        before = np.zeros(len(shift), np.float32) if tensor is None else tensor.numpy().astype(np.float32)
        array = (before - shift).astype(kind.dtype.numpy())
        value = graph.add_constant(node.graph, names.fresh(f"{node.name}_corrected_bias"), ir.tensor(array))
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, value)
    return made
