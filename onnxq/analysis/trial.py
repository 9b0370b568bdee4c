"""What one quantized weight does to the outputs, by running the model with it.

The weights under test are turned into inputs of the model, so that one session serves for all of them: nothing is
serialized, loaded or optimized again, and formats that no operator can unpack yet are measured like all others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.analysis.tensor import quantized
from onnxq.formats import Format, Granularity
from onnxq.model import graph
from onnxq.model.weights import Weight, find_weights
from onnxq.quality import Quality, compare_outputs, unrepeatable
from onnxq.quality.blank import comparison_notes
from onnxq.runtime import work
from onnxq.runtime.session import Feed, Session
from onnxq.samples.source import Data
from onnxq.tuning import plan_bench


class Trial:
    """A model whose weights can be exchanged between runs.

    Args:
        model: prepared; not changed.
        weights: those of `find_weights(model)`.
        data: samples, of which as many are used as the float model runs in `plan_bench.QUALITY_SECONDS`, counted.

    Raises:
        BadModel: the model does not run.
    """

    def __init__(self, model: ir.Model, weights: Sequence[Weight], data: Data) -> None:
        copy = model.clone()
        self._weights = list(weights)
        self._inputs: dict[tuple[str, int], str] = {}
        self._watched: dict[str, str] = {}
        self._drawn: dict[str, frozenset[str]] = {}  # by outputs of layers, those of them that are random
        outputs = tuple(value.name or "" for value in copy.graph.outputs)
        names = graph.Names(copy)
        main = {id(node) for node in copy.graph}
        for weight in list(find_weights(copy)):
            self._inputs[_key(weight)] = _to_input(copy, weight, names)
            output = weight.node.outputs[0]
            if id(weight.node) in main and output.name:
                self._watched[weight.node.name or ""] = output.name
                if not output.is_graph_output():
                    copy.graph.outputs.append(output)
        _drop_unused(copy)
        copy.ir_version = max(copy.ir_version, 4)
        # Tensors that are computed when read are so once; those on disk stay mapped.
        self._originals = {self._inputs[_key(weight)]: weight.tensor.numpy() for weight in self._weights}
        self._session = Session(copy, threads=0)
        self.outputs = outputs
        self._feeds: list[Feed] = []
        self._wanted: list[list[NDArray]] = []
        self._layer: tuple[str, list[NDArray]] = ("", [])
        note = self._take_samples(model, data)
        self._random = unrepeatable(outputs, *(self._run(self._feeds[0], {}, outputs) for _ in range(2)))
        in_float = compare_outputs(outputs, self._wanted, self._wanted, self._random)
        self.note = "; ".join([*([note] if note else []), *comparison_notes(in_float, self._feeds)])

    @property
    def samples(self) -> int:
        """How many samples are run."""
        return len(self._feeds)

    def run(
        self, weight: Weight, format: Format, granularity: Granularity, algorithm: str
    ) -> tuple[float | None, float | None]:
        """(SQNR at the output of the node, at the model's worst output), in dB, with only this weight quantized.

        None where there is nothing to measure: the node is in a subgraph, or nothing that comes out is a float.
        """
        changed = {self._inputs[_key(weight)]: quantized(weight.tensor, format, granularity, algorithm)}
        watched = self._watched.get(weight.node.name or "", "")
        fetched = (*self.outputs, *([watched] if watched else []))
        in_float = self._layer_outputs(watched) if watched else []
        layer, whole = Quality(ignored=self._random_of(watched, in_float)), Quality(ignored=self._random)
        for i, (feed, wanted) in enumerate(zip(self._feeds, self._wanted, strict=True)):
            got = self._run(feed, changed, fetched)
            whole.add(self.outputs, wanted, got[: len(self.outputs)])
            if watched:
                layer.add([watched], [in_float[i]], got[-1:])
        return (layer.sqnr if layer.outputs else None), (whole.sqnr if whole.outputs else None)

    def _random_of(self, watched: str, in_float: Sequence[NDArray]) -> frozenset[str]:
        """The output of a layer, if another run on the same sample gives another."""
        if watched and watched not in self._drawn:
            again = self._run(self._feeds[0], {}, (watched,))
            self._drawn[watched] = unrepeatable((watched,), in_float[:1], again)
        return self._drawn.get(watched, frozenset())

    def run_all(self, changed: Mapping[int, NDArray]) -> tuple[Quality, float]:
        """(quality of the outputs, share of equal decisions) with several weights quantized, by index in `weights`."""
        by_name = {self._inputs[_key(self._weights[i])]: w for i, w in changed.items()}
        quality, same = Quality(ignored=self._random), Decisions()
        for feed, wanted in zip(self._feeds, self._wanted, strict=True):
            got = self._run(feed, by_name, self.outputs)
            quality.add(self.outputs, wanted, got)
            for name, a, b in zip(self.outputs, wanted, got, strict=True):
                if name not in self._random:
                    same.add(a, b)
        return quality, same.share

    def _take_samples(self, model: ir.Model, data: Data) -> str:
        """What a user should know of which samples are run."""
        samples = iter(data)
        first = next(samples, None)
        if first is None:
            return data.note
        most = max(plan_bench.LEAST_FEEDS, int(plan_bench.QUALITY_SECONDS / work.seconds(work.trace(model, first))))
        if data.spread is not None:
            data = data.limited(most, why="more would take long")
            samples = iter(data)
        else:  # a function's samples may not come twice
            samples = itertools.islice(itertools.chain([first], samples), most)
        for feed in samples:
            self._feeds.append(feed)
            self._wanted.append(self._run(feed, {}, self.outputs))
        return data.note

    def _layer_outputs(self, name: str) -> list[NDArray]:
        """One value of the float model for each sample; of the last layer asked for it is remembered."""
        if self._layer[0] != name:
            self._layer = ("", [])
            self._layer = (name, [self._run(feed, {}, [name])[0] for feed in self._feeds])
        return self._layer[1]

    def _run(self, feed: Feed, changed: Mapping[str, NDArray], outputs: Sequence[str]) -> list[NDArray]:
        return self._session.run({**feed, **self._originals, **changed}, outputs)


class Decisions:
    """How often two outputs agree on which class is the largest.

    Classes lie along the last axis, or along axis 1 of images ([N, C, H, W]).
    """

    def __init__(self) -> None:
        self._same = self._count = 0

    def add(self, wanted: NDArray, got: NDArray) -> None:
        """Take in one output; those without at least two classes decide nothing."""
        a, b = np.asarray(wanted), np.asarray(got)
        axis = 1 if a.ndim > 3 else a.ndim - 1
        if a.dtype.kind != "f" or a.ndim < 2 or a.shape[axis] < 2 or not a.size:
            return
        self._count += a.size // a.shape[axis]
        if a.shape == b.shape:
            self._same += int(np.count_nonzero(a.argmax(axis) == b.argmax(axis)))

    @property
    def share(self) -> float:
        """0…1; NaN where there was nothing to decide."""
        return self._same / self._count if self._count else float("nan")


def _key(weight: Weight) -> tuple[str, int]:
    return weight.node.name or "", weight.role.index


def _to_input(model: ir.Model, weight: Weight, names: graph.Names) -> str:
    """Let the node read its weight from a new input of the model, visible in all subgraphs too; the input's name."""
    name = names.fresh("onnxq_weight")
    shape = ir.Shape(weight.shape)
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(weight.tensor.dtype))
    model.graph.inputs.append(value)
    weight.node.replace_input_with(weight.role.index, value)
    return name


def _drop_unused(model: ir.Model) -> None:
    """Take out the weights that nobody reads any more: the session would copy them."""
    for each in graph.graphs(model):
        for name, value in list(each.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del each.initializers[name]
