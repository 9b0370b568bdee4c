"""The error that each option makes in its layer's outputs, in closed form: what the model need not be run for.

Codes are those that the weight alone gives: choosing them by data costs many times more, and it is the proportion
between options that is asked for, which is much the same.

With G the Gram matrix of a layer's input and D what encoding changes in its weight, the error of the outputs, summed
over all rows, is the trace of Dᵀ · G · D. Without evidence inputs count as alike and independent: the sum of D².
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq import algorithms
from onnxq.algorithms import low_rank
from onnxq.encoding.lazy import EncodedTensor, Encoding
from onnxq.job import Job
from onnxq.model import graph
from onnxq.model.weights import weights_of
from onnxq.plan import Plan
from onnxq.searching.options import Option, Unit, origin
from onnxq.summaries.evidence import Layer
from onnxq.summaries.ranges import Ranges


class LayerErrors:
    """Errors of options, each worked out when it is first asked for.

    Args:
        plans: in which the options were found.
    """

    def __init__(self, job: Job, plans: Sequence[Plan], units: Sequence[Unit], ranges: Ranges) -> None:
        self._job, self._plans, self._units, self._ranges = job, plans, units, ranges
        self._found: dict[tuple[int, int], float] = {}
        self._encodings: dict[int, dict[str, Encoding]] = {}
        self._nodes = {node.name or "": node for node in graph.nodes(job.model)}

    def __call__(self, unit: int, option: int) -> float:
        """The error of a unit in one of its options."""
        if (unit, option) not in self._found:
            self._found[unit, option] = self._error(self._units[unit].options[option])
        return self._found[unit, option]

    def _error(self, option: Option) -> float:
        encodings, total = self._of_plan(option.plan), 0.0
        names = {
            origin(weight.value): weight.value.name or ""
            for choice in option.choices
            for weight in weights_of(self._nodes[choice.node])
        }
        for name, own in names.items():
            if name in encodings:
                first = option.choices[0]
                total += error_of(
                    encodings[name], self._job.evidence.get(own), first.op, first.rank_by(self._job.recipe)
                )
        return total

    def _of_plan(self, number: int) -> dict[str, Encoding]:
        """How a plan encodes each weight."""
        if number not in self._encodings:
            found: dict[str, Encoding] = {}
            for each in self._job.rewritten(self._plans[number], self._ranges).graphs():
                for value in each.initializers.values():
                    if isinstance(value.const_value, EncodedTensor):
                        found.setdefault(origin(value), value.const_value.encoding)
            self._encodings[number] = found
        return self._encodings[number]


def error_of(encoding: Encoding, layer: Layer | None, op_type: str, rank: int = 0) -> float:
    """What `encoding`, of a weight that an operator `op_type` reads, changes in the outputs of its layer, if there is
    evidence of its input; else in the weight.

    Args:
        rank: of what is added beside it to make up for that.
    """
    w = np.asarray(encoding.tensor.numpy(), np.float32)
    alone = encoding
    if encoding.layer is not None:
        word = algorithms.choose(op_type, encoding.format, encoding.granularity)
        alone = dataclasses.replace(encoding, algorithm=word, layer=None)
    change = alone.result().dequantize().astype(np.float32).reshape(w.shape) - w
    found = encoding.layer or layer
    if found is None:
        if rank and w.ndim > 1:
            change = _reduced(change.reshape(len(change), -1).T, rank, None)
        return float(np.vdot(change, change))
    sums = _sums(found)
    k, groups = sums.shape[-1], sums.shape[0]
    if encoding.layer is None and encoding.is_turned:
        change, found = change.reshape(-1, k), found.turned(0)
    rows = np.moveaxis(change, found.channel, 0).reshape(groups, -1, k) if change.size % (groups * k) == 0 else None
    if rows is None:
        return float(np.vdot(change, change) * np.trace(sums, axis1=1, axis2=2).mean() / k)
    if rank and groups == 1:
        rows = _reduced(rows[0].T, rank, sums[0]).T[None]
    return float(sum(np.vdot(part @ gram, part) for part, gram in zip(rows, sums, strict=True)))


def _reduced(change: NDArray[np.float32], rank: int, gram: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """What a rank leaves of a `change` [K, N] of a weight."""
    made = low_rank.lqer.factors(change, rank) if gram is None else low_rank.qera.factors(change, rank, gram)
    return np.asarray(change - made.a @ made.b)


@functools.lru_cache(8)
def _sums(layer: Layer) -> NDArray[np.float32]:
    return layer.gram().sums
