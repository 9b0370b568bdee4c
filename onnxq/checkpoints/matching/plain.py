"""Constants of a model that get the numbers of tensors of the same name and shape: norms, biases, kernels, tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.checkpoints.matching import ties
from onnxq.checkpoints.matching.names import ends_of
from onnxq.checkpoints.matching.put import LIKE
from onnxq.errors import BadModel
from onnxq.formats.kinds import arguments
from onnxq.model import graph
from onnxq.quality import sqnr


def replace_constants(
    model: ir.Model,
    tensors: Mapping[str, Any],
    aliases: Mapping[str, str],
    apart: Collection[str],
    is_doubtful: Callable[[str], bool],
    layers: Collection[str] = (),
    renamed: Callable[[str], str] = str,
    *,
    is_checked: bool = True,
) -> dict[str, str]:
    """Give constants of floats the numbers of tensors; which ones, by the constants' names.

    A tensor of another name, by `aliases` or by an end with a number in it (`0.attn_norm.weight`), is taken where its
    numbers are like those of the constant, or that is blank: converters change some, and models name others alike.
    Copies of a constant, and the transpose that a head of a tied table reads, get what it gets.

    Args:
        tensors: of the checkpoint.
        aliases: tensors by other names that they are known by.
        apart: tensors that are parts of something else.
        is_doubtful: whether a tensor may lie another way than the constant of its name: it has to be like it, too.
        layers: names of what belongs to products, dotted.
        renamed: what a name of the model is in the checkpoint.
        is_checked: whether numbers have to be alike where names are not the same.

    Raises:
        BadModel: a number is not finite, or too large for the constant's type.
    """
    found: dict[str, str] = {}
    constants = {
        name: value
        for owner in graph.graphs(model)
        for name, value in owner.initializers.items()
        if (tensor := graph.constant(value)) is not None and tensor.dtype in graph.FLOATS
    }
    given_to: dict[str, ir.TensorProtocol] = {}
    taken = {*constants, *map(renamed, constants)}
    others = _others(constants, tensors, aliases, apart, layers, renamed, is_checked=is_checked)
    for name, value in constants.items():
        tensor = graph.constant(value)
        own = name if name in tensors else renamed(name)
        own = own if own in tensors else of_parent(name, tensors, taken, renamed)
        source = own if own in tensors else others.get(name, "")
        if tensor is None or source in apart or source not in tensors:
            continue
        given = tensors[source]
        if not isinstance(given, np.ndarray) or given.dtype.kind not in "fV" or given.shape != tensor.shape.numpy():
            continue
        made = _lazy(tensors, source, tensor, name)
        is_trusted = source == own or not is_checked
        if (is_trusted and not is_doubtful(source)) or _is_like(tensor, made):
            value.const_value = made
            given_to[name] = tensor
            found[name] = source
    ties.follow(constants, given_to, layers)
    return found


def of_parent(name: str, tensors: Collection[str], taken: Collection[str], renamed: Callable[[str], str]) -> str:
    """The bias of the module around a head, which transformers' heads for masked words read as their own and save once:
    `cls.predictions.bias` is `cls.predictions.decoder.bias`. "" if that is not so."""
    words = name.split(".")
    parent = renamed(".".join([*words[:-2], words[-1]]))
    return parent if words[-1] == "bias" and len(words) > 2 and parent in tensors and parent not in taken else ""


def _others(
    constants: Mapping[str, ir.Value],
    tensors: Mapping[str, Any],
    aliases: Mapping[str, str],
    apart: Collection[str],
    layers: Collection[str],
    renamed: Callable[[str], str],
    *,
    is_checked: bool,
) -> dict[str, str]:
    """Tensors of other names by the constants that they may belong to."""
    others = by_ends(constants, [name for name in tensors if name not in constants and name not in apart])
    known = {alias: name for alias, name in aliases.items() if name.removesuffix(".bias") not in layers}
    others |= {name: known[each] for name in constants for each in (renamed(name), name) if each in known}
    if not is_checked:
        named = {name: name if name in tensors else renamed(name) for name in constants}
        taken = {*apart, *named.values(), *others.values()}
        left = [name for name in constants if named[name] not in tensors and name not in others]
        spare = [name for name in tensors if name not in taken and name.removesuffix(".bias") not in layers]
        others |= _alone(constants, left, tensors, spare)
    return others


def by_ends(constants: Collection[str], tensors: Collection[str]) -> dict[str, str]:
    """Tensors by the constant that alone ends like them, in a number and a word or more."""
    ends: dict[str, tuple[list[str], list[str]]] = {}
    for side, names in enumerate((constants, tensors)):
        for name in names:
            for end in ends_of(name):
                if end.partition(".")[0].isdigit():
                    ends.setdefault(end, ([], []))[side].append(name)
    return {here[0]: there[0] for here, there in ends.values() if len(here) == len(there) == 1}


def _alone(
    constants: Mapping[str, ir.Value], left: Collection[str], tensors: Mapping[str, Any], spare: Collection[str]
) -> dict[str, str]:
    """Tensors by the constant, where both are the only vector of their length and of their last word that is left."""
    found: dict[tuple[int, str], tuple[list[str], list[str]]] = {}
    for side, names in enumerate((left, spare)):
        for name in names:
            array = tensors[name] if side else graph.constant(constants[name])
            shape = () if array is None else tuple(array.shape if side else array.shape.numpy())
            if len(shape) == 1 and shape[0] > 1 and "." in name:
                found.setdefault((shape[0], name.rpartition(".")[2]), ([], []))[side].append(name)
    return {here[0]: there[0] for here, there in found.values() if len(here) == len(there) == 1}


def _is_like(tensor: ir.TensorProtocol, made: ir.TensorProtocol) -> bool:
    own, given = (x.numpy().astype(np.float32) for x in (tensor, made))
    return not own.size or not np.ptp(own) or sqnr(own, given) >= LIKE


def _lazy(tensors: Mapping[str, Any], source: str, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    dtype = tensor.dtype
    with np.errstate(over="ignore"):
        numbers = arguments.numbers(tensors[source]).astype(dtype.numpy())
        strange = ~np.isfinite(numbers.astype(np.float32))
        if strange.any() and not np.array_equal(numbers[strange], tensor.numpy()[strange]):  # masks hold −∞
            raise BadModel(f"'{source}' holds numbers that are not finite, or too large for {dtype.name.lower()}")
    del numbers

    def evaluate() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(arguments.numbers(tensors[source]).astype(dtype.numpy())))

    return ir.LazyTensor(evaluate, dtype=dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
