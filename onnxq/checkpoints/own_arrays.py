"""Our own files as the graph has what is in them: arrays that are no matrices are floats, under the names of constants.

Kernels of convolutions, tables of places and weights of recurrent layers have codes in our files, too, which models
take as floats only. Layouts of other projects have other names for some constants.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints import own_file
from onnxq.checkpoints.checkpoint import Checkpoint, outline
from onnxq.checkpoints.gguf_file import Gguf
from onnxq.checkpoints.schemes import FLOATS
from onnxq.checkpoints.schemes.gguf import OWN
from onnxq.checkpoints.stored import Layer, key
from onnxq.errors import BadData, BadModel
from onnxq.formats import QuantizedTensor
from onnxq.model import graph
from onnxq.model.weights import Weight, weights_of
from onnxq.passes.merge_equal import equal_constants, keep_one
from onnxq.passes.prepare import prepare
from onnxq.passes.recurrent.join_cells import OPSET, JoinCells
from onnxq.recipe import Recipe

Read = Callable[[], Any]


def as_in_graph(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with floats in the place of codes that are of no matrix, and with the names of the graph."""
    if checkpoint.is_gguf:
        return with_floats(checkpoint, dict(_blocks(checkpoint)))
    floats, gone = dict[str, Read](), set[str]()
    for file in {id(file): file for file in checkpoint.shards.values()}.values():
        metadata = getattr(file, "metadata", {})
        for name, own in own_file.names_of(metadata).items():
            if name in checkpoint and own not in checkpoint:
                floats[own] = _kept(file, name)
                gone.add(name)
        for name, entry in (own_file.table_of(file, metadata) or {}).items():
            if _is_array(entry) and name not in checkpoint:
                floats[name] = _decoded(file, name, entry)
                gone.update(_parts(name, entry))
    return with_floats(checkpoint, floats, gone)


def as_prepared(model: ir.Model, checkpoint: Checkpoint, again: Callable[[], ir.Model]) -> ir.Model:
    """The model; or as it is quantized, where a file of ours has weights by names that preparing gave them: kernels
    with a norm folded into them, weights that the model decodes or turns, gates of an LSTM that it computes in parts.

    Args:
        again: loads the model.
    """
    names = _names(checkpoint)
    missing = names - _constants(model)
    if not missing:
        return model
    prepared = again()
    prepare(prepared, merges=False)
    found = [model, prepared]
    if names - _constants(prepared):
        joined = again()
        prepare(joined, opset=OPSET, merges=False)
        JoinCells(Recipe("w8a8-dynamic"))(joined)
        found.append(joined)
    best = min(found, key=lambda each: len(names - _constants(each)))
    if best is not model:
        _merge(best, names)
    return best


def _merge(model: ir.Model, names: Collection[str]) -> None:
    """Keep equal constants once, as the file does, by the one name that it has of them: norms before training. Those of
    an emptied model are all equal, and the file has many of these names."""
    for owner in graph.graphs(model):
        for values in equal_constants(owner):
            named = [value for value in values if value.name in names]
            if len(named) == 1:
                keep_one(named[0], [value for value in values if value is not named[0]])


def own_biases(model: ir.Model, checkpoint: Checkpoint, layers: Sequence[Layer]) -> set[str]:
    """Tensors of our own file that are constants of the model by the name of a layer's bias, whatever reads them: with
    an activation the operator that computes both, several products that have the same one."""
    names = {key(layer.name, "bias") for layer in layers}
    return names & _names(checkpoint) & _constants(model)


def _names(checkpoint: Checkpoint) -> set[str]:
    """What our own files, with a graph's names for all that is in them, call their floats and codes."""
    found = set[str]()
    for file in {id(file): file for file in checkpoint.shards.values()}.values():
        metadata = getattr(file, "metadata", {})
        if isinstance(file, Gguf) and metadata.get("general.architecture") == OWN:
            found.update(name for name in file if file.outline(name)[1] is not None or _is_float(file, name))
        said, there = own_file.table_of(file, metadata) or {}, {*file}
        found.update(n for n, entry in said.items() if isinstance(entry, dict) or (n in there and _is_float(file, n)))
    return found


def _is_float(file: Mapping[str, Any], name: str) -> bool:
    return outline(file, name).kind in "fV"


def _constants(model: ir.Model) -> set[str]:
    nodes = {node.outputs[0].name or "" for node in graph.nodes(model) if graph.is_op(node, "Constant")}
    return nodes.union(*(owner.initializers for owner in graph.graphs(model)))


