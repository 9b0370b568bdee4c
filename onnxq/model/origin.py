"""What is remembered of where a constant came from, in the `meta` of its value."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from onnxq.model import graph

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

#: How a weight of ours is called that lies the other way than the tensor of a checkpoint that it is of: a square with
#: the tensor's own name would be taken for that itself when another checkpoint is put in.
WEIGHT_TURNED = ".weight.T"

#: Key of the `meta` of a constant that was codes in the file.
RESTORED = "onnxq.restored"

#: Of a node: what `SCOPES` said of it in the file. In files of ours its metadata say it under this key, shorter.
MODULE = "onnxq.module"
#: Key of the metadata in which torch's exporter lists the modules around a node, the operation last, in Python's words.
SCOPES = "pkg.torch.onnx.name_scopes"
#: Key of the metadata in which it says what was called, with what.
CALL = "pkg.torch.onnx.fx_node"

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

_LOOKUP = "Gather"
#: How the names of operators begin that multiply by weights or look them up.
_PRODUCTS = (_LOOKUP, "MatMul", "Gemm", "DenseMatMul", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm")


def module_of(node: ir.Node) -> str:
    """The module that a node computes, by torch's exporter; "" if that does not say it."""
    if known := node.meta.get(MODULE) or node.metadata_props.get(MODULE):
        return str(known)
    scopes = re.findall(r"'([^']*)'", node.metadata_props.get(SCOPES, ""))
    return scopes[-2] if len(scopes) > 1 else ""


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


def inherit_type(made: ir.Value, source: ir.Value | None) -> None:
    """Let a constant that was computed from one of half precision be stored as such again: it has no more digits."""
    tensor = graph.constant(source)
    half = None if source is None or tensor is None else source.meta.get(STORED_TYPE) or tensor.dtype
    if half in HALVES and made.dtype is ir.DataType.FLOAT:
        made.meta[STORED_TYPE] = half
