"""BatchNorms of a checkpoint that the model has in its kernels: they are folded into those of the checkpoint too.

Exporters make γ · (conv(x) − mean) / √(var + ε) + β one kernel and one bias, and may leave them the kernel's name.
Names tell which BatchNorms may belong to a kernel (modules beside its own), the model's numbers which one does, and all
of these together which ε they have (`epsilons.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded import epsilons
from onnxq.checkpoints.matching.folded.epsilons import EPSILONS
from onnxq.checkpoints.matching.names import module_by_name
from onnxq.checkpoints.matching.plain import by_ends
from onnxq.checkpoints.matching.put import LIKE
from onnxq.checkpoints.stored import key, names_with, real
from onnxq.errors import BadModel, listed
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, weights_of
from onnxq.passes.normalize.fold_batchnorm import along_outputs
from onnxq.quality import sqnr

#: Kernels of both ε that are as like as this, in dB, are as good as the same.
ALIKE = 50.0
#: Names that a sentence lists.
MOST = 4
#: What helps.
EXPORT = "export it with {} (torch.onnx.export: dynamo=True, optimize=False)"
Vector = NDArray[np.float64]


@dataclass
class Folded:
    """What became of BatchNorms that the model does not have as such.

    Attributes:
        placed: tensors that kernels and biases of the model were made of.
        withheld: tensors of kernels that stay as they are, for it is not known which BatchNorm belongs to them.
        misfits: a sentence about those, if any.
        notes: a sentence about what numbers do not tell, where it hardly matters.
    """

    placed: list[str] = field(default_factory=list)
    withheld: set[str] = field(default_factory=set)
    misfits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Kernel:
    """A product with a constant bias, and the module of the checkpoint that it is; "" if that has none."""

    weight: Weight
    module: str

    @property
    def channels(self) -> int:
        bias = graph.constant(self.weight.node.inputs[2])
        assert bias is not None
        return bias.size

    def scaled(self, w: NDArray, scale: NDArray) -> NDArray:
        node = self.weight.node
        groups = graph.attribute_int(node, "group", 1)
        return w * along_outputs(scale, w.shape, groups, node.op_type == "ConvTranspose")

    def by_channel(self, w: NDArray) -> NDArray:
        """The sum over all else."""
        node = self.weight.node
        if node.op_type != "ConvTranspose":
            return w.reshape(len(w), -1).sum(1)
        groups = graph.attribute_int(node, "group", 1)
        parted = w.reshape(groups, -1, *w.shape[1:])
        return parted.reshape(*parted.shape[:3], -1).sum((1, 3)).reshape(-1)


@dataclass(frozen=True)
class _Pair:
    """A kernel and the BatchNorm that may be in it, in numbers: `own` and `bias` are the model's."""

    kernel: _Kernel
    norm: str
    own: Vector
    bias: Vector
    w: Vector
    before: Vector
    gamma: Vector
    beta: Vector
    mean: Vector
    var: Vector

    def made(self, epsilon: float) -> tuple[Vector, Vector]:
        scale = self.gamma / np.sqrt(self.var + epsilon)
        return self.kernel.scaled(self.w, scale), (self.before - self.mean) * scale + self.beta

    def likeness(self) -> float | None:
        """How much kernel and bias are like the model's own, by the better ε; None: no more than without the norm."""
        bare = min(sqnr(self.own, self.w), sqnr(self.bias, self.before))
        each = (self.made(epsilon) for epsilon in EPSILONS)
        best = max(min(sqnr(self.own, w), sqnr(self.bias, bias)) for w, bias in each)
        return best if best >= LIKE and best > bare else None

    def channels(self) -> tuple[Vector, Vector]:
        """What `epsilons.py` asks: the variances that the model's kernel tells, and the checkpoint's."""
        energy, shared = self.kernel.by_channel(self.w**2), self.kernel.by_channel(self.w * self.own)
        is_told = (energy > 0) & (shared * self.gamma > 0) & (self.var > 0)
        u = np.square(self.gamma[is_told] * energy[is_told] / shared[is_told])
        return u, self.var[is_told]

    def between(self) -> float:
        """How alike kernels and biases of both ε are, in dB."""
        first, *others = (self.made(epsilon) for epsilon in EPSILONS)
        return min(sqnr(first[i], other[i]) for other in others for i in range(2))


