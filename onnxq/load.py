"""Step 1: read a model, leaving external weights on disk, or say in one sentence why it cannot be read."""

from __future__ import annotations

from pathlib import Path

import google.protobuf.message
import onnx
import onnx_ir as ir

from onnxq import graph
from onnxq.errors import BadModel, OnnxqError


def load_model(path: str | Path) -> ir.Model:
    """The model at `path`; external tensors are mapped only when something reads them.

    Raises:
        BadModel: no such file, not ONNX, truncated, external data missing, too short or outside the model's folder.
    """
    path = Path(path)
    if not path.is_file():
        raise BadModel(f"{path}: no such file" if not path.exists() else f"{path} is not a file")
    try:
        model = ir.load(path)
    except google.protobuf.message.DecodeError:
        raise BadModel(f"{path} is not an ONNX model, or is cut short: it does not parse as protobuf") from None
    except OSError as error:
        raise BadModel(f"{path} cannot be read: {error.strerror}") from None
    except (onnx.checker.ValidationError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise BadModel(f"{path} is not a legal ONNX model: {first_line(error)}") from None
    if not len(model.graph) and not model.graph.outputs:
        raise BadModel(f"{path} is not an ONNX model: it has neither nodes nor outputs")
    for tensor in external_tensors(model):
        tensor.base_dir = path.parent  # onnx_ir leaves it out in local functions
        _check_external(path, tensor)
    _check_acyclic(path, model)
    return model


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, for use inside a sentence of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
    try:
        tensor._check_path_containment()  # what onnx_ir does when it first maps the tensor
    except ValueError as error:
        raise BadModel(f"{path}: weight '{tensor.name}' is refused: {first_line(error)}") from None
    if not where.is_file():
        raise BadModel(f"{path} needs the data file {where}, which is not there; put it beside the model")
    end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    if where.stat().st_size < end:
        raise BadModel(
            f"{where} is cut short: weight '{tensor.name}' ends at byte {end}, the file has {where.stat().st_size}"
        )


def _check_acyclic(path: Path, model: ir.Model) -> None:
    for each in graph.graphs(model):
        produced = {id(value) for value in (*each.inputs, *each.initializers.values())}
        try:
            each.sort()
        except ValueError:
            raise BadModel(f"{path}: the graph '{each.name}' has a cycle, so it cannot be executed") from None
        for node in each:
            produced.update(id(output) for output in node.outputs)
        for output in each.outputs:
            if each is model.graph and id(output) not in produced:
                raise BadModel(f"{path}: output '{output.name}' is produced by no node")


def is_quantized(model: ir.Model) -> str | None:
    """What shows that the model's activations are quantized already, as words for a sentence; None if nothing does."""
    integer = {"QLinearConv", "QLinearMatMul", "MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"}
    found: dict[str, int] = {}
    for node in graph.nodes(model):
        quantizes = node.op_type == "QuantizeLinear" and graph.constant(node.inputs[0]) is None
        contrib = node.domain == graph.MICROSOFT and node.op_type.startswith(("QLinear", "QGemm", "DynamicQuantize"))
        if quantizes or contrib or (node.domain == "" and node.op_type in integer):
            found[node.op_type] = found.get(node.op_type, 0) + 1
    return ", ".join(f"{count} {op}" for op, count in found.items()) or None


__all__ = ["OnnxqError", "external_tensors", "first_line", "is_quantized", "load_model"]
