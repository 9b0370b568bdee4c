"""Subgraphs that contradict their nodes, and functions that refer to attributes: a kind of case for `mutants.py`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
from attack.generated import commands, values
from attack.generated.forms import named
from attack.generated.growth import FLOAT, Growth, begun, end
from attack.generated.operators import save_data, write
from attack.mutants_data import Case
from onnx import TensorProto, helper

#: What surrounds and fills subgraphs: operators that passes look at.
NAMES = (
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "LSTM", "GRU", "RNN", "Add", "Mul", "Div", "Einsum"),
    *("LayerNormalization", "BatchNormalization", "InstanceNormalization", "RMSNormalization", "Softmax", "Attention"),
    *("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "MatMulInteger", "MatMulNBits"),
    *("Reshape", "Transpose", "Concat", "Split", "Slice", "Pad", "Clip", "PRelu", "Where", "Expand", "Resize", "Tile"),
    *("MaxPool", "GlobalAveragePool", "RotaryEmbedding", "Cast", "CastLike", "Shape", "Squeeze", "Unsqueeze", "Range"),
    *("SequenceConstruct", "SequenceAt", "ConcatFromSequence", "SplitToSequence", "Optional", "OptionalGetElement"),
    *("ReduceMean", "CumSum", "TopK", "Flatten", "HardSigmoid", "Trilu", "OneHot", "NonZero", "ScatterND", "Identity"),
    *("ConstantOfShape", "Dropout", "Relu", "Gelu", "Swish", "TensorScatter", "DeformConv", "HannWindow", "STFT"),
    *("FusedMatMul", "SkipLayerNormalization", "MultiHeadAttention", "GroupQueryAttention", "QMoE", "QAttention"),
)
CONTROL = ("If", "Loop", "Scan", "SequenceMap")
#: Versions that a model or a function may be of.
VERSIONS = (9, 11, *range(13, 27))
_DEPTH = 2
#: Of a body of several nodes that are legal each, more are.
_WRONG = 0.03


def bodies(case: Case, folder: Path) -> list[str]:
    """A node with subgraphs for each seed, and one without; perhaps all of it in a function."""
    r = Random(case.command)
    kind = r.choice([TensorProto.FLOAT, *values.FLOATS])
    growth = begun(r, kind, _WRONG)
    growth.opset = r.choice(VERSIONS)
    for i, seed in enumerate(case.seeds[:3]):
        inner = Random(seed)
        _control(inner, growth, f"c{i}", inner.randrange(_DEPTH + 1))
        _plain(inner, growth, f"p{i}", _DEPTH, inner.randrange(2))
    end(r, growth, kind)
    functions = [_function(r, growth.graph)] if r.random() < 0.3 else []
    save_data(folder, growth.graph)
    versions = {"": growth.opset, "com.microsoft": 1, "local": 1, "ai.onnx.ml": 3}
    write(folder, growth.graph, versions, functions)
    return commands.of(case.command)


def _plain(r: Random, growth: Growth, tag: str, depth: int, count: int) -> None:
    for i in range(count):
        if depth and r.random() < 0.25:
            _control(r, growth, f"{tag}c{i}", depth - 1)
        else:
            growth.add(r, r.choice(named(r.choice(NAMES), growth.opset)), f"{tag}n{i}")


def _control(r: Random, growth: Growth, tag: str, depth: int) -> None:
    """A node with subgraphs, of whose inputs and outputs there are most often as many as the node asks for."""
    op, count, states = r.choice(CONTROL), r.randrange(1, 3), r.randrange(3)
    attributes: list[onnx.AttributeProto] = []
    inner: dict[str, tuple[int | None, int | None]]
    if op == "SequenceMap" and growth.opset < 17:
        op = "If"
    if op == "If":
        inputs = [growth.constant(r, f"{tag}c", TensorProto.BOOL, r.choice([(), (1,)]))]
        inner = {"then_branch": (r.choice([0] * 15 + [1]), count), "else_branch": (0, count)}
    elif op == "Loop":
        times = np.array(r.choice([0, 1, 2, 3, -1]))
        growth.graph.initializer.append(onnx.numpy_helper.from_array(times, f"{tag}n"))
        growth.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), f"{tag}k"))
        inputs = [r.choice([f"{tag}n"] * 5 + [""]), r.choice([f"{tag}k", ""])]
        inputs += [r.choice(growth.pool) for _ in range(states)]
        count = max(count, states)
        inner = {"body": (2 + states, 1 + count)}
    elif op == "Scan":
        scanned = r.randrange(1, 3)
        inputs = [r.choice(growth.pool) for _ in range(states + scanned)]
        attributes = _scanning(r, scanned)
        count = max(count, states)
        inner = {"body": (states + scanned, count)}
    else:
        sequence = helper.make_node("SequenceConstruct", growth.pool[:1] * 2, [f"{tag}s"])
        growth.graph.node.append(sequence)
        inputs = [f"{tag}s", *(r.choice(growth.pool) for _ in range(r.randrange(2)))]
        inner = {"body": (len(inputs), count)}
    node = onnx.NodeProto(op_type=op, name=r.choice([tag, ""]), input=inputs, attribute=attributes)
    node.output.extend(r.choice([f"{tag}o{i}"] * 40 + [""]) for i in range(count))
    for name, (takes, gives) in inner.items():
        body = _body(r, growth, f"{tag}{name[0]}", depth, (_perhaps(r, takes), _perhaps(r, gives)))
        if r.random() < 0.98:
            node.attribute.append(onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPH, g=body))
    growth.take(node, [(name, FLOAT) for name in node.output])


def _perhaps(r: Random, count: int | None) -> int | None:
    """None: as many as it happens."""
    return None if r.random() < 0.03 else count


def _scanning(r: Random, scanned: int) -> list[onnx.AttributeProto]:
    made = [helper.make_attribute("num_scan_inputs", r.choice([scanned] * 30 + [0, 5, -1]))]
    for name in ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"):
        if r.random() < 0.3:
            made.append(helper.make_attribute(name, [r.choice([0, 1, -1, 2, 9]) for _ in range(r.randrange(1, 4))]))
    return made


def _body(r: Random, outer: Growth, tag: str, depth: int, counts: tuple[int | None, int | None]) -> onnx.GraphProto:
    """A subgraph that reads what is around it, too, and gives back anything."""
    growth = Growth(onnx.GraphProto(name=r.choice(["b", "", tag])), list(outer.pool), _WRONG)
    growth.opset, growth.is_inner = outer.opset, True
    graph = growth.graph
    takes, gives = (r.randrange(1, 4) if count is None else count for count in counts)
    for i in range(takes):
        name = r.choice([f"{tag}in{i}"] * 30 + ["x", "w"])
        usual = (TensorProto.INT64, TensorProto.BOOL)[i] if i < 2 and r.random() < 0.6 else TensorProto.FLOAT
        graph.input.append(_value(r, name, r.choice([usual, usual, TensorProto.INT64])))
        if usual == TensorProto.FLOAT:
            growth.pool.insert(0, name)
    if r.random() < 0.6:
        weight = growth.constant(r, r.choice([f"{tag}W"] * 4 + ["w"]), r.choice(values.FLOATS), (64, 64))
        made = helper.make_node(r.choice(["MatMul", "MatMul", "Gemm", "Gather"]), [growth.pool[0], weight], [f"{tag}m"])
        growth.take(made, [(f"{tag}m", FLOAT)])
    _plain(r, growth, tag, depth, r.randrange(3))
    own = [*(name for name, _ in growth.made), *(each.name for each in graph.input)]
    for i in range(gives):
        name = growth.pool[0] if r.random() < 0.4 else r.choice(own or growth.pool)
        name = name if r.random() < 0.95 else r.choice([*growth.pool, "w", ""])
        if name not in own and r.random() < 0.9:  # a value of outside is none that a body may give back
            name = f"{tag}y{i}"
            graph.node.append(helper.make_node("Identity", [growth.pool[0]], [name]))
        kinds = [TensorProto.FLOAT] * 3 + [TensorProto.INT64, TensorProto.BOOL]
        graph.output.append(_value(r, name, r.choice(kinds)))
    return graph


def _value(r: Random, name: str, kind: int) -> onnx.ValueInfoProto:
    """Perhaps of no type."""
    if r.random() < 0.07:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, kind, r.choice([None, (), (1, 4, 64), (64, 64)]))


def _function(r: Random, graph: onnx.GraphProto) -> onnx.FunctionProto:
    """All nodes of the graph become a function, some of whose attributes are those of its call."""
    made = onnx.FunctionProto(domain="local", name="F", node=graph.node, output=["y"])
    made.input.extend(["x", *(each.name for each in graph.initializer)])
    for domain, version in {"": r.choice(VERSIONS), "com.microsoft": 1, "local": 1}.items():
        made.opset_import.add(domain=domain, version=version)
    for attribute in (each for node in made.node for each in node.attribute if not each.HasField("g")):
        if r.random() > 0.1:
            continue
        kind = attribute.type
        attribute.Clear()
        attribute.name, attribute.type = r.choice(["axis", "to", "alpha"]), kind
        attribute.ref_attr_name = r.choice(["k", "k", attribute.name])
    made.attribute.extend(["k"] * (r.random() < 0.5))
    if r.random() < 0.5:
        made.attribute_proto.append(helper.make_attribute("k", 1))
    call = helper.make_node("F", list(made.input), ["y"], name="call", domain="local")
    if r.random() < 0.5:
        call.attribute.append(helper.make_attribute("k", r.choice([1, 1.0, "s", [1]])))
    del graph.node[:], graph.output[1:]
    graph.node.append(call)
    return made
