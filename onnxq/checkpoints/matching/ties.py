"""Constants that are another one's copy or transpose, which a checkpoint has once: a table and the head tied to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.checkpoints.matching.folded.told import Calls
from onnxq.checkpoints.matching.names import Renaming, names_of
from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import module_of
from onnxq.model.weights import MIN_ELEMENTS, Weight, weights_of

#: Inputs of operators that are parts of modules, but for matrices of products, which need not lie as in torch.
_PARTS = {("Gather", 0): "weight", ("Gemm", 2): "bias"} | {
    (op, index): part
    for op in ("Conv", "ConvTranspose", "LayerNormalization", "RMSNormalization", "InstanceNormalization")
    for index, part in ((1, "weight"), (2, "bias"))
}
_PARTS |= {
    ("BatchNormalization", i): part for i, part in enumerate(("weight", "bias", "running_mean", "running_var"), 1)
}


def follow(constants: Mapping[str, ir.Value], before: Mapping[str, ir.TensorProtocol], layers: Collection[str]) -> None:
    """Give copies and transposes of constants that have new numbers the same ones.

    Where the model has no numbers of its own, it is the only product of a table's transposed shape that is its head.

    Args:
        before: what constants that have new numbers were, by name.
        layers: names of what belongs to products, dotted: a product that is called so is no copy.
    """
    rest = [value for name, value in constants.items() if name not in before]
    for name, old in before.items():
        if old.size < MIN_ELEMENTS:
            continue
        shape, new = tuple(old.shape.numpy()), constants[name].const_value
        assert new is not None
        same, turned = (
            [x for x in rest if (own := x.const_value) is not None and own.dtype == old.dtype and _shape(own) == wanted]
            for wanted in (shape, shape[::-1] if len(shape) == 2 else None)
        )
        if not same and not turned:
            continue
        if not _is_blank(old):
            copies = [value for value in same if _is_copy(value, old, turned=False)]
            heads = [value for value in turned if value not in copies and _is_copy(value, old, turned=True)]
        else:
            copies, heads = [], _heads(constants[name], turned, layers)
        made = [(value, graph.lazily(new, lambda w: w)) for value in copies]
        made += [(value, graph.lazily(new, lambda w: w.T, shape=shape[::-1])) for value in heads]
        for value, tensor in made:
            tensor.name = value.name
            value.const_value = tensor
            rest.remove(value)


def store_once(placed: Sequence[tuple[str, Weight]], names: Names) -> None:
    """Let products read the transpose of a table of the same layer, where both are floats: runtimes make it when they
    load a model, and the file has the numbers once.

    Args:
        placed: layers and the weights that they were put into.
    """
    tables = {name: w for name, w in placed if w.node.op_type == "Gather" and w.role.index == 0}
    made: dict[ir.Value, ir.Value] = {}
    for name, weight in placed:
        if name not in tables or weight.node.op_type == "Gather" or weight.role.contraction != 0:
            continue
        table, matrix = (w.node.inputs[w.role.index] for w in (tables[name], weight))
        if table is None or matrix is None or table.graph is not weight.node.graph or not _is_transpose(matrix, table):
            continue
        if matrix not in made:
            own = names.fresh(f"{table.name}.T")
            made[matrix] = graph.add_node(weight.node, "Transpose", [table], own, own, {"perm": [1, 0]})
            made[matrix].type, made[matrix].shape = matrix.type, ir.Shape(weight.shape)
        weight.node.replace_input_with(weight.role.index, made[matrix])


def _is_transpose(matrix: ir.Value, table: ir.Value) -> bool:
    a, b = graph.constant(matrix), graph.constant(table)
    if a is None or b is None or a.dtype != b.dtype or a.dtype not in graph.FLOATS:
        return False
    return not any(isinstance(x, GivenTensor) for x in (a, b)) and np.array_equal(a.numpy(), b.numpy().T)


def are_words(rows: ir.Value | None) -> bool:
    """Whether rows that are looked up are an input of the model, be it in another shape or type, but not that
    of places, which a model mostly tells itself."""
    while rows is not None and (node := rows.producer()) is not None:
        if not graph.is_op(node, "Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Clip"):
            return False
        rows = node.inputs[0]
    return rows is not None and rows.is_graph_input() and "position" not in (rows.name or "")


def part(model: ir.Model, tensors: Mapping[str, Any], renamed: Renaming) -> None:
    """Make constants of copies of others by their names in the checkpoint: exporters keep equal ones once.

    Before training all norms are, and biases, and all of the layers that torch copies. What its exporters leave of each
    but one is an Identity of that, or nothing but the module, or the call, of the node that reads it. An Identity of a
    weight of products may have lost its name.

    Args:
        renamed: what a name of the model is in the checkpoint.
    """
    for node in list(graph.nodes(model)):
        tensor = graph.constant(node.inputs[0]) if graph.is_op(node, "Identity") else None
        value = node.outputs[0]
        if tensor is None or tensor.dtype not in graph.FLOATS or value.is_graph_output():
            continue
        if renamed(value.name or "") not in tensors and not _is_multiplied_by(value):
            assert node.inputs[0] is not None
            value.replace_all_uses_with(node.inputs[0])
            continue
        assert isinstance(node.graph, ir.Graph)
        name, value.name = value.name or "", None
        made = graph.add_constant(node.graph, name, graph.lazily(tensor, lambda w: w))
        value.replace_all_uses_with(made)
        node.graph.remove(node, safe=True)
    _part_by_readers(model, tensors, renamed)


def _is_multiplied_by(value: ir.Value) -> bool:
    return any(graph.is_op(use.node, "MatMul", "Gemm") and use.idx == 1 for use in value.uses())


def _part_by_readers(model: ir.Model, tensors: Mapping[str, Any], renamed: Renaming) -> None:
    """Let each node read the constant that its call, or its own module, has a tensor of the checkpoint for; a number of
    the program that another call names as a parameter becomes one of its own, which keeps its value."""
    calls, names, made = Calls(model, tensors, renamed, _PARTS), Names(model), dict[str, ir.Value]()
    readers = {value: len(value.uses()) for owner in graph.graphs(model) for value in owner.initializers.values()}
    read = [(node, i, each) for node in graph.nodes(model) for i, each in enumerate(node.inputs) if each in readers]
    known = {(node, i): calls.read(node, i) for node, i, value in read if readers[value] > 1}
    claimed = {value for node, i, value in read if value.name in (known.get((node, i)) or ())}
    for node, index, value in read:
        tensor, owner = graph.constant(value), value.graph
        if tensor is None or not isinstance(owner, ir.Graph):
            continue
        passed = known.get((node, index))
        if passed is not None and value.name in passed:
            continue
        if passed == [] and value in claimed and tensor.dtype in graph.FLOATS:
            own = graph.add_constant(owner, names.fresh("val"), graph.lazily(tensor, lambda w: w))
            node.replace_input_with(index, own)
            continue
        name = passed[0] if passed and len(passed) == 1 else _name_by_module(node, index, value, tensors, renamed)
        found = tensors.get(renamed(name))
        if not name or getattr(found, "shape", None) != _shape(tensor):
            continue
        is_its_own = value.name == name or (renamed(value.name or "") in tensors and readers[value] == 1)
        # An exporter folded something into a constant that no module has, such as 1 + the weight.
        is_computed = "." not in (value.name or "") and not passed
        if is_its_own or is_computed or (name in owner.initializers and name not in made):
            continue
        if name not in made:
            made[name] = graph.add_constant(owner, name, graph.lazily(tensor, lambda w: w))
        node.replace_input_with(index, made[name])


def _name_by_module(
    node: ir.Node, index: int, value: ir.Value, tensors: Mapping[str, Any], renamed: Callable[[str], str]
) -> str:
    """What the checkpoint may have for a constant in the module that reads it; "" if that has nothing."""
    module, last = module_of(node), (value.name or "").rpartition(".")[2]
    part = _PARTS.get((node.op_type, index), "")
    guess = {"Add": "bias", "Mul": "weight"}.get(node.op_type, "") if not node.domain else ""
    words = (part, last, guess)
    names = [f"{module}.{word}" for word in words if word and module]
    return next((each for each in names if renamed(each) in tensors), "")


def _shape(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(tensor.shape.numpy())


def _is_blank(tensor: ir.TensorProtocol) -> bool:
    return not np.ptp(tensor.numpy().astype(np.float32))


def _is_copy(value: ir.Value, old: ir.TensorProtocol, *, turned: bool) -> bool:
    assert value.const_value is not None
    a, b = value.const_value.numpy(), old.numpy().T if turned else old.numpy()
    return np.array_equal(a[0], b[0]) and np.array_equal(a, b)


def _heads(table: ir.Value, turned: list[ir.Value], layers: Collection[str]) -> list[ir.Value]:
    """The blank matrix that a product reads in a table's place, if there is one, and no layer is called like it."""
    if not any(graph.is_op(use.node, "Gather") and use.idx == 0 for use in table.uses()):
        return []
    read = [(value, [w for use in value.uses() for w in _products(use.node, value)]) for value in turned]
    matrices = [(value, weights) for value, weights in read if weights and _is_blank(weights[0].tensor)]
    if len(matrices) != 1:
        return []
    ((value, weights),) = matrices
    names = {name for weight in weights for name in names_of(weight)}
    return [] if names & set(layers) else [value]


def _products(node: ir.Node, value: ir.Value) -> list[Weight]:
    if not graph.is_op(node, "MatMul", "Gemm"):
        return []
    return [w for w in weights_of(node, least=1) if w.value is value and w.role.index == 1]
