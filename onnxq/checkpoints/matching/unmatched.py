"""What of a checkpoint and of a model is left: floats that went nowhere, and parameters that were given nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.matching.names import module_of_reader
from onnxq.checkpoints.matching.parameters import WORDS, Kind, is_literal, is_of_older_exporter, is_of_places, kind_of
from onnxq.model import graph
from onnxq.model.origin import ORIGIN, module_of

#: What numbers of the model and of the checkpoint have in common if they are the same but for rounding, in dB.
SAME = 40.0
#: What is said of matrices that a module multiplies by itself, and of those of attention that it was not made of.
UNNAMED = " (torch's older exporter leaves them no names: export it with dynamo=True)"


def constants(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The constants of floats."""
    return {
        name: tensor
        for owner in graph.graphs(model)
        for name, value in owner.initializers.items()
        if (tensor := graph.constant(value)) is not None and tensor.dtype in graph.FLOATS
    }


def kernels(model: ir.Model) -> list[str]:
    """Parameters of convolutions and BatchNorms, and what is added to these or multiplied with them, which names alone
    tell: preparing a model makes one of both."""
    found: list[str] = []
    for node in graph.nodes(model):
        if graph.is_op(node, "Add", "Sub", "Mul", "Div"):
            read = (value for value in node.inputs if value is not None and graph.constant(value) is not None)
            found += [value.name or "" for value in read if _is_parameter(value)]
        if graph.is_op(node, "Conv", "ConvTranspose", "BatchNormalization"):
            read = (value for value in node.inputs[1:] if value is not None and graph.constant(value) is not None)
            found += [value.name or "" for value in read if kind_of(value) is Kind.PARAMETER]
    return found


def _is_parameter(value: ir.Value) -> bool:
    tensor = graph.constant(value)
    return tensor is not None and tensor.dtype in graph.FLOATS and tensor.size > 1 and kind_of(value) is not Kind.FIXED


@dataclass(frozen=True)
class Left:
    """What is left of both.

    Attributes:
        lost: floats of the checkpoint of the shape of something in the model that was given nothing.
        kept: products by node, and constants, of the model that these may belong to.
        bare: other parameters of the model that were given nothing.
        old: other constants that have the numbers which they had in the file, and the checkpoint not these, by what
            they are called there; but for single numbers that no exporter computed, and for what stands in the program.
        same: tensors whose numbers the model has.
        advice: what helps if torch's older exporter left one of `kept` no name; else "".
        places: constants of sines and cosines that are added, which stay as they are.
    """

    lost: list[str]
    kept: list[str]
    bare: list[str]
    old: frozenset[str]
    same: frozenset[str]
    advice: str
    places: list[str]


class Unmatched:
    """The constants of a prepared model that have the numbers which they had in the file.

    Args:
        before: its constants in the file.
        now: those that it had when it was prepared.
        kernels: those of its convolutions and BatchNorms in the file.
    """

    def __init__(
        self,
        model: ir.Model,
        before: Mapping[str, ir.TensorProtocol],
        now: Mapping[str, ir.TensorProtocol],
        kernels: Collection[str],
    ) -> None:
        kept = {name for name, tensor in before.items() if now.get(name) is tensor}
        values = [value for owner in graph.graphs(model) for value in owner.initializers.values()]
        self.values = [value for value in values if {value.name, value.meta.get(ORIGIN)} & kept]
        there = {name for value in self.values for name in (value.name, value.meta.get(ORIGIN))}
        self._folded = [name for name in kernels if name in kept and name not in there]

    def beside(self, tensors: Checkpoint, unused: Collection[str], *, is_foreign: bool) -> Left:
        """What is left when `unused` went nowhere.

        Args:
            is_foreign: whether it is llama.cpp's, whose tensors may be of another shape than the model's.
        """
        kinds = {value: kind_of(value) for value in self.values if value.uses()}
        by_sizes: dict[tuple[int, ...], list[ir.Value]] = {}
        for value in kinds:
            if (tensor := graph.constant(value)) is not None:
                shape = [size for size in tensor.shape.numpy() if size != 1]
                is_repeated = _is_blank(value) and not is_literal(value.name or "")  # along its first axes, maybe
                for i in range(max(len(shape), 1) if is_repeated else 1):
                    by_sizes.setdefault(_sizes(shape[i:]), []).append(value)
        lost, known, left, there = set[str](), set[str](), dict[ir.Value, None](), set[ir.Value]()
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name in unused:
            found = tensors[name]
            if isinstance(found, np.ndarray) and found.dtype.kind in "fV" and found.size:
                by_shape.setdefault(_sizes(found.shape), []).append(name)
        for sizes, names in by_shape.items():
            fitting = by_sizes.get(sizes, [])
            if not sizes:  # any other single number may be one that stands in the program
                fitting = [value for value in fitting if not is_literal(value.name or "")]
            numbers = _Numbers(fitting if len(sizes) < 2 else [])
            same = {name: numbers.same(name, tensors) for name in names}
            there.update(*same.values())
            known.update(name for name in names if same[name])
            fitting = [value for value in fitting if kinds[value] is not Kind.FIXED or _is_blank(value)]
            gone = [name for name in names if fitting and not same[name] and not is_foreign]
            if gone:
                lost.update(gone)
                left |= dict.fromkeys(fitting)
        judged = {value for value, kind in kinds.items() if kind is not Kind.FIXED}
        bare = [value for value in kinds if value in judged and value not in there and value not in left]
        words = [*map(_module, bare), *self._folded]
        old = (value for value in kinds if value not in judged | there | {*left} and _is_array(value))
        return Left(
            [name for name in unused if name in lost],
            list(dict.fromkeys(map(_called, left))),
            list(dict.fromkeys(words)),
            frozenset(str(name) for value in old for name in (value.name, value.meta.get(ORIGIN)) if name),
            frozenset(known),
            UNNAMED * any(is_of_older_exporter(value.name or "") for value in left),
            [value.name or "" for value, kind in kinds.items() if kind is Kind.FIXED and _is_of_places(value)],
        )


