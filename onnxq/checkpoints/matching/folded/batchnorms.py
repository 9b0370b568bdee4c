"""BatchNorms of a checkpoint that the model has in its kernels: they are folded into those of the checkpoint too.

Exporters make γ · (conv(x) − mean) / √(var + ε) + β one kernel and one bias, and may leave them the kernel's name.
Where they do not say which (`told.py`), names tell which BatchNorms may belong to a kernel (modules beside its own),
the model's numbers which one does, and all of those of a module together which ε they have (`epsilons.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded import epsilons, told
from onnxq.checkpoints.matching.folded.epsilons import EPSILONS, USUAL
from onnxq.checkpoints.matching.folded.pairs import Kernel, Pair, pairs, place_of, told_pairs
from onnxq.checkpoints.matching.names import Renaming, module_by_name
from onnxq.checkpoints.matching.plain import by_ends
from onnxq.checkpoints.stored import key, names_with
from onnxq.errors import BadModel, listed
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import weights_of
from onnxq.passes.normalize.fold_batchnorm import outputs_of
from onnxq.quality import MAX_DB

#: Kernels of each ε that are as like as this, in dB, are as good as the same.
ALIKE = 50.0
#: Names that a sentence lists.
MOST = 4
#: What helps.
EXPORT = "export it with {} (torch.onnx.export: dynamo=True, optimize=False)"
Vector = NDArray[np.float64]
_AS_IT_IS = Renaming()


@dataclass
class Folded:
    """What became of BatchNorms that the model does not have as such.

    Attributes:
        placed: tensors that kernels and biases of the model were made of.
        withheld: tensors of kernels that stay as they are, for it is not known which BatchNorm belongs to them, and of
            these.
        misfits: a sentence about those, if any.
        notes: a sentence about what numbers do not tell, where it hardly matters.
    """

    placed: list[str] = field(default_factory=list)
    withheld: set[str] = field(default_factory=set)
    misfits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def fold(model: ir.Model, tensors: Mapping[str, Any], renamed: Renaming = _AS_IT_IS) -> Folded:
    """Give kernels the numbers of the checkpoint's kernels and BatchNorms together.

    Args:
        renamed: what a name of the model is in the checkpoint.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    done = Folded()
    norms = {name for name in names_with(tensors, "running_mean") if _has_statistics(name, tensors)}
    if not norms:
        return done
    names = Names(model)
    kernels = [kernel for node in graph.nodes(model) for kernel in _kernels(node, tensors, renamed, norms)]
    found = told_pairs(kernels, tensors)
    used, free = {pair.norm for pair in found}, _without(kernels, found)
    lost = [norm for norm in _lost(model, tensors, renamed, norms) if norm not in used]
    found += pairs(free, lost, tensors) if lost else []
    known = _with_epsilons(found)
    for pair, each, likeness in known:
        if likeness >= ALIKE:
            for index, numbers in enumerate(pair.made(each[0], tensors), 1):
                give(pair.kernel.weight.node, index, numbers, names)
            done.placed += [name for name in _tensors(pair.kernel.module, pair.norm) if name in tensors]
    _doubt(done, [(pair, each) for pair, each, likeness in known if likeness < ALIKE])
    _note(done, [told for told in known if told[2] >= ALIKE])
    used = {pair.norm for pair in found}
    _leave(done, _without(free, found), [norm for norm in lost if norm not in used], tensors)
    return done


def _without(kernels: Sequence[Kernel], found: Sequence[Pair]) -> list[Kernel]:
    paired = {id(pair.kernel) for pair in found}
    return [kernel for kernel in kernels if id(kernel) not in paired]


def _with_epsilons(found: Sequence[Pair]) -> list[tuple[Pair, tuple[float, ...], float]]:
    """(pair, each ε that it may have, the likeness of what the first and the others make)."""
    untold = [pair for pair in found if pair.kernel.epsilon is None]
    decided = epsilons.decide([pair.kernel.module for pair in untold], [pair.channels() for pair in untold])
    left = {id(pair): each for pair, each in zip(untold, decided, strict=True)}
    each = [left[id(pair)] if pair.kernel.epsilon is None else (pair.kernel.epsilon,) for pair in found]
    return [(pair, those, pair.between(those)) for pair, those in zip(found, each, strict=True)]


def _lost(
    model: ir.Model, tensors: Mapping[str, Any], renamed: Callable[[str], str], norms: Collection[str]
) -> list[str]:
    """Those whose statistics are no constants of the model, in the order of the file."""
    names = [name for name in names_with(tensors, "running_mean") if name in norms]
    constants = {name for owner in graph.graphs(model) for name in owner.initializers}
    known = {
        *constants,
        *map(renamed, constants),
        *by_ends(constants, [name for name in tensors if name not in constants]).values(),
    }
    return [name for name in names if key(name, "running_mean") not in known]


def _has_statistics(name: str, tensors: Mapping[str, Any]) -> bool:
    mean = tensors[key(name, "running_mean")]
    return key(name, "running_var") in tensors and isinstance(mean, np.ndarray) and mean.ndim == 1


