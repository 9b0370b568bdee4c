"""Step 1: read a model, leaving external weights on disk, or say in one sentence why it cannot be read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import google.protobuf.message
import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from onnxq import bodies, graph
from onnxq.errors import BadModel, first_line, root_cause

#: Key of an input's or output's metadata: its type in words, where it is one that onnx_ir does not know.
TYPE = "onnxq.type"


def load_model(path: str | Path, *, to_look_at: bool = False) -> ir.Model:
    """The model at `path`; external tensors are mapped only when something reads them.

    Args:
        to_look_at: take models that can be shown but not quantized: with maps, or of opsets that are not known yet.

    Raises:
        BadModel: no such file, not ONNX, truncated, external data missing, too short or outside the model's folder.
    """
    path = Path(path)
    if not path.is_file():
        raise BadModel(f"{path}: no such file" if not path.exists() else f"{path} is not a file")
    try:
        proto = onnx.load(path, load_external_data=False)
        if to_look_at:
            _name_maps(proto.graph)
        _refuse_maps(path, proto.graph)
        _fill_in_zeros(proto.graph)  # onnx_ir knows no sparse initializers
        model = ir.from_proto(proto)
        ir.external_data.set_base_dir(model.graph, path.parent)
    except google.protobuf.message.DecodeError:
        raise BadModel(f"{path} is not an ONNX model, or is cut short: it does not parse as protobuf") from None
    except OSError as error:
        raise BadModel(f"{path} cannot be read: {error.strerror}") from None
    except (onnx.checker.ValidationError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise BadModel(f"{path} is not a legal ONNX model: {first_line(root_cause(error))}") from None
    if not len(model.graph) and not model.graph.outputs:
        raise BadModel(f"{path} is not an ONNX model: it has neither nodes nor outputs")
    newest = onnx.defs.onnx_opset_version()
    if graph.opset(model) > newest and not to_look_at:
        raise BadModel(f"{path} uses opset {graph.opset(model)}; onnx {onnx.__version__} knows opsets up to {newest}")
    for tensor in external_tensors(model):
        tensor.base_dir = path.parent  # onnx_ir leaves it out in local functions
        _check_external(path, tensor)
    _check_values(path, model)
    _check_order(path, model)
    return model


def _refuse_maps(path: Path, main: onnx.GraphProto) -> None:
    for value in (*main.input, *main.output):
        if "map_type" in str(value.type):
            raise BadModel(
                f"{path}: '{value.name}' is a map, which onnxq cannot read; export the model without maps "
                "(skl2onnx: zipmap=False)"
            )


def _name_maps(main: onnx.GraphProto) -> None:
    """Put words in the place of types that hold maps."""
    for value in (*main.input, *main.output):
        if "map_type" in str(value.type):
            value.metadata_props.add(key=TYPE, value=_type_in_words(value.type))
            value.ClearField("type")


def _type_in_words(type: onnx.TypeProto) -> str:
    if type.HasField("map_type"):
        key = ir.DataType(type.map_type.key_type).name.lower()
        return f"map({key}, {_type_in_words(type.map_type.value_type)})"
    if type.HasField("sequence_type"):
        return f"sequence({_type_in_words(type.sequence_type.elem_type)})"
    return ir.DataType(type.tensor_type.elem_type).name.lower()


def _fill_in_zeros(main: onnx.GraphProto) -> None:
    """Make ordinary initializers of sparse ones."""
    for sparse in main.sparse_initializer:
        values, indices = (onnx.numpy_helper.to_array(tensor) for tensor in (sparse.values, sparse.indices))
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        dense[np.unravel_index(indices, dense.shape) if indices.ndim == 1 else tuple(indices.T)] = values
        main.initializer.append(onnx.numpy_helper.from_array(dense, sparse.values.name))
    del main.sparse_initializer[:]


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Every tensor whose bytes lie beside the model: initializers of all graphs and attributes of all nodes."""
    found = [value.const_value for each in model.graphs() for value in each.initializers.values()]
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for attribute in (a for body in bodies for node in body.all_nodes() for a in node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            found.append(attribute.value)
    return [tensor for tensor in found if isinstance(tensor, ir.ExternalTensor)]


def _check_external(path: Path, tensor: ir.ExternalTensor) -> None:
    where = Path(tensor.path)
    if not where.resolve().is_relative_to(path.resolve().parent):
        raise BadModel(f"{path}: weight '{tensor.name}' lies in {where}, outside the model's folder; move it there")
    if not where.is_file():
        raise BadModel(f"{path} needs the data file {where}, which is not there; put it beside the model")
    end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    if where.stat().st_size < end:
        raise BadModel(
            f"{where} is cut short: weight '{tensor.name}' ends at byte {end}, the file has {where.stat().st_size}"
        )


def _check_values(path: Path, model: ir.Model) -> None:
    """Whatever is read has to be made somewhere."""

    def is_made(value: ir.Value) -> bool:
        return value.producer() is not None or value.is_graph_input() or value.is_initializer()

    for node in graph.nodes(model):
        for value in node.inputs:
            if value is not None and not is_made(value):
                raise BadModel(
                    f"{path}: node '{node.name or node.op_type}' ({node.op_type}) reads '{value.name}', "
                    "which nothing makes"
                )
    for output in model.graph.outputs:
        if not is_made(output):
            raise BadModel(f"{path}: output '{output.name}' is produced by no node")


def _check_order(path: Path, model: ir.Model) -> None:
    """Nodes are put in an order in which they can run."""
    for each in graph.graphs(model):
        try:
            each.sort()
        except ValueError:
            raise BadModel(f"{path}: the graph '{each.name}' has a cycle, so it cannot be executed") from None


def is_quantized(model: ir.Model) -> str | None:
    """What shows that the model is quantized already, as words for a sentence; None if nothing does.

    Constants behind a DequantizeLinear, or a pair of it and QuantizeLinear, are float weights, stored small.
    """
    standard = {"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "MatMulInteger", "ConvInteger"}
    contrib = ("QLinear", "QGemm", "QAttention", "QMoE", "DynamicQuantize", "MatMulNBits", "MatMulBnb4", "GatherBlock")
    found: Counter[str] = Counter()
    for node in graph.nodes(model):
        quantizes = node.op_type == "QuantizeLinear" and graph.constant(node.inputs[0]) is None
        is_contrib = node.domain == graph.MICROSOFT and node.op_type.startswith(contrib)
        if quantizes or is_contrib or node.domain == bodies.DOMAIN or (node.domain == "" and node.op_type in standard):
            found[node.op_type] += 1
    if not found and "onnxq" in model.metadata_props:
        return "by onnxq"
    return ", ".join(f"{count} {op}" for op, count in found.items()) or None
