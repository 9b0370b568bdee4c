"""Constants of a model that have their old numbers, tensors that go nowhere, and what may be made of these."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.sources import Sources
from onnxq.checkpoints.matching.folded.views import View, views
from onnxq.checkpoints.matching.names import MOST_LAST, module_of_reader
from onnxq.checkpoints.stored import real
from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.weights import Weight, weights_of

#: SQNR in dB of what is computed from the same numbers, by type: rounding is all that differs.
EXACT = {ir.DataType.FLOAT16: 60.0, ir.DataType.BFLOAT16: 40.0}
EXACT_FLOAT = 100.0
#: What is done to parameters before they are read: norms of Gemma, scales of CLIP, decays of Mamba.
MADE: dict[str, Callable[[NDArray], NDArray]] = {
    "{}": lambda p: p,
    "1 + {}": lambda p: 1 + p,
    "1 - {}": lambda p: 1 - p,
    "exp({})": np.exp,
    "-exp({})": lambda p: -np.exp(p),
}
#: Parts of a weight that torch makes of several: v is like it, and g / |v| times something else.
_IN_PARTS = re.compile(r"(^|\.)(weight_([guv]|orig)|parametrizations\..+)$")


@dataclass
class Computed:
    """What was computed again.

    Attributes:
        sources: the tensor of the checkpoint that each constant was made of, by name.
        told: how, in words.
        misfits: sentences about constants of which nothing tells how.
    """

    sources: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)


class Work:
    """Constants that have their old numbers, and tensors that go nowhere.

    Args:
        own: the constants of floats in the file.
        given: those of them that have other numbers, and the tensors that these are.
        apart: tensors that are accounted for otherwise.
        sources: what the exporter says of constants, and what a name of the model is in the checkpoint.
        is_checked: whether numbers have to be alike where only modules tell.
    """

    def __init__(
        self,
        model: ir.Model,
        tensors: Mapping[str, Any],
        own: Mapping[str, ir.TensorProtocol],
        given: Mapping[str, str],
        apart: Collection[str],
        sources: Sources,
        is_checked: bool,
    ) -> None:
        self.tensors, self.own, self.sources, self.done = tensors, own, sources, Computed()
        self.renamed = renamed = sources.renamed
        self.is_checked = is_checked
        values = {name: value for owner in graph.graphs(model) for name, value in owner.initializers.items()}
        self.given = {name: (values[name], source) for name, source in given.items() if name in own}
        self.targets = {
            name: value
            for name, value in values.items()
            if (tensor := graph.constant(value)) is not None
            and tensor.dtype in graph.FLOATS
            and tensor.size
            and own.get(name, tensor) is tensor
            and renamed(name) not in tensors
            and value.uses()
        }
        taken = {*given.values(), *apart, *map(renamed, values)}
        spare = (name for name in tensors if name not in taken and not _IN_PARTS.search(name))
        self.spare = dict.fromkeys(name for name in spare if _is_floats(tensors[name]))
        self._inside: dict[str, list[list[str]]] = {}
        self._by_place: dict[str, list[str]] = {}
        for name in self.spare:
            words = name.split(".")
            for i in range(min(len(words), MOST_LAST)):
                self._by_place.setdefault(".".join(words[:i]), []).append(name)

    def inside(self, module: str) -> list[list[str]]:
        """Tensors of a module, those that lie less deep first."""
        if module not in self._inside:
            depths: dict[str, int] = {}
            for place in self.renamed.modules(module):
                for name in self._by_place.get(place, ()):
                    rest = name.removeprefix(f"{place}." if place else "")
                    if self.renamed(f"{module}.{rest}" if module else rest) == name:
                        depths[name] = max(depths.get(name, 0), rest.count(".") + 1)
            by_depth: dict[int, list[str]] = {}
            for name, depth in depths.items():
                by_depth.setdefault(depth, []).append(name)
            self._inside[module] = [by_depth[depth] for depth in sorted(by_depth)]
        return self._inside[module]

    def modules(self, value: ir.Value) -> set[str]:
        """Those that read a constant."""
        return {module_of_reader(use.node) for use in value.uses()}

    def read(self, source: str) -> NDArray[np.float32]:
        return real(source, self.tensors[source]).astype(np.float32)

    def give(self, name: str, source: str, made: NDArray, how: str) -> None:
        """Let a constant have other numbers.

        Raises:
            BadModel: they are too large for its type.
        """
        value = self.targets.pop(name)
        assert value.const_value is not None
        dtype = value.const_value.dtype
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(made.astype(dtype.numpy()).reshape(value.const_value.shape.numpy()))
        if not np.isfinite(numbers.astype(np.float32)).all():
            raise BadModel(f"what the checkpoint makes of '{name}' is too large for {dtype.name.lower()}")
        value.const_value = ir.tensor(numbers, name=name)
        self.done.sources[name] = source
        self.done.told.append(f"{name} = {how.format(source)}")
        self.spare.pop(source, None)


def may_lie(shape: tuple[int, ...], old: ir.TensorProtocol) -> bool:
    """Whether an array has a place in another one, as far as sizes tell."""
    sizes = sizes_of(old)
    most = sizes if len(sizes) != 2 else sizes[1:]
    return bool(sizes) and old.dtype in graph.FLOATS and all(size in shape for size in most)


def sizes_of(tensor: ir.TensorProtocol) -> list[int]:
    return [size for size in tensor.shape.numpy() if size != 1]


def ways(c: NDArray, p: NDArray) -> Iterator[tuple[str, Callable[[NDArray], NDArray], View]]:
    for how, function in MADE.items():
        with np.errstate(over="ignore"):
            made = function(p)
        if np.isfinite(made).all():
            yield from ((how, function, view) for view in views(c, made))


def products(node: ir.Node, value: ir.Value) -> list[Weight]:
    if not graph.is_op(node, "MatMul", "Gemm"):
        return []
    return [w for w in weights_of(node, least=1) if w.value is value and w.role.index == 1]


def is_product(value: ir.Value) -> bool:
    return any(products(use.node, value) for use in value.uses())


def _is_floats(found: Any) -> bool:
    return isinstance(found, np.ndarray) and found.dtype.kind in "fV" and bool(found.size)