def parts_of(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The tensors that each array in codes is of."""
    found = dict[str, list[str]]()
    for file in {id(file): file for file in checkpoint.shards.values()}.values():
        table = own_file.table_of(file, getattr(file, "metadata", {})) or {}
        found |= {name: _parts(name, entry) for name, entry in table.items() if isinstance(entry, dict)}
    return {name: parts for name, parts in found.items() if any(part in checkpoint for part in parts)}


def with_floats(checkpoint: Checkpoint, floats: Mapping[str, Read], gone: set[str] | None = None) -> Checkpoint:
    """The checkpoint with arrays that are made when they are asked for, and without those of some names."""
    if not floats:
        return checkpoint
    made, gone = _Made(floats), gone or set()
    shards = {name: file for name, file in checkpoint.shards.items() if name not in gone}
    return dataclasses.replace(checkpoint, shards={**shards, **dict.fromkeys(floats, made)})


def without_tables(
    model: ir.Model, checkpoint: Checkpoint, layers: Sequence[Layer], renamed: Callable[[str], str]
) -> tuple[Checkpoint, list[Layer]]:
    """The same with floats in the place of layers of codes that the model has as constants which no product reads, nor
    a lookup: places that are added, and what operators read that are more than one product or lookup (Attention)."""
    constants = {
        renamed(name): value
        for owner in graph.graphs(model)
        for name, value in owner.initializers.items()
        if graph.constant(value) is not None and not any(_is_of_product(use.node, value) for use in value.uses())
    }
    floats, gone, rest = dict[str, Read](), set[str](), list[Layer]()
    for layer in layers:
        names = (name for name in (layer.name, f"{layer.name}.weight") if name in constants)
        name = next(names, None) if layer.scheme != FLOATS and not layer.is_joined else None
        tensor = None if name is None else graph.constant(constants[name])
        is_turned = name is not None and _lies_by_inputs(constants[name])
        shape = () if tensor is None else tuple(tensor.shape.numpy())
        if name is None or _shape_of(layer) != (shape[::-1] if is_turned else shape):
            rest.append(layer)
            continue
        floats[name] = functools.partial(_opened, layer, is_turned)
        gone |= {part for part in layer.tensors if part in checkpoint and part != key(layer.name, "bias")}
    return with_floats(checkpoint, floats, gone), rest


def _opened(layer: Layer, is_turned: bool) -> NDArray:
    floats = layer.open().floats()
    return floats.T if is_turned else floats


def _shape_of(layer: Layer) -> tuple[int, int] | None:
    try:
        return layer.open().shape
    except BadModel:
        return None


def _is_of_product(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node multiplies by a matrix or looks up its rows, and no more, or makes the one that another does."""
    is_weight = graph.is_op(node, "MatMul", "Gemm", "Gather") and _reads(node, value) is not None
    return is_weight or graph.is_op(node, "Transpose", "Identity", "Cast", "Reshape")


def _lies_by_inputs(value: ir.Value) -> bool:
    """Whether rows of a matrix are those of inputs, which a layer has as columns."""
    weights = (_reads(use.node, value) for use in value.uses())
    return any(weight is not None and weight.role.contraction == 0 for weight in weights)


def _reads(node: ir.Node, value: ir.Value) -> Weight | None:
    return next((weight for weight in weights_of(node, least=1) if weight.value is value), None)


class _Made(Mapping[str, Any]):
    """Arrays that are made when they are asked for."""

    def __init__(self, reads: Mapping[str, Read]) -> None:
        self._reads = reads

    def __getitem__(self, name: str) -> Any:
        return self._reads[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)


def _is_array(entry: Any) -> bool:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    return isinstance(shape, list) and len(shape) != 2


def _parts(name: str, entry: Any) -> list[str]:
    try:
        return own_file.parts_of(name, entry)
    except BadData:
        return [f"{name}.codes"]


def _kept(file: Mapping[str, Any], name: str) -> Read:
    return lambda: file[name]


def _decoded(file: Mapping[str, Any], name: str, entry: Any) -> Read:
    def read() -> NDArray:
        try:
            return own_file.weight_of(name, entry, file).dequantize()
        except BadData as error:
            raise BadModel(str(error)) from None

    return read


def _blocks(checkpoint: Checkpoint) -> Iterator[tuple[str, Read]]:
    """Tensors of GGUF in blocks that are of no matrix."""
    for name, file in checkpoint.shards.items():
        if isinstance(file, Gguf):
            shape, format = file.outline(name)
            if format is not None and len(shape) != 2:
                yield name, _floats_of(file, name)


def _floats_of(file: Gguf, name: str) -> Read:
    def read() -> NDArray:
        made = file[name]
        return made.dequantize() if isinstance(made, QuantizedTensor) else made

    return read