def fold(model: ir.Model, tensors: Mapping[str, Any], renamed: Callable[[str], str] = str) -> Folded:
    """Give kernels the numbers of the checkpoint's kernels and BatchNorms together.

    Args:
        renamed: what a name of the model is in the checkpoint.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    done = Folded()
    norms = _norms(model, tensors, renamed)
    if not norms:
        return done
    names = Names(model)
    kernels = [kernel for node in graph.nodes(model) for kernel in _kernels(node, tensors, renamed)]
    tried = [
        (pair, likeness)
        for kernel in kernels
        for norm in norms
        if _is_beside(kernel.module, norm) and tensors[key(norm, "running_mean")].shape == (kernel.channels,)
        if (pair := _pair(kernel, norm, tensors)) is not None and (likeness := pair.likeness()) is not None
    ]
    pairs: list[_Pair] = []
    for pair, _ in sorted(tried, key=lambda each: -each[1]):
        if all(pair.kernel is not other.kernel and pair.norm != other.norm for other in pairs):
            pairs.append(pair)
    epsilon, is_decided = epsilons.decide([pair.channels() for pair in pairs])
    doubtful = [] if is_decided else [pair for pair in pairs if pair.between() < ALIKE]
    if len(doubtful) < len(pairs) and not is_decided:
        least = min(pair.between() for pair in pairs if pair not in doubtful)
        others = " or ".join(f"{other:g}" for other in EPSILONS if other != epsilon)
        done.notes.append(
            f"epsilon of BatchNorms: {epsilon:g}, as torch has it; {others} is {least:.0f} dB away or more"
        )
    for pair in pairs:
        if pair not in doubtful:
            for index, numbers in enumerate(pair.made(epsilon), 1):
                give(pair.kernel.weight.node, index, numbers, names)
            done.placed += [name for name in _tensors(pair.kernel.module, pair.norm) if name in tensors]
    _doubt(done, doubtful)
    paired = [pair.kernel for pair in pairs]
    free = [kernel for kernel in kernels if not any(kernel is each for each in paired)]
    _leave(done, free, [norm for norm in norms if all(norm != pair.norm for pair in pairs)], tensors)
    return done


def _norms(model: ir.Model, tensors: Mapping[str, Any], renamed: Callable[[str], str]) -> list[str]:
    """The modules whose statistics are no constants of the model."""
    names = [name for name in names_with(tensors, "running_mean") if key(name, "running_var") in tensors]
    constants = [name for owner in graph.graphs(model) for name in owner.initializers] if names else []
    known = {
        *constants,
        *map(renamed, constants),
        *by_ends(constants, [name for name in tensors if name not in constants]).values(),
    }
    return [name for name in names if key(name, "running_mean") not in known]


def _kernels(node: ir.Node, tensors: Mapping[str, Any], renamed: Callable[[str], str]) -> Iterator[_Kernel]:
    if not graph.is_op(node, "Conv", "ConvTranspose", "Gemm") or len(node.inputs) < 3:
        return
    if graph.constant(node.inputs[2]) is None:
        return
    factors = (graph.attribute_float(node, "alpha", 1.0), graph.attribute_float(node, "beta", 1.0))
    if node.op_type == "Gemm" and (factors != (1.0, 1.0) or not graph.attribute_int(node, "transB", 0)):
        return
    for weight in weights_of(node, least=1):
        if weight.role.index != 1:
            continue
        own = ((weight.value.name or "").removesuffix(".weight"), module_by_name(node))
        modules = [renamed(key(m, "weight")).removesuffix("weight").removesuffix(".") for m in own]
        fitting = (m for m in modules if getattr(tensors.get(key(m, "weight")), "shape", None) == weight.shape)
        yield _Kernel(weight, next(fitting, ""))


def _is_beside(module: str, norm: str) -> bool:
    return bool(module) and module.rpartition(".")[0] == norm.rpartition(".")[0]


def _pair(kernel: _Kernel, norm: str, tensors: Mapping[str, Any]) -> _Pair | None:
    """Their numbers, if those are what a BatchNorm has."""

    def read(name: str, part: str, default: float) -> Vector:
        source = key(name, part)
        if source not in tensors:
            return np.full(kernel.channels, default)
        return real(source, tensors[source]).astype(np.float64)

    w, own = read(kernel.module, "weight", 0.0), kernel.weight.tensor.numpy().astype(np.float64)
    bias = graph.constant(kernel.weight.node.inputs[2])
    gamma, beta, mean, var = (
        read(norm, part, default)
        for part, default in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0))
    )
    before = read(kernel.module, "bias", 0.0)
    if bias is None or any(each.shape != (kernel.channels,) for each in (gamma, beta, mean, var, before)):
        return None
    if not np.ptp(own) or (var < 0).any():
        return None
    flat = bias.numpy().astype(np.float64).reshape(-1)
    return _Pair(kernel, norm, own, flat, w, before, gamma, beta, mean, var)


def give(node: ir.Node, index: int, numbers: NDArray, names: Names) -> None:
    """Let a node read other numbers, in the same constant if nobody else reads that."""
    value = node.inputs[index]
    assert value is not None and value.const_value is not None and isinstance(node.graph, ir.Graph)
    dtype = value.const_value.dtype
    with np.errstate(over="ignore"):
        made = numbers.reshape(value.const_value.shape.numpy()).astype(dtype.numpy())
    if not np.isfinite(made.astype(np.float32)).all():
        raise BadModel(f"what the checkpoint makes of '{value.name}' is too large for {dtype.name.lower()}")
    tensor = ir.tensor(np.ascontiguousarray(made), name=value.name)
    if len(value.uses()) == 1:
        value.const_value = tensor
    else:
        node.replace_input_with(index, graph.add_constant(node.graph, names.fresh(value.name or "weight"), tensor))


def _tensors(module: str, norm: str) -> list[str]:
    parts = [key(module, part) for part in ("weight", "bias")]
    return parts + [key(norm, part) for part in ("weight", "bias", "running_mean", "running_var")]


def _doubt(done: Folded, pairs: list[_Pair]) -> None:
    """Of these it matters which ε they have, and nothing tells it: they stay."""
    for pair in pairs:
        done.withheld |= {*_tensors(pair.kernel.module, pair.norm)}
    if pairs:
        noun, go, them = _words(pairs)
        told = listed([pair.norm for pair in pairs], MOST)
        either = " or ".join(f"{epsilon:g}" for epsilon in EPSILONS)
        done.misfits.append(
            f"the {noun} {told} {go} nowhere: the model has {them} folded into kernels with an epsilon that numbers do "
            f"not tell ({either}); {EXPORT.format(them)}"
        )


def _leave(done: Folded, kernels: list[_Kernel], norms: list[str], tensors: Mapping[str, Any]) -> None:
    """Kernels that may have one of the BatchNorms inside stay; those of modules that the model lacks tell nothing."""
    lost = []
    for norm in norms:
        shape = tensors[key(norm, "running_mean")].shape
        of_size = [kernel for kernel in kernels if shape == (kernel.channels,)]
        beside = [kernel for kernel in of_size if _is_beside(kernel.module, norm)]
        done.withheld |= {key(kernel.module, part) for kernel in beside for part in ("weight", "bias")}
        if beside or any(not kernel.module and kernel.weight.node.op_type != "Gemm" for kernel in of_size):
            lost.append(norm)
    if lost:
        noun, go, them = _words(lost)
        done.misfits.append(
            f"the {noun} {listed(lost, MOST)} {go} nowhere: the model has {them} folded into kernels that are not "
            f"like the checkpoint's; {EXPORT.format(them)}"
        )


def _words(norms: Sized) -> tuple[str, str, str]:
    return ("BatchNorm", "goes", "it") if len(norms) == 1 else ("BatchNorms", "go", "them")
