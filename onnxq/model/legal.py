"""Whether a model is one that the other steps can rely on, before anything is built from it.

What is looked at: names, types, the inputs and attributes that operators must have, every tensor (`tensor_protos.py`),
how deeply subgraphs nest, and how many nodes there are once local functions are inlined. All of it costs less than
reading the model, and none of it depends on libraries that trust what they are given.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import defs

from onnxq.errors import BadModel, amount
from onnxq.files import limits
from onnxq.model.operators import body_sizes, operator
from onnxq.model.tensor_protos import TensorDoor
from onnxq.model.work import key_of, require_few_nodes, require_short_shapes

Opsets = dict[str, int]
_Attribute = onnx.AttributeProto
#: The field that holds an attribute of each type.
_PAYLOADS = {
    _Attribute.FLOAT: "f",
    _Attribute.INT: "i",
    _Attribute.STRING: "s",
    _Attribute.TENSOR: "t",
    _Attribute.GRAPH: "g",
    _Attribute.SPARSE_TENSOR: "sparse_tensor",
    _Attribute.TYPE_PROTO: "tp",
    _Attribute.FLOATS: "floats",
    _Attribute.INTS: "ints",
    _Attribute.STRINGS: "strings",
    _Attribute.TENSORS: "tensors",
    _Attribute.GRAPHS: "graphs",
    _Attribute.SPARSE_TENSORS: "sparse_tensors",
    _Attribute.TYPE_PROTOS: "type_protos",
}
_ONNX = ("", "ai.onnx")
#: Attributes by which channels or places are divided.
_DIVISORS = ("group", "num_groups", "blocksize")


def require_legal(proto: onnx.ModelProto, path: Path, *, any_opset: bool = False) -> None:
    """Check everything, make ordinary tensors of sparse ones, and forget impossible dimensions of values.

    Raises:
        BadModel: what is wrong, in one sentence.
    """
    Legality(proto, path).check(any_opset=any_opset)


class Legality:
    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self.proto, self.path, self.door = proto, path, TensorDoor(path)
        self.in_function = False
        self.functions = {key_of(f) for f in proto.functions}

    def check(self, *, any_opset: bool) -> None:
        p = self.proto
        self._texts(p.producer_name, p.producer_version, p.domain, p.doc_string)
        self._names(*(each.domain for body in (p, *p.functions) for each in body.opset_import))
        self._entries(p.metadata_props)
        opsets = _opsets(p)
        newest = defs.onnx_opset_version()
        for version in (each.get("", 1) for each in (opsets, *map(_opsets, self.proto.functions))):
            if not 0 < version <= newest and not any_opset:
                raise BadModel(
                    f"'{self.path}' uses opset {version}; onnx {onnx.__version__} knows opsets up to {newest}"
                )
        self._graph(self.proto.graph, opsets)
        for function in self.proto.functions:
            self._names(function.name, function.domain, *function.input, *function.output, *function.attribute)
            own = opsets | _opsets(function)
            self._texts(function.doc_string)
            self._entries(function.metadata_props)
            self._attributes(function.attribute_proto, f"function '{function.name}'", own)
            self._values(function.value_info)
            self.in_function = True
            for node in function.node:
                self._node(node, own)
            self.in_function = False
        for training in self.proto.training_info:
            self._graph(training.initialization, opsets)
            self._graph(training.algorithm, opsets)
        require_few_nodes(self.proto, self.path)
        require_short_shapes(self.proto, self.path)

    def _graph(self, body: onnx.GraphProto, opsets: Opsets) -> None:
        self._names(body.name)
        self._texts(body.doc_string)
        self._entries(body.metadata_props)
        self._values((*body.input, *body.output, *body.value_info))
        if not all(value.name for value in body.input):
            raise self._bad(f"an input of graph '{body.name}' has no name")
        for tensor in body.initializer:
            self._names(tensor.name)
            self._texts(tensor.doc_string)
            self.door.check(tensor, "the graph")
        for sparse in body.sparse_initializer:
            self._names(sparse.values.name)
            body.initializer.append(self.door.dense(sparse, f"graph '{body.name}'"))
        del body.sparse_initializer[:]
        for annotation in body.quantization_annotation:
            pairs = (text for entry in annotation.quant_parameter_tensor_names for text in (entry.key, entry.value))
            self._names(annotation.tensor_name, *pairs)
        for node in body.node:
            self._node(node, opsets)

    def _node(self, node: onnx.NodeProto, opsets: Opsets) -> None:
        self._names(node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
        self._texts(node.doc_string)
        self._entries(node.metadata_props)
        where = f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"
        self._attributes(node.attribute, where, opsets)
        if key_of(node) in self.functions:
            return
        domain = _domain(node.domain)
        known = operator(node.op_type, opsets.get(domain, 1), domain)
        if known is None:
            return
        # Fewer outputs than there are formally are those of the end that nobody reads.
        if len(node.input) < known.inputs[0] or len(node.output) < known.outputs[0]:
            raise self._bad(
                f"{where} has {_ends(node)}; the operator has at least {known.inputs[0]} and {known.outputs[0]}"
            )
        if len(node.input) > known.inputs[1] or len(node.output) > known.outputs[1]:
            raise self._bad(f"{where} has more inputs or outputs than the operator")
        for i, name in known.needed:
            if i < len(node.input) and not node.input[i]:
                raise self._bad(f"{where} lacks its input '{name}'")
        if not all(node.output[: known.outputs[0]]):
            raise self._bad(f"{where} lacks an output")
        parts = next((a.i for a in node.attribute if a.name == "num_outputs" and not a.ref_attr_name), len(node.output))
        if node.op_type == "Split" and parts < len(node.output):  # onnx's shape inference aborts on it
            raise self._bad(f"{where} has {len(node.output)} outputs, but splits into {parts}")
        self._bodies(node, opsets.get(domain, 1), where)
        for attribute in node.attribute:
            kind = _Attribute.AttributeType.Name(attribute.type)
            wanted = known.attributes.get(attribute.name, kind)
            if kind != wanted:
                raise self._bad(f"{where}: attribute '{attribute.name}' is of type {kind}, not {wanted}")
            if attribute.name in _DIVISORS and kind == "INT" and attribute.i < 1 and not attribute.ref_attr_name:
                raise self._bad(f"{where}: attribute '{attribute.name}' is {attribute.i}, but must be at least 1")

    def _bodies(self, node: onnx.NodeProto, version: int, where: str) -> None:
        """Whoever follows values into subgraphs and out of them counts on as many as the node has."""
        if (sizes := body_sizes(node, version)) is None:
            return
        for attribute in node.attribute:
            given, made = len(attribute.g.input), len(attribute.g.output)
            if attribute.type == _Attribute.GRAPH and (made != sizes[1] or sizes[0] not in (None, given)):
                body = f"'{attribute.name}' of {amount(given, 'input')} and {amount(made, 'output')}"
                raise self._bad(f"{where} has {_ends(node)}, which its {body} is not for")
            is_count = attribute.name == "num_scan_inputs" and attribute.type == _Attribute.INT
            if is_count and not attribute.ref_attr_name and not 1 <= attribute.i <= len(node.input):
                raise self._bad(f"{where} cannot scan {attribute.i} of its {amount(len(node.input), 'input')}")

    def _attributes(self, attributes: Iterable[onnx.AttributeProto], where: str, opsets: Opsets) -> None:
        for attribute in attributes:
            self._names(attribute.name, attribute.ref_attr_name)
            self._texts(attribute.doc_string)
            if attribute.type == _Attribute.UNDEFINED:  # as the first versions of ONNX wrote them
                filled = [kind for kind, field in _PAYLOADS.items() if _is_filled(attribute, field)]
                if len(filled) != 1:
                    raise self._bad(f"{where}: attribute '{attribute.name}' has no type")
                attribute.type = filled[0]
            if attribute.ref_attr_name:
                if not self.in_function or attribute.type in (_Attribute.GRAPH, _Attribute.GRAPHS):
                    raise self._bad(f"{where}: '{attribute.name}' refers to an attribute that no function could have")
                continue
            self._attribute(attribute, where, opsets)

    def _attribute(self, attribute: onnx.AttributeProto, where: str, opsets: Opsets) -> None:
        name = f"attribute '{attribute.name}' of {where}"
        for field in ("t", "g", "sparse_tensor", "tp"):  # data that the type does not speak of, others might read
            if attribute.HasField(field) and _PAYLOADS[attribute.type] != field:
                raise self._bad(f"{name} is of another type than what it holds")
        for field in ("tensors", "graphs", "sparse_tensors", "type_protos"):
            if len(getattr(attribute, field)) and _PAYLOADS[attribute.type] != field:
                raise self._bad(f"{name} is of another type than what it holds")
        if attribute.type == _Attribute.TENSOR:
            self.door.check(attribute.t, name)
        elif attribute.type == _Attribute.TENSORS:
            for tensor in attribute.tensors:
                self.door.check(tensor, name)
        elif attribute.type == _Attribute.SPARSE_TENSOR:
            dense = self.door.dense(attribute.sparse_tensor, name)
            attribute.ClearField("sparse_tensor")
            attribute.t.CopyFrom(dense)
            attribute.type = _Attribute.TENSOR
            attribute.name = "value" if attribute.name == "sparse_value" else attribute.name
        elif attribute.type == _Attribute.SPARSE_TENSORS:
            raise self._bad(f"{name} is a list of sparse tensors, which onnxq cannot read")
        elif attribute.type == _Attribute.GRAPH:
            self._graph(attribute.g, opsets)
        elif attribute.type == _Attribute.GRAPHS:
            for body in attribute.graphs:
                self._graph(body, opsets)
        elif attribute.type == _Attribute.STRINGS:
            try:
                for text in attribute.strings:
                    text.decode("utf-8")
            except UnicodeDecodeError:
                raise self._bad(f"{name} is not text in UTF-8") from None

    def _values(self, values: Iterable[onnx.ValueInfoProto]) -> None:
        for value in values:
            self._names(value.name)
            self._texts(value.doc_string, value.type.denotation)
            self._entries(value.metadata_props)
            self._type(value.type, value.name)

    def _type(self, kind: onnx.TypeProto, name: str) -> None:
        which = kind.WhichOneof("value")
        if which in ("sequence_type", "optional_type"):
            self._type(getattr(kind, which).elem_type, name)
        if which not in ("tensor_type", "sparse_tensor_type"):
            return
        tensor = getattr(kind, which)
        if tensor.elem_type not in onnx.TensorProto.DataType.values():
            raise self._bad(f"value '{name}' has element type {tensor.elem_type}, which ONNX does not know")
        for dim in tensor.shape.dim:
            self._names(dim.dim_param)
            self._texts(dim.denotation)
            if dim.HasField("dim_value") and not 0 <= dim.dim_value <= limits.DIMENSION:
                dim.ClearField("dim_value")  # onnx's shape inference aborts on some of them; -1 means unknown to many

    def _names(self, *names: str | bytes) -> None:
        for name in names:
            if isinstance(name, bytes):  # what protobuf gives for strings that are none
                raise self._bad(f"the name {name[:40]!r} is not text in UTF-8")
            if "\0" in name:
                raise self._bad(f"the name {name[:40]!r} holds a null character")
            if fault := limits.fault_of_name(name):
                raise self._bad(fault)

    def _texts(self, *texts: str | bytes) -> None:
        """What may be as long as it likes."""
        for text in texts:
            if isinstance(text, bytes):
                raise self._bad(f"the text {text[:40]!r} is not in UTF-8")

    def _entries(self, entries: Iterable[onnx.StringStringEntryProto]) -> None:
        for entry in entries:
            self._texts(entry.key, entry.value)

    def _bad(self, sentence: str) -> BadModel:
        return BadModel(f"'{self.path}': {sentence}")


def _opsets(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {_domain(each.domain): each.version for each in proto.opset_import}


def _ends(node: onnx.NodeProto) -> str:
    return f"{amount(len(node.input), 'input')} and {amount(len(node.output), 'output')}"


def _domain(domain: str) -> str:
    return "" if domain in _ONNX else domain


def _is_filled(attribute: onnx.AttributeProto, field: str) -> bool:
    found = getattr(attribute, field)
    return attribute.HasField(field) if field in ("f", "i", "s", "t", "g", "tp", "sparse_tensor") else len(found) > 0
