"""Rules of onnxruntime's optimizer that would change what a model computes, for a session's `disabled_optimizers`."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

#: They take any zero point for the least code: a Relu in front of what rounds to float8 is lost, negative numbers with
#: it, and where a Clip stands there the model is not opened (1.32).
_OF_INTEGERS = ("ReluQuantRewrite", "ClipQuantRewrite")
#: How the operator that rounds is called in a file.
_ROUNDING = "QuantizeLinear"
#: FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2 and FLOAT8E5M2FNUZ of TensorProto.DataType.
_FLOAT8 = frozenset(range(17, 21))
#: ONNX's number for a type that nobody says.
_UNKNOWN = 0


def wrong_rules(model: str | Path | bytes) -> tuple[str, ...]:
    """
    Args:
        model: the path of one, or a serialized one; what cannot be read has none.
    """
    try:
        if not _names_rounding(model):  # most have none, and weights are long to read
            return ()
        proto = _read(model)
        return _OF_INTEGERS if _Types(proto).in_graph(proto.graph, {}) else ()
    except Exception:  # onnxruntime says what is wrong with it
        return ()


def _names_rounding(model: str | Path | bytes) -> bool:
    word = _ROUNDING.encode()
    if isinstance(model, bytes):
        return word in model
    if not Path(model).is_file():
        return False
    with open(model, "rb") as file, contextlib.closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as raw:
        return raw.find(word) >= 0


def _read(model: str | Path | bytes) -> onnx.ModelProto:
    """By libraries that take a while to import: a model without that operator needs none of them."""
    import onnx

    from onnxq.runtime.own_files import model_files

    return onnx.load_model_from_string(model) if isinstance(model, bytes) else model_files.parsed(Path(model))


class _Types:
    """Looks for a QuantizeLinear that makes float8, or may, as nobody says what its zero point is.

    Functions are looked at with the types of what they are called with.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
        self.seen = set[tuple[object, ...]]()

    def in_graph(self, graph: onnx.GraphProto, outside: Mapping[str, int]) -> bool:
        types = {**outside, **{tensor.name: tensor.data_type for tensor in graph.initializer}}
        _add_declared((*graph.input, *graph.output, *graph.value_info), types)
        return self._in_nodes(graph.node, types)

    def _in_nodes(self, nodes: Iterable[onnx.NodeProto], types: dict[str, int]) -> bool:
        for node in nodes:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                types[node.output[0]] = node.attribute[0].t.data_type
            if node.op_type == _ROUNDING and node.domain in ("", "ai.onnx") and _may_make_float8(node, types):
                return True
            for attribute in node.attribute:
                bodies = [attribute.g] if attribute.HasField("g") else attribute.graphs
                if any(self.in_graph(body, types) for body in bodies):
                    return True
            if self._in_function(node, types):
                return True
        return False

    def _in_function(self, node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
        name = (node.domain, node.op_type, node.overload)
        called = self.functions.get(name)
        given = tuple(types.get(each, _UNKNOWN) for each in node.input)
        if called is None or (*name, given) in self.seen:
            return False
        self.seen.add((*name, given))
        inside = dict(zip(called.input, given, strict=False))
        _add_declared(called.value_info, inside)
        return self._in_nodes(called.node, inside)


def _add_declared(values: Iterable[onnx.ValueInfoProto], types: dict[str, int]) -> None:
    for value in values:
        if value.type.HasField("tensor_type"):
            types.setdefault(value.name, value.type.tensor_type.elem_type)


def _may_make_float8(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    zero = node.input[2] if len(node.input) > 2 else ""
    said = [each for each in node.attribute if each.name == "output_dtype"]
    if any(each.i in _FLOAT8 or each.ref_attr_name for each in said):
        return True
    known = {types.get(name, _UNKNOWN) for name in (zero, node.output[0]) if name} - {_UNKNOWN}
    return not _FLOAT8.isdisjoint(known) or bool(zero and not known)
