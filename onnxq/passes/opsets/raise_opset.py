"""The version of the standard operators is raised by ONNX's own converter, never by changing the number alone.

Where it changes what is computed, `_meanings` sees to it that it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir
from onnx import version_converter

from onnxq import own_ops
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel, first_line
from onnxq.files.ranged import admit
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.load import external_tensors, name_maps
from onnxq.model.origin import ADDED, CALL, LIES, MODULE, SCOPES
from onnxq.passes.opsets import _meanings
from onnxq.runtime import supervisor

#: Constants of more bytes than this are kept from the converter: it needs small ones only (shapes, axes, bounds) and
#: cannot take models over 2 GB.
SMALL_BYTES = 1 << 12
#: IR version that opsets below and from 21 on were released with.
_LEAST_IR = (7, 10)


class RaiseOpset(ir.passes.InPlacePass):
    """Convert the graph to opset `version` if it is written in a lower one.

    The converter's shape annotations are dropped: some runtimes refuse a model for them. Bodies of our own operators
    are raised too: islands of a model as the model itself, all others are written alike for any version.

    Raises (as the cause of an `onnx_ir` PassError):
        BadModel: the converter does not know the way; the model is as before.
    """

    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        opset = graph.opset(model)
        if opset >= self.version:
            return ir.passes.PassResult(model, modified=False)
        supervisor.doing("onnx converted the model to another opset")
        older = [f for f in _own_functions(model) if f.opset_imports.get("", self.version) < self.version]
        islands = [self._raised(function, model) for function in older if function.name in own_ops.ISLANDS]
        try:
            _meanings.require_known(model, self.version)
            _meanings.before(graph.nodes(model), Names(model), opset, self.version)
            numbers = _meanings.types_of_numbers(model, opset)
            through_protobuf(model, lambda proto: version_converter.convert_version(proto, self.version))
            _meanings.after(model, opset, numbers)
        except Exception as error:  # the converter raises whatever its C++ core throws
            why = first_line(error).rpartition(": ")[2]
            raise BadModel(f"ONNX's converter cannot raise opset {opset} to {self.version}: {why}") from None
        for function in older:
            function.opset_imports[""] = self.version
        model.functions.update({function.identifier(): function for function in islands})
        return ir.passes.PassResult(model, modified=True)

    def _raised(self, function: ir.Function, model: ir.Model) -> ir.Function:
        copy = ir.serde.deserialize_function(ir.serde.serialize_function(function))
        body = ir.Model(copy.graph, ir_version=model.ir_version)
        self.call(body)
        for name in list(body.graph.initializers):  # functions have none
            value = body.graph.initializers.pop(name)
            constant = ir.node("Constant", [], {"value": value.const_value}, name=name)
            body.graph.insert_before(body.graph[0], constant)
            graph.replace_value(value, constant.outputs[0])
        return ir.Function(*function.identifier(), graph=body.graph, attributes=tuple(copy.attributes.values()))


def through_protobuf(model: ir.Model, convert: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """Make `convert(model)` the graph of `model`. What it raises is passed on; the model is then as before.

    Tensors beside the model stay there, but for small ones: the converter reads those, and no files. Weights that know
    their codes still do, and constants where they came from.
    """
    _read_small_constants(model)
    given = {v.name: v.const_value for v in _initializers(model) if isinstance(v.const_value, GivenTensor)}
    known = {value.name: value.meta for value in _initializers(model) if value.meta}
    folder = next((tensor.base_dir for tensor in external_tensors(model)), "")
    large = _take_large_constants(model)
    try:
        proto = ir.to_proto(model)
    finally:
        for value, tensor in large.items():
            value.const_value = tensor
    for value in large:
        proto.graph.input.append(ir.serde.serialize_value(value))
    try:
        converted = convert(proto)
    except Exception:
        for value in large:
            model.graph.register_initializer(value)
        raise
    _put_back(model, converted, {value.name or "": tensor for value, tensor in large.items()})
    for value in _initializers(model) if given or known else ():
        value.const_value = given.get(value.name, value.const_value)
        value.meta.update(known.get(value.name, {}))
    for tensor in external_tensors(model):
        tensor.base_dir = folder  # protobuf does not hold it
        admit(tensor)


def _place(node: ir.Node) -> tuple[str | None, ...]:
    return node.op_type, *(value.name for value in node.outputs)


def _own_functions(model: ir.Model) -> list[ir.Function]:
    return [function for function in model.functions.values() if function.domain == own_ops.DOMAIN]


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for each in model.graphs():
        yield from each.initializers.values()


def _read_small_constants(model: ir.Model) -> None:
    for value in _initializers(model):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= SMALL_BYTES:
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)


def _take_large_constants(model: ir.Model) -> dict[ir.Value, ir.TensorProtocol]:
    """Large initializers of the main graph, taken out of it."""
    taken: dict[ir.Value, ir.TensorProtocol] = {}
    listed = {value.name for value in model.graph.inputs}
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > SMALL_BYTES and value.name not in listed:
            value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
            taken[value] = tensor
            model.graph.initializers.pop(value.name or "")
    return taken


def _put_back(model: ir.Model, converted: onnx.ModelProto, large: dict[str, ir.TensorProtocol]) -> None:
    """Make `converted` the graph of `model`, with the constants that were kept from the converter."""
    del converted.graph.value_info[:]
    name_maps(converted.graph)
    raised = ir.from_proto(converted).graph
    for value in [value for value in raised.inputs if value.name in large]:
        raised.inputs.remove(value)
        value.const_value = large[value.name or ""]
        raised.register_initializer(value)
    # The shapes it found at the interface are not what the model's author declared.
    for old, new in zip((*model.graph.inputs, *model.graph.outputs), (*raised.inputs, *raised.outputs), strict=True):
        new.type, new.shape = old.type, old.shape
        new.metadata_props.update(old.metadata_props)
    said = {
        (_place(node), key): node.metadata_props[key]
        for node in graph.nodes(model)
        for key in (SCOPES, MODULE, LIES)
        if key in node.metadata_props
    }
    noted = {
        (_place(node), key): found
        for node in graph.nodes(model)
        for key in (CALL, ADDED)
        if (found := node.meta.get(key) or node.metadata_props.get(key))
    }
    model.graph = raised
    for node in graph.nodes(model) if said or noted else ():  # the converter drops what is said of nodes
        node.meta.update({key: noted[_place(node), key] for key in (CALL, ADDED) if (_place(node), key) in noted})
        for key in (SCOPES, MODULE, LIES):
            if (_place(node), key) in said:
                node.metadata_props[key] = said[_place(node), key]
    model.ir_version = max(model.ir_version, _LEAST_IR[graph.opset(model) >= 21])
