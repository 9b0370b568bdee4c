"""Step 1: read a model, leaving external weights on disk, or say in one sentence why it cannot be read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import google.protobuf.message
import onnx
import onnx_ir as ir

from onnxq import boundary, own_ops
from onnxq.errors import BadModel, first_line, root_cause
from onnxq.files import guard, limits
from onnxq.files.ranged import admit
from onnxq.model import graph
from onnxq.model.legal import require_legal
from onnxq.model.scopes import require_values
from onnxq.runtime import supervisor
from onnxq.runtime.ort.refusals import why_refused
from onnxq.runtime.own_files import model_files
from onnxq.runtime.own_files.other_kinds import what_else

#: Key of an input's or output's metadata: its type in words, where it is one that onnx_ir does not know.
TYPE = "onnxq.type"
#: In what onnxq says of a model that it wrote: that it is in floats, the key beside the one of `dequantize`.
FLOAT = "float"
boundary.judges.append(why_refused)


def load_model(path: str | Path, *, to_look_at: bool = False) -> ir.Model:
    """The model at `path`; external tensors are mapped only when something reads them.

    Args:
        to_look_at: take models that can be shown but not quantized: that read maps, or of opsets not known yet.

    Raises:
        BadModel: no such file, not ONNX, truncated, external data missing, too short or outside the model's folder.
    """
    path = Path(path)
    supervisor.doing(f"reading {path}")
    if limits.require_file(path) > limits.MODEL_BYTES:
        raise _none(path, "is longer than 2 GB, which no ONNX model is: large weights lie in files of their own")
    proto = _parsed(path)
    if not to_look_at:
        _refuse_maps(path, proto.graph)
    try:
        name_maps(proto.graph)
    except ValueError as error:
        raise BadModel(f"'{path}' is not a legal ONNX model: {first_line(error)}") from None
    if not proto.graph.node and not proto.graph.output:
        raise _none(path, "is not an ONNX model: it has neither nodes nor outputs")
    require_legal(proto, path, any_opset=to_look_at)
    require_values(proto, path)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # whatever onnx_ir stumbles over
        raise BadModel(f"'{path}' is not a legal ONNX model: {_why(error)}") from None
    outside = external_tensors(model)
    for tensor in outside:
        tensor.base_dir = path.parent  # onnx_ir leaves it out in local functions
        admit(tensor)
    guard.remember({tensor.path for tensor in outside})
    _check_order(path, model)
    return model


def _parsed(path: Path) -> onnx.ModelProto:
    """The file as protobuf, or as JSON or text where its name says so."""
    try:
        # By its name onnxruntime takes it for one of its own, even where it parses as protobuf.
        parsed = None if model_files.is_ort(path) else model_files.parsed(path)
    except google.protobuf.message.DecodeError:
        if not model_files.says_ort(path):
            raise _none(path, "is not an ONNX model, or is cut short: it does not parse as protobuf") from None
        parsed = None
    except OSError as error:
        raise BadModel(f"'{path}' cannot be read: {error.strerror}") from None
    except RecursionError:
        raise BadModel(f"'{path}' is nested too deeply to be read") from None
    except Exception as error:  # the parsers of JSON and text have no exceptions in common
        kind = path.suffix.removeprefix(".") or "protobuf"
        raise BadModel(f"'{path}' is not an ONNX model: it does not parse as {kind}: {first_line(error)}") from None
    if parsed is None:
        raise BadModel(
            f"'{path}' is in onnxruntime's own format, which only onnxruntime reads: give the .onnx that it was made of"
        )
    return parsed


def _none(path: Path, why: str) -> BadModel:
    """Of a file that is no model: what else it is, where that can be told, else `why` it is none."""
    return BadModel(f"'{path}' {what_else(path) or why}")


def _why(error: Exception) -> str:
    """What onnx_ir says, without what it was doing at the time."""
    cause = root_cause(error)
    return f"{cause} is not known" if isinstance(cause, KeyError) else first_line(cause)


def _refuse_maps(path: Path, main: onnx.GraphProto) -> None:
    for value in main.input:
        if _holds_map(value.type):
            raise BadModel(
                f"'{path}': the input '{value.name}' is a map, which samples are not; give a model that takes arrays"
            )


def _holds_map(type: onnx.TypeProto) -> bool:
    which = type.WhichOneof("value")
    return which == "map_type" or (
        which in ("sequence_type", "optional_type") and _holds_map(getattr(type, which).elem_type)
    )


def name_maps(main: onnx.GraphProto) -> None:
    """Put words in the place of types that hold maps, of outputs of the graph and of what goes in.

    Raises:
        ValueError: of maps of what ONNX does not know.
    """
    for value in (*main.input, *main.output):
        for entry in [entry for entry in value.metadata_props if entry.key == TYPE]:
            value.metadata_props.remove(entry)
        if _holds_map(value.type):
            value.metadata_props.add(key=TYPE, value=_type_in_words(value.type))
            value.ClearField("type")
    for value in [value for value in main.value_info if _holds_map(value.type)]:
        main.value_info.remove(value)


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as protobuf, with the types that hold maps."""
    proto = ir.to_proto(model)
    for value in proto.graph.output:
        said = [entry for entry in value.metadata_props if entry.key == TYPE]
        for entry in said:
            value.type.CopyFrom(_type_of_words(entry.value))
            value.metadata_props.remove(entry)
    return proto


