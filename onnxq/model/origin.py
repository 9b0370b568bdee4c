"""What is remembered of where a constant came from, in the `meta` of its value; and of a model, in its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import Weight, weights_of

#: The type that an initializer had in the file, in which it can be stored again without loss.
STORED_TYPE = "onnxq.stored_type"
#: Of a constant that was computed: the name in the file of the (largest) one that it was made from.
ORIGIN = "onnxq.origin"
#: Of a constant of a rewritten model that was made of a weight: the name of that in the prepared model.
SOURCE = "onnxq.source"
#: Of a constant that its reader has to find as such: it is not to be made of another one with the same bytes.
CONSTANT = "onnxq.constant"
#: Of one of which no other one is to be made either.
APART = "onnxq.apart"
#: Key of a folded constant's `meta`: whether it is nothing but the transpose of the matrix that `ORIGIN` names.
TURNED = "onnxq.turned"
#: Whether a constant is nothing but the one that `ORIGIN` names, in another type.
SAME = "onnxq.same"
#: Of a constant that some of the readers of another one have in its place: that one's name.
COPY = "onnxq.copy"
#: Of a model: its functions that were converted to its opset.
CONVERTED = "onnxq.converted"

#: How a weight of ours is called that lies the other way than the tensor of a checkpoint that it is of: a square with
#: the tensor's own name would be taken for that itself when another checkpoint is put in.
WEIGHT_TURNED = ".weight.T"

#: Key of the `meta` of a constant that was codes in the file.
RESTORED = "onnxq.restored"
#: Of one that the body of an operator of ours has, which is none of the model's.
OF_BODY = "onnxq.of_body"

#: Of a node: that it was made for a layer of a checkpoint, all of which it computes.
ADDED = "onnxq.added"
#: Of a node: what `SCOPES` said of it in the file. In files of ours its metadata say it under this key, shorter.
MODULE = "onnxq.module"
#: Key of the metadata in which torch's exporter lists the modules around a node, the operation last, in Python's words.
SCOPES = "pkg.torch.onnx.name_scopes"
#: Key of the metadata in which it says what was called, with what.
CALL = "pkg.torch.onnx.fx_node"

#: Of a node of ours that multiplies by codes: that the constant whose name they have lies as [inputs, outputs], which
#: the codes do not tell. Modules of torch have theirs the other way, but for GPT-2's Conv1D and users' own parameters.
LIES, BY_INPUTS = "onnxq.lies", "in, out"

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

_LOOKUP = "Gather"
#: How the names of operators begin that multiply by weights or look them up.
_PRODUCTS = (_LOOKUP, "MatMul", "Gemm", "DenseMatMul", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm")


def identity(value: ir.Value) -> str:
    """The same for a weight, its transpose, and both in other types."""
    is_same = value.meta.get(TURNED) or value.meta.get(SAME)
    return str(value.meta[ORIGIN]) if is_same else value.name or ""


def is_whole(value: ir.Value) -> bool:
    """Whether a constant is one of the file, be it in another type."""
    return not value.meta.get(ORIGIN) or bool(value.meta.get(SAME))


def module_of(node: ir.Node) -> str:
    """The module that a node computes, by torch's exporter; "" if that does not say it."""
    if known := node.meta.get(MODULE) or node.metadata_props.get(MODULE):
        return str(known)
    scopes = re.findall(r"'([^']*)'", node.metadata_props.get(SCOPES, ""))
    return scopes[-2] if len(scopes) > 1 else ""


def call_of(node: ir.Node) -> str:
    """What torch's exporter says that a node was called as; "" if it does not."""
    return str(node.metadata_props.get(CALL) or node.meta.get(CALL, ""))


def modules_of(model: ir.Model) -> dict[str, str]:
    """By the names of products by weights and of lookups, whatever form these have, the modules that they compute."""
    found = {}
    for node in graph.nodes(model):
        if node.op_type.startswith(_PRODUCTS) and node.name and (module := module_of(node)):
            operands = node.inputs[:1] if node.op_type.startswith(_LOOKUP) else node.inputs[:2]
            if any(value is not None and graph.is_of_constants(value) for value in operands):
                found[node.name] = module
    return found


def name_modules(model: ir.Model, modules: Mapping[str, str]) -> None:
    """Note down in a model's metadata which modules its nodes compute: what takes a node's place has its name."""
    for node in graph.nodes(model) if modules else ():
        module = modules.get(node.name or "")
        if module and SCOPES not in node.metadata_props:
            node.metadata_props[MODULE] = module


def lie_by_inputs(model: ir.Model) -> set[str]:
    """Names of products whose weight is called like a parameter of a module, and lies as [inputs, outputs]."""
    found = set[str]()
    for node in graph.nodes(model):
        own = weights_of(node) if graph.is_op(node, "MatMul", "Gemm") else ()
        if node.metadata_props.get(LIES) == BY_INPUTS or any(_lies_by_inputs(weight) for weight in own):
            found.add(node.name or "")
    return found


def _lies_by_inputs(weight: Weight) -> bool:
    """Whether it lies so in the file: neither turned nor put in from a checkpoint, which has it in its way."""
    name = weight.value.name or ""
    is_of_file = "." in name and not name.endswith(WEIGHT_TURNED) and not weight.value.meta.get(TURNED)
    is_matrix = len(weight.shape) == 2 and weight.role.index == 1 and weight.role.contraction == 0
    return is_matrix and is_of_file and not isinstance(weight.tensor, GivenTensor)


def name_lying(model: ir.Model, products: Collection[str]) -> None:
    """Note down in a model's metadata which products `lie_by_inputs` found, as far as their weight is in codes now, be
    they known as floats or not: what takes a node's place has its name."""
    for node in graph.nodes(model) if products else ():
        if node.name in products and all(_was_codes(weight) for weight in weights_of(node)):
            node.metadata_props[LIES] = BY_INPUTS


def _was_codes(weight: Weight) -> bool:
    return isinstance(weight.tensor, GivenTensor) or bool(weight.value.meta.get(RESTORED))


def inherit_type(made: ir.Value, source: ir.Value | None) -> None:
    """Let a constant that was computed from one of half precision be stored as such again: it has no more digits."""
    tensor = graph.constant(source)
    half = None if source is None or tensor is None else source.meta.get(STORED_TYPE) or tensor.dtype
    if half in HALVES and made.dtype is ir.DataType.FLOAT:
        made.meta[STORED_TYPE] = half


def renew(
    old: ir.Value, places: Sequence[tuple[ir.Node, int]], tensor: ir.TensorProtocol, suffix: str, names: Names
) -> None:
    """Let nodes read other numbers in a constant's place; where others read that too, in one with this suffix.

    Args:
        places: which of their inputs it is.
    """
    if set(old.uses()) <= set(places) and not old.is_graph_output():
        old.const_value = tensor
        return
    assert isinstance(old.graph, ir.Graph)
    value = graph.add_constant(old.graph, names.fresh(f"{old.name}{suffix}"), tensor)
    inherit_type(value, old)
    value.meta[COPY] = old.name
    for node, index in places:
        node.replace_input_with(index, value)
