"""Ways to spoil a model, a JSON value or a file, each a few lines, chosen by a `random.Random`.

That may be hypothesis' own (`st.randoms()`), which then finds the smallest spoiled model by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import onnx

INTEGERS = (-1, 0, 1, 2, 3, 7, 64, -64, 255, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "x",
    "y",
    "w",
    "a\0b",
    "é",
    "a/b",
    "../a",
    "'",
    "[bold]",
    "n" * 300,
    "n" * 20000,
    "\x1b[2J",
    "{}",
    "%s",
    "nan",
)
FLOATS = (0.0, -1.0, 1e38, float("nan"), float("inf"), -float("inf"), 1e-45)
OPERATORS = (
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "Add", "Relu", "Reshape", "Transpose", "Slice", "Concat"),
    *("Squeeze", "Unsqueeze", "Expand", "Tile", "Pad", "Cast", "ConstantOfShape", "Range", "Constant", "Identity"),
    *("BatchNormalization", "LSTM", "GRU", "RNN", "Resize", "Softmax", "DequantizeLinear", "QuantizeLinear", "If"),
    *("Loop", "Scan", "Split", "ReduceSum", "Shape", "Where", "Einsum", "Clip", "Dropout", "MaxPool", "Nonsense"),
    *("SequenceConstruct", "Optional", "CastLike", "LayerNormalization", "Attention", "MatMulNBits", "NonZero", "TopK"),
)
DOMAINS = ("", "ai.onnx", "com.microsoft", "local", "onnxq", "nowhere", "ai.onnx.ml")


def graphs(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    def below(nodes: Any) -> Iterator[onnx.GraphProto]:
        for node in nodes:
            for attribute in node.attribute:
                for body in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
                    yield body
                    yield from below(body.node)

    found = [proto.graph, *below(proto.graph.node)]
    return found + [body for function in proto.functions for body in below(function.node)]


def nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for g in graphs(proto) for n in g.node] + [n for f in proto.functions for n in f.node]


def tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    own = [t for g in graphs(proto) for t in g.initializer]
    sparse = [t for g in graphs(proto) for s in g.sparse_initializer for t in (s.values, s.indices)]
    return own + sparse + [a.t for n in nodes(proto) for a in n.attribute if a.HasField("t")]


def dims(proto: onnx.ModelProto) -> list[Any]:
    values = [v for g in graphs(proto) for v in (*g.input, *g.output, *g.value_info)]
    return [dim for v in values for dim in v.type.tensor_type.shape.dim]


def some(r: Random, found: list[Any]) -> Any:
    """One of them; what follows is skipped where there is none."""
    if not found:
        raise IndexError
    return r.choice(found)


def drop_input(p: onnx.ModelProto, r: Random) -> None:
    node = some(r, [n for n in nodes(p) if n.input])
    del node.input[r.randrange(len(node.input))]


def blank_input(p: onnx.ModelProto, r: Random) -> None:
    node = some(r, [n for n in nodes(p) if n.input])
    node.input[r.randrange(len(node.input))] = ""


def swap_inputs(p: onnx.ModelProto, r: Random) -> None:
    a, b = some(r, [n for n in nodes(p) if n.input]), some(r, [n for n in nodes(p) if n.input])
    a.input[r.randrange(len(a.input))] = r.choice(list(b.input))


def read_output(p: onnx.ModelProto, r: Random) -> None:
    a, b = some(r, [n for n in nodes(p) if n.input]), some(r, [n for n in nodes(p) if n.output])
    a.input[r.randrange(len(a.input))] = r.choice(list(b.output))


def add_input(p: onnx.ModelProto, r: Random) -> None:
    some(r, nodes(p)).input.append(r.choice([*TEXTS[:4], *(t.name for t in p.graph.initializer)]))


def drop_output(p: onnx.ModelProto, r: Random) -> None:
    node = some(r, [n for n in nodes(p) if n.output])
    del node.output[r.randrange(len(node.output))]


def blank_output(p: onnx.ModelProto, r: Random) -> None:
    node = some(r, [n for n in nodes(p) if n.output])
    node.output[r.randrange(len(node.output))] = r.choice(["", node.output[0]])


def other_operator(p: onnx.ModelProto, r: Random) -> None:
    some(r, nodes(p)).op_type = r.choice([*OPERATORS, *TEXTS])


def other_domain(p: onnx.ModelProto, r: Random) -> None:
    some(r, nodes(p)).domain = r.choice(DOMAINS)


def other_name(p: onnx.ModelProto, r: Random) -> None:
    some(r, nodes(p)).name = r.choice(TEXTS)


def drop_node(p: onnx.ModelProto, r: Random) -> None:
    graph = some(r, [g for g in graphs(p) if g.node])
    del graph.node[r.randrange(len(graph.node))]


def copy_node(p: onnx.ModelProto, r: Random) -> None:
    graph = some(r, [g for g in graphs(p) if g.node])
    graph.node.insert(r.randrange(len(graph.node) + 1), r.choice(list(graph.node)))


def move_node(p: onnx.ModelProto, r: Random) -> None:
    graph, other = some(r, [g for g in graphs(p) if g.node]), some(r, graphs(p))
    other.node.append(graph.node[r.randrange(len(graph.node))])


def drop_attribute(p: onnx.ModelProto, r: Random) -> None:
    node = some(r, [n for n in nodes(p) if n.attribute])
    del node.attribute[r.randrange(len(node.attribute))]


def other_attribute(p: onnx.ModelProto, r: Random) -> None:
    attribute = some(r, [a for n in nodes(p) for a in n.attribute])
    attribute.i, attribute.f = r.choice(INTEGERS), r.choice(FLOATS)
    for i in range(len(attribute.ints)):
        attribute.ints[i] = r.choice([attribute.ints[i], r.choice(INTEGERS)])
    attribute.s = r.choice(TEXTS).encode()


def other_attribute_type(p: onnx.ModelProto, r: Random) -> None:
    attribute = some(r, [a for n in nodes(p) for a in n.attribute])
    attribute.type = r.choice(onnx.AttributeProto.AttributeType.values())


def other_attribute_list(p: onnx.ModelProto, r: Random) -> None:
    attribute = some(r, [a for n in nodes(p) for a in n.attribute])
    attribute.ints[:] = [r.choice(INTEGERS) for _ in range(r.randrange(6))]


def add_attribute(p: onnx.ModelProto, r: Random) -> None:
    names = ["axis", "transA", "transB", "alpha", "perm", "group", "pads", "strides", "value", "to", "body", "axes"]
    a = some(r, nodes(p)).attribute.add(name=r.choice(names))
    a.type = r.choice([1, 2, 3, 6, 7, 8])
    a.i, a.f, a.s = r.choice(INTEGERS), r.choice(FLOATS), r.choice(TEXTS).encode()
    a.ints[:] = [r.choice(INTEGERS) for _ in range(r.randrange(5))]


def refer_to_attribute(p: onnx.ModelProto, r: Random) -> None:
    some(r, [a for n in nodes(p) for a in n.attribute]).ref_attr_name = r.choice(TEXTS)


def other_shape(p: onnx.ModelProto, r: Random) -> None:
    tensor = some(r, tensors(p))
    if tensor.dims and r.random() < 0.7:
        tensor.dims[r.randrange(len(tensor.dims))] = r.choice(INTEGERS)
    else:
        tensor.dims[:] = [r.choice(INTEGERS) for _ in range(r.randrange(5))]


def legal_shape(p: onnx.ModelProto, r: Random) -> None:
    """Another shape for as many elements."""
    tensor = some(r, tensors(p))
    size = 1
    for dim in tensor.dims:
        size *= max(dim, 0)
    factor = r.choice([f for f in (1, 2, 4, 8, 16) if size % f == 0])
    tensor.dims[:] = r.choice([[size], [factor, size // factor], [size // factor, 1, factor], [1, size, 1, 1]])


def empty_tensor(p: onnx.ModelProto, r: Random) -> None:
    tensor = some(r, tensors(p))
    name, kind = tensor.name, tensor.data_type
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.raw_data = name, kind, b""
    tensor.dims[:] = r.choice([[0], [0, 4], [4, 0], [16, 0, 3]])


def other_tensor_type(p: onnx.ModelProto, r: Random) -> None:
    some(r, tensors(p)).data_type = r.choice([*onnx.TensorProto.DataType.values(), 99, -1])


def other_data(p: onnx.ModelProto, r: Random) -> None:
    tensor = some(r, [t for t in tensors(p) if t.raw_data])
    raw = bytearray(tensor.raw_data)
    for _ in range(8):
        raw[r.randrange(len(raw))] = r.choice([0, 0x7F, 0x80, 0xFF])
    tensor.raw_data = bytes(raw)


def cut_data(p: onnx.ModelProto, r: Random) -> None:
    tensor = some(r, [t for t in tensors(p) if t.raw_data])
    tensor.raw_data = tensor.raw_data[: r.randrange(len(tensor.raw_data))]


def outside(p: onnx.ModelProto, r: Random) -> None:
    tensor = some(r, tensors(p))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    if r.random() < 0.5:
        tensor.ClearField("raw_data")
    places = ["/etc/passwd", "../x", "model.onnx", ".", "", "a\0b", "/dev/zero", "link", "pipe", "n" * 5000]
    tensor.external_data.add(key="location", value=r.choice(places))
    for key in ("offset", "length"):
        if r.random() < 0.5:
            tensor.external_data.add(key=key, value=r.choice([str(r.choice(INTEGERS)), "x", "1e9", "9" * 99]))


def other_dimension(p: onnx.ModelProto, r: Random) -> None:
    dim = some(r, dims(p))
    if r.random() < 0.7:
        dim.dim_value = r.choice(INTEGERS)
    else:
        dim.dim_param = r.choice(TEXTS)


def drop_type(p: onnx.ModelProto, r: Random) -> None:
    value = some(r, [v for g in graphs(p) for v in (*g.input, *g.output, *g.value_info)])
    r.choice([value, value.type.tensor_type]).ClearField(r.choice(["type", "shape"]))


def other_type(p: onnx.ModelProto, r: Random) -> None:
    value = some(r, [v for g in graphs(p) for v in (*g.input, *g.output, *g.value_info)])
    value.type.tensor_type.elem_type = r.choice([*onnx.TensorProto.DataType.values(), 99, -1])


def wrong_value_info(p: onnx.ModelProto, r: Random) -> None:
    output = r.choice(list(some(r, [n for n in p.graph.node if n.output]).output))
    shape = [r.choice([*INTEGERS, "N"]) for _ in range(r.randrange(5))]
    info = onnx.ValueInfoProto(name=output)
    info.type.tensor_type.elem_type = r.choice([1, 7, 10])
    for dim in shape:
        d = info.type.tensor_type.shape.dim.add()
        if isinstance(dim, str):
            d.dim_param = dim
        else:
            d.dim_value = dim
    p.graph.value_info.append(info)


def drop_interface(p: onnx.ModelProto, r: Random) -> None:
    graph = some(r, graphs(p))
    values = r.choice([graph.input, graph.output, graph.initializer, graph.value_info])
    del values[r.randrange(len(values)) :]


def add_interface(p: onnx.ModelProto, r: Random) -> None:
    graph = some(r, graphs(p))
    names = [n.output[0] for n in graph.node if n.output] + [t.name for t in graph.initializer] + list(TEXTS)
    info = onnx.ValueInfoProto(name=r.choice(names))
    info.type.tensor_type.elem_type = 1
    r.choice([graph.input, graph.output]).append(info)


def rename_value(p: onnx.ModelProto, r: Random) -> None:
    graph = some(r, graphs(p))
    r.choice([*graph.input, *graph.output, *graph.initializer]).name = r.choice(TEXTS)


def other_opset(p: onnx.ModelProto, r: Random) -> None:
    each = some(r, [*p.opset_import, *(o for f in p.functions for o in f.opset_import)])
    each.version = r.choice([*range(1, 26), *INTEGERS])


def other_ir_version(p: onnx.ModelProto, r: Random) -> None:
    p.ir_version = r.choice([*range(14), *INTEGERS])


def recursive_function(p: onnx.ModelProto, r: Random) -> None:
    function = some(r, list(p.functions))
    some(r, list(function.node)).op_type = r.choice([f.name for f in p.functions])


def other_function(p: onnx.ModelProto, r: Random) -> None:
    function = some(r, list(p.functions))
    what = r.choice([function.input, function.output, function.node, function.opset_import, function.attribute])
    del what[r.randrange(len(what)) :]


MODEL_MUTATIONS: list[Callable[[onnx.ModelProto, Random], None]] = [
    *(drop_input, blank_input, swap_inputs, read_output, add_input, drop_output, blank_output, other_operator),
    *(other_domain, other_name, drop_node, copy_node, move_node, drop_attribute, other_attribute, other_attribute_type),
    *(other_attribute_list, add_attribute, refer_to_attribute, other_shape, legal_shape, empty_tensor),
    *(other_tensor_type, other_data, cut_data, outside, other_dimension, drop_type, other_type, wrong_value_info),
    *(drop_interface, add_interface, rename_value, other_opset, other_ir_version, recursive_function, other_function),
]


def spoil_model(proto: onnx.ModelProto, r: Random) -> str:
    """One mutation, in place; its name. Nothing happens where it finds nothing to spoil."""
    mutation = r.choice(MODEL_MUTATIONS)
    try:
        mutation(proto, r)
    except (IndexError, ValueError, TypeError):  # an empty list, or a value that the field does not take
        return f"no {mutation.__name__}"
    return mutation.__name__


def spoil_bytes(content: bytes, r: Random) -> bytes:
    """A few bytes changed, or a piece cut, doubled or put elsewhere."""
    raw = bytearray(content)
    if not raw:
        return b"\xff"
    start = r.randrange(len(raw))
    end = min(len(raw), start + r.choice([1, 2, 8, 100, len(raw)]))
    how = r.randrange(5)
    if how == 0:
        for _ in range(r.choice([1, 3, 20])):
            raw[r.randrange(len(raw))] = r.randrange(256)
    elif how == 1:
        del raw[start:end]
    elif how == 2:
        raw[start:start] = raw[start:end]
    elif how == 3:
        raw[start:end] = bytes(end - start)
    else:
        raw[start] ^= 1 << r.randrange(8)
    return bytes(raw)


def spoil_numbers(content: bytes, r: Random) -> bytes:
    """Two, four or eight bytes, most often near the begin or the end, where headers are, say another number."""
    raw = bytearray(content)
    width = r.choice([2, 4, 8])
    if len(raw) < width:
        return spoil_bytes(content, r)
    last = len(raw) - width
    start = r.choice([r.randrange(min(64, last + 1)), last - r.randrange(min(64, last + 1)), r.randrange(last + 1)])
    number = r.choice(INTEGERS) % (1 << 8 * width)
    raw[start : start + width] = number.to_bytes(width, r.choice(["little", "big"]))
    return bytes(raw)


def elsewhere(folder: Path) -> Path:
    """A file outside of a case's folder, for links out of it to lead to. Not one of the system's: another mutation may
    write through the link, and a command may be told to.
    """
    path = folder.parent / "elsewhere.txt"
    path.write_text("of somebody else\n")
    return path


def spoil_file(path: Path, r: Random) -> None:
    """The file's bytes, or the numbers in them, are others."""
    path.write_bytes(r.choice([spoil_bytes, spoil_numbers])(path.read_bytes(), r))


WEIRD = (None, True, -1, 0, 1e300, 10**30, "", "x", "int4", "a\0", [], {}, [[[]]], {"a": None}, "9" * 400, float("nan"))


def spoil_json(value: Any, r: Random) -> Any:
    """The value with something inside it replaced, dropped or doubled."""
    if isinstance(value, (dict, list)) and value and r.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = r.choice(keys)
        how = r.randrange(10)
        if how == 0:
            del value[key]
        elif how == 1 and isinstance(value, dict):
            value[r.choice(TEXTS)] = copy.deepcopy(value[key])
        elif how == 2 and isinstance(value, list):
            value.append(copy.deepcopy(value[key]))
        else:
            value[key] = spoil_json(value[key], r)
        return value
    return copy.deepcopy(r.choice(WEIRD))