def load_written(path: Path) -> ir.Model:
    """A model that onnxq or onnxruntime wrote, as it is: nothing is checked."""
    proto = onnx.load(path, load_external_data=False)
    name_maps(proto.graph)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _type_in_words(type: onnx.TypeProto) -> str:
    if type.HasField("map_type"):
        key = ir.DataType(type.map_type.key_type).name.lower()
        return f"map({key}, {_type_in_words(type.map_type.value_type)})"
    for kind in ("sequence", "optional"):
        if type.HasField(f"{kind}_type"):
            return f"{kind}({_type_in_words(getattr(type, f'{kind}_type').elem_type)})"
    return ir.DataType(type.tensor_type.elem_type).name.lower()


def _type_of_words(words: str) -> onnx.TypeProto:
    """What `_type_in_words` says."""
    kind, _, rest = words.removesuffix(")").partition("(")
    if kind in ("sequence", "optional"):
        make = onnx.helper.make_sequence_type_proto if kind == "sequence" else onnx.helper.make_optional_type_proto
        return make(_type_of_words(rest))
    if kind == "map":
        key, _, inner = rest.partition(", ")
        return onnx.helper.make_map_type_proto(int(ir.DataType[key.upper()]), _type_of_words(inner))
    return onnx.helper.make_tensor_type_proto(int(ir.DataType[kind.upper()]), ())


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Every tensor whose bytes lie beside the model: initializers of all graphs and attributes of all nodes."""
    found: list[object] = []
    own_ops: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for body in own_ops:
        graphs = [body] if isinstance(body, ir.Graph) else []
        for node in body.all_nodes():
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.GRAPH:
                    graphs.append(attribute.as_graph())
                elif attribute.type == ir.AttributeType.GRAPHS:
                    graphs += attribute.as_graphs()
                elif attribute.type == ir.AttributeType.TENSOR:
                    found.append(attribute.value)
                elif attribute.type == ir.AttributeType.TENSORS:
                    found += attribute.as_tensors()
        found += [value.const_value for each in graphs for value in each.initializers.values()]
    return [tensor for tensor in found if isinstance(tensor, ir.ExternalTensor)]


def _check_order(path: Path, model: ir.Model) -> None:
    """Nodes are put in an order in which they can run, in functions too: these become nodes of the graph."""
    bodies: list[ir.Graph | ir.Function] = [*graph.graphs(model), *model.functions.values()]
    for each in bodies:
        try:
            each.sort()
        except ValueError:
            what = f"the graph '{each.name}'" if isinstance(each, ir.Graph) else f"the function '{each.name}'"
            raise BadModel(f"'{path}': {what} has a cycle, so it cannot be executed") from None


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
        if quantizes or is_contrib or node.domain == own_ops.DOMAIN or (node.domain == "" and node.op_type in standard):
            found[node.op_type] += 1
    if not found and _says_quantized(model):
        return "by onnxq"
    return ", ".join(f"{count} {op}" for op, count in found.items()) or None


def _says_quantized(model: ir.Model) -> bool:
    """Whether onnxq has written the model, and not as one in floats."""
    said = model.metadata_props.get("onnxq")
    try:
        found = None if said is None else limits.parse_json(said)
    except ValueError:
        return True
    return said is not None and not (isinstance(found, dict) and {FLOAT, "dequantized"} & found.keys())


def said_of_floats(model: ir.Model) -> dict[str, object]:
    """What onnxq is to say of a model that it made of another one, if nothing in it is quantized now or was before."""
    has_codes = any(graph.is_op(node, "DequantizeLinear") for node in graph.nodes(model))
    return {} if has_codes or is_quantized(model) else {FLOAT: True}
