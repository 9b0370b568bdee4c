"""BatchNorms of a checkpoint that the model has in its kernels: they are folded into those of the checkpoint too.

Exporters make γ · (conv(x) − mean) / √(var + ε) + β one kernel and one bias, and may leave them the kernel's name.
Names tell which BatchNorms may belong to a kernel (modules beside its own), the model's numbers which one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

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

#: What is added to a variance: of torch, and of what came from TensorFlow or YOLO.
EPSILONS = (1e-5, 1e-3)
#: Names that a sentence lists.
MOST = 4


@dataclass
class Folded:
    """What became of BatchNorms that the model does not have as such.

    Attributes:
        placed: tensors that kernels and biases of the model were made of.
        withheld: tensors of kernels that stay as they are, for it is not known which BatchNorm belongs to them.
        misfits: a sentence about those, if any.
    """

    placed: list[str] = field(default_factory=list)
    withheld: set[str] = field(default_factory=set)
    misfits: list[str] = field(default_factory=list)


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
    found = [
        (likeness, i, norm, made)
        for i, kernel in enumerate(kernels)
        for norm in norms
        if _is_beside(kernel.module, norm) and tensors[key(norm, "running_mean")].shape == (kernel.channels,)
        for likeness, made in _tries(kernel, norm, tensors)
    ]
    free, left = set(range(len(kernels))), set(norms)
    for _, i, norm, made in sorted(found, key=lambda each: -each[0]):
        if i in free and norm in left:
            for index, numbers in enumerate(made, 1):
                give(kernels[i].weight.node, index, numbers, names)
            done.placed += [name for name in _tensors(kernels[i].module, norm) if name in tensors]
            free.remove(i)
            left.remove(norm)
    _leave(done, [kernels[i] for i in sorted(free)], [norm for norm in norms if norm in left], tensors)
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


def _tries(kernel: _Kernel, norm: str, tensors: Mapping[str, Any]) -> Iterator[tuple[float, tuple[NDArray, NDArray]]]:
    """(how much kernel and bias are like the model's own, both of them) for each ε by which they are so at all."""

    def read(name: str, part: str, default: float) -> NDArray[np.float64]:
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
        return
    if not np.ptp(own) or (var < 0).any():
        return
    bare = min(sqnr(own, w), sqnr(bias.numpy(), before))
    for epsilon in EPSILONS:
        scale = gamma / np.sqrt(var + epsilon)
        made = kernel.scaled(w, scale), (before - mean) * scale + beta
        likeness = min(sqnr(own, made[0]), sqnr(bias.numpy(), made[1]))
        if likeness >= LIKE and likeness > bare:
            yield likeness, made


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
        noun, go, them = ("BatchNorm", "goes", "it") if len(lost) == 1 else ("BatchNorms", "go", "them")
        done.misfits.append(
            f"the {noun} {listed(lost, MOST)} {go} nowhere: the model has {them} folded into kernels that are not "
            f"like the checkpoint's; export it with {them} (torch.onnx.export: dynamo=True, optimize=False)"
        )