def _kernels(node: ir.Node, tensors: Mapping[str, Any], renamed: Renaming, norms: Collection[str]) -> Iterator[Kernel]:
    if not graph.is_op(node, "Conv", "ConvTranspose", "Gemm"):
        return
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None  # exporters remove zeros
    bias = graph.constant(node.inputs[2]) if has_bias else None
    if has_bias and bias is None:
        return
    factors = (graph.attribute_float(node, "alpha", 1.0), graph.attribute_float(node, "beta", 1.0))
    if node.op_type == "Gemm" and (factors != (1.0, 1.0) or not graph.attribute_int(node, "transB", 0)):
        return
    for weight in weights_of(node, least=1):
        if weight.role.index != 1:
            continue
        channels = outputs_of(node, weight.shape)
        if channels is None or (bias is not None and bias.size != channels):
            continue
        own = ((weight.value.name or "").removesuffix(".weight"), module_by_name(node))
        modules = [renamed(key(m, "weight")).removesuffix("weight").removesuffix(".") for m in own]
        fitting = (m for m in modules if getattr(tensors.get(key(m, "weight")), "shape", None) == weight.shape)
        norm = next((each for each in renamed.modules(told.module(node)) if each in norms), "")
        yield Kernel(weight, next(fitting, ""), channels, norm, told.epsilon(node) if norm else None)


def give(node: ir.Node, index: int, numbers: NDArray, names: Names) -> None:
    """Let a node read other numbers, in the same constant if nobody else reads that; a bias that it has none of is
    added."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = graph.constant(node.inputs[1] if value is None else value)
    assert tensor is not None and isinstance(node.graph, ir.Graph)
    name, dtype = f"{node.name}_bias" if value is None else value.name or "weight", tensor.dtype
    with np.errstate(over="ignore"):
        made = (numbers if value is None else numbers.reshape(tensor.shape.numpy())).astype(dtype.numpy())
    if not np.isfinite(made.astype(np.float32)).all():
        raise BadModel(f"what the checkpoint makes of '{name}' is too large for {dtype.name.lower()}")
    tensor = ir.tensor(np.ascontiguousarray(made), name=name)
    if value is not None and len(value.uses()) == 1:
        value.const_value = tensor
    else:
        node.resize_inputs(max(index + 1, len(node.inputs)))
        node.replace_input_with(index, graph.add_constant(node.graph, names.fresh(name), tensor))


def _tensors(module: str, norm: str) -> list[str]:
    parts = [key(module, part) for part in ("weight", "bias")]
    return parts + [key(norm, part) for part in ("weight", "bias", "running_mean", "running_var")]


def _note(done: Folded, known: Sequence[tuple[Pair, tuple[float, ...], float]]) -> None:
    """Of these it hardly matters which ε they have, where nothing tells it."""
    of = {left: [told for told in known if told[1] == left] for _, left, _ in known if len(left) > 1}
    for (epsilon, *others), same in of.items():
        which = "BatchNorms" if len(same) == len(known) else listed([pair.norm for pair, *_ in same], MOST)
        if epsilon not in EPSILONS:
            done.notes.append(f"epsilon of {which}: {epsilon:g}, which their numbers tell")
            continue
        why = ", as torch has it" * (epsilon == USUAL[0])
        least = min(likeness for *_, likeness in same)
        other = f"{_either(others)} is {least:.0f} dB away or more{_beyond(epsilon, same)}"
        done.notes.append(f"epsilon of {which}: {epsilon:g}{why}; {other}")


def _beyond(epsilon: float, same: Sequence[tuple[Pair, tuple[float, ...], float]]) -> str:
    """What the largest ε costs that numbers do not rule out, if that is much."""
    most = epsilons.limit([pair.channels() for pair, *_ in same])
    least = MAX_DB if most is None else min(pair.between((epsilon, most)) for pair, *_ in same)
    return "" if least >= ALIKE else f", but numbers rule out none up to {most:.1g}, {least:.0f} dB away"


def _doubt(done: Folded, doubtful: Sequence[tuple[Pair, tuple[float, ...]]]) -> None:
    """Of these it matters which ε they have, and nothing tells it: they stay."""
    for pair, _ in doubtful:
        done.withheld |= {*_tensors(pair.kernel.module, pair.norm)}
    if doubtful:
        noun, go, them = words_of(doubtful)
        told = listed([pair.norm for pair, _ in doubtful], MOST)
        which = {epsilon for _, left in doubtful for epsilon in left}
        either = _either([*(each for each in EPSILONS if each in which), *sorted(which.difference(EPSILONS))])
        done.misfits.append(
            f"the {noun} {told} {go} nowhere: the model has {them} folded into kernels with an epsilon that numbers do "
            f"not tell ({either}); {EXPORT.format(them)}"
        )


def _either(epsilons: Sequence[float]) -> str:
    return " or ".join(f"{epsilon:g}" for epsilon in epsilons)


def _leave(done: Folded, kernels: list[Kernel], norms: list[str], tensors: Mapping[str, Any]) -> None:
    """Kernels that may have one of the BatchNorms inside stay; those of modules that the model lacks tell nothing."""
    wanted = [place_of(norm, tensors) for norm in norms]
    asked = {*wanted}
    there = [kernel for kernel in kernels if kernel.module and kernel.place in asked]
    done.withheld |= {key(kernel.module, part) for kernel in there for part in ("weight", "bias")}
    places = {kernel.place for kernel in there}
    unknown = {k.channels for k in kernels if not k.module and k.weight.node.op_type != "Gemm"}
    lost = [norm for norm, place in zip(norms, wanted, strict=True) if place in places or place[1] in unknown]
    done.withheld |= {name for norm in lost for name in _tensors(norm, norm)}
    if lost:
        noun, go, them = words_of(lost)
        done.misfits.append(
            f"the {noun} {listed(lost, MOST)} {go} nowhere: the model has {them} folded into kernels that are not "
            f"like the checkpoint's; {EXPORT.format(them)}"
        )


def words_of(norms: Sized) -> tuple[str, str, str]:
    """How a sentence calls so many."""
    return ("BatchNorm", "goes", "it") if len(norms) == 1 else ("BatchNorms", "go", "them")