def of_other_shapes(
    bare: list[str],
    unused: Collection[str],
    own: Mapping[str, ir.TensorProtocol],
    tensors: Mapping[str, Any],
    renamed: Callable[[str], str],
) -> list[str]:
    """Sentences about parameters that were given nothing since their tensors are of another shape, which `bare` loses.

    Args:
        own: the constants of floats in the file.
    """
    found = []
    for name in list(bare):
        source = name if name in unused else renamed(name)
        if name in own and source in unused:
            here, there = (list(array.shape) for array in (own[name].numpy(), tensors[source]))
            if here != there:
                bare.remove(name)
                found.append(f"'{source}' is of shape {there}, that of the model of {here}")
    return found


def _sizes(shape: Collection[int]) -> tuple[int, ...]:
    """A shape, whichever way it lies."""
    return tuple(sorted(size for size in shape if size != 1))


class _Numbers:
    """Vectors and single numbers of a model, all of one size but for what one number was repeated to."""

    def __init__(self, values: Sequence[ir.Value]) -> None:
        self._blank: dict[tuple[int, float], list[ir.Value]] = {}
        self._values, rows = list[ir.Value](), list[NDArray[np.float64]]()
        for value in values:
            tensor = graph.constant(value)
            assert tensor is not None
            x = tensor.numpy().astype(np.float64).ravel()
            if np.ptp(x):
                self._values.append(value)
                with np.errstate(invalid="ignore"):
                    rows.append(x - x.mean())
            else:
                self._blank.setdefault((x.size, float(x[0])), []).append(value)
        self._rows = np.array(rows)
        with np.errstate(over="ignore"):
            self._powers = np.square(self._rows).sum(-1)

    def same(self, name: str, tensors: Mapping[str, Any]) -> list[ir.Value]:
        """Those that have the numbers of a tensor, which is not lost then: buffers computed from the configuration.

        They are compared less their means: norms are all near 1, and some converters add that to them.
        """
        if not self._values and not self._blank:
            return []
        given = tensors[name].astype(np.float64).ravel()
        if not np.isfinite(given).all():  # as masks are not
            return []
        if not np.ptp(given):
            return self._blank.get((given.size, float(given[0])), [])
        if not self._values:
            return []
        given -= given.mean()
        with np.errstate(over="ignore", invalid="ignore"):
            noises = self._powers - 2 * (self._rows @ given) + given @ given
        return [self._values[i] for i in np.flatnonzero(noises <= self._powers * 10 ** (-SAME / 10))]


def _is_blank(value: ir.Value) -> bool:
    tensor = graph.constant(value)
    return tensor is not None and bool(tensor.size) and not np.ptp(tensor.numpy().astype(np.float32))


def _is_array(value: ir.Value) -> bool:
    """Whether it is one, or a number that torch's older exporter computed: others are in nodes there."""
    tensor = graph.constant(value)
    is_folded = is_of_older_exporter(value.name or "") and any(module_of_reader(use.node) for use in value.uses())
    return tensor is not None and (tensor.size > 1 or is_folded) and not is_literal(value.name or "")


def _is_of_places(value: ir.Value) -> bool:
    tensor = graph.constant(value)
    return tensor is not None and is_of_places(tensor) and any(graph.is_op(use.node, "Add") for use in value.uses())


def _called(value: ir.Value) -> str:
    """A product by its node, anything else by itself."""
    node = next(iter(value.uses())).node
    return (node.name if graph.is_op(node, "MatMul", "Gemm") else value.name) or ""


def _module(value: ir.Value) -> str:
    """A weight by its own name if modules have such, else by the module of the product that reads it."""
    name, called = value.name or "", _called(value)
    if name.endswith(tuple(f".{word}" for word in WORDS)) or called == name:
        return name
    module = module_of(next(iter(value.uses())).node)
    return f"{module}.weight" if module else called
