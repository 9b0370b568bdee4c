"""Random tensors and attributes of any type, many of them at the ends of what there is."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import onnx
from attack import mutate
from onnx import AttributeProto, TensorProto, helper

SHAPES: tuple[tuple[int, ...], ...] = (
    *((64, 64), (64,), (1, 64), (2, 64), (32,), (1,), (), (8,), (4, 8, 8), (1, 4, 8, 8), (8, 4, 3, 3), (64, 32)),
    *((64, 2), (0,), (0, 64), (1, 1, 64, 64), (64, 2, 16), (2,)),
)
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
#: How many bits an element has that is not read as float or integer here; 8 where it is not said.
BITS = {
    **dict.fromkeys((TensorProto.UINT16, TensorProto.INT16), 16),
    **dict.fromkeys((TensorProto.UINT32,), 32),
    **dict.fromkeys((TensorProto.UINT64, TensorProto.COMPLEX64), 64),
    TensorProto.COMPLEX128: 128,
    **{TensorProto.DataType.Value(name): 4 for name in ("INT4", "UINT4", "FLOAT4E2M1")},
    **{TensorProto.DataType.Value(name): 2 for name in ("INT2", "UINT2") if name in TensorProto.DataType.keys()},  # noqa: SIM118
}
#: Numbers that sizes, axes and counts may be.
SMALL = (0, 1, 1, 2, 3, 4, 8, -1, 64, 16)
INTEGERS = (-1, 0, 1, 2, 3, 4, 8, 16, 32, 64, 7)
NUMBERS = (0.0, 1.0, -1.0, 1e-5, 3.4e38, float("nan"), float("inf"))
WORDS = (
    *("", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "linear", "nearest", "cubic", "constant", "reflect", "NHWC"),
    *("ij,jk->ik", "...ij,...jk->...ik", "i->", "ii,i", "a", "forward", "bidirectional", "Relu", "Sigmoid", "SIGMOID"),
    *("gelu", "mean", "none", "SUM", "BRANCH_LEQ", "tf_crop_and_resize", "\0", "é"),
)
KINDS = ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS", "TENSOR")


def tensor(r: Random, name: str, kind: int, shape: Sequence[int]) -> TensorProto:
    """Of the element type `kind`; whatever may be a number is one that occurs, but for some."""
    made = TensorProto(name=name, data_type=kind, dims=shape)
    count, mode = int(np.prod(shape)), r.random()
    rng = np.random.default_rng(r.randrange(1 << 30))
    if kind == TensorProto.STRING:
        made.string_data.extend(r.choice([b"a", b"", b"\xff\xfe", b"x" * 50]) for _ in range(count))
        return made
    if kind in FLOATS:
        x = rng.standard_normal(shape) * (0 if mode < 0.1 else 1e38 if mode < 0.15 else np.nan if mode < 0.17 else 1)
        with np.errstate(over="ignore"):
            made.raw_data = np.asarray(x).astype(helper.tensor_dtype_to_np_dtype(kind)).tobytes()
    elif kind in (TensorProto.INT32, TensorProto.INT64):
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        ends = (np.iinfo(dtype).max, np.iinfo(dtype).min) if mode < 0.1 else ()
        made.raw_data = np.array([r.choice((*SMALL, *ends)) for _ in range(count)], dtype).tobytes()
    elif kind == TensorProto.BOOL:
        made.raw_data = rng.integers(0, 2, count).astype(np.uint8).tobytes()
    else:
        size = -(-count * BITS.get(kind, 8) // 8)
        made.raw_data = rng.bytes(size) if mode < 0.8 else bytes(size)
    return made


def attribute(r: Random, name: str, kind: str) -> AttributeProto:
    """A subgraph is one product of what is around it (others: `bodies.py`)."""
    made = AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind))
    if kind == "INT":
        made.i = r.choice(INTEGERS if r.random() < 0.85 else mutate.INTEGERS)
    elif kind == "FLOAT":
        made.f = r.choice(NUMBERS)
    elif kind == "STRING":
        made.s = r.choice(WORDS).encode()
    elif kind == "TENSOR":
        kinds = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.INT8)
        made.t.CopyFrom(tensor(r, "", r.choice(kinds), r.choice(SHAPES)))
    elif kind == "INTS":
        each = SMALL if r.random() < 0.9 else mutate.INTEGERS
        made.ints.extend(r.choice(each) for _ in range(r.choice([0, 1, 1, 2, 2, 3, 4, 4, 8])))
    elif kind == "FLOATS":
        made.floats.extend(r.choice(NUMBERS) for _ in range(r.randrange(5)))
    elif kind == "STRINGS":
        made.strings.extend(r.choice(WORDS).encode() for _ in range(r.randrange(5)))
    elif kind == "TYPE_PROTO":
        made.tp.CopyFrom(helper.make_tensor_type_proto(r.choice(FLOATS), None))
    elif kind == "SPARSE_TENSOR":
        made.sparse_tensor.values.CopyFrom(tensor(r, "", TensorProto.FLOAT, (3,)))
        made.sparse_tensor.indices.CopyFrom(tensor(r, "", TensorProto.INT64, (3,)))
        made.sparse_tensor.dims.extend([64, 64])
    elif kind == "GRAPH":
        inner = f"{name}_y"
        made.g.CopyFrom(onnx.GraphProto(name="b", node=[helper.make_node("MatMul", ["h", "w"], [inner])]))
        made.g.input.extend(value(f"{name}_{i}", "", r.choice([1, 7, 9])) for i in range(r.randrange(3)))
        made.g.output.append(value(inner, "", TensorProto.FLOAT))
    return made


def value(name: str, kind: str, element: int | None, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    """An input or output of any type that a schema has; tensors of float where it is one of no name here."""
    if element is not None:
        return helper.make_tensor_value_info(name, element, shape)
    made = onnx.ValueInfoProto(name=name)
    if kind.startswith("seq(map"):
        _map(made.type.sequence_type.elem_type.map_type, kind)
    elif kind.startswith("seq"):
        made.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    elif kind.startswith("optional"):
        made.type.optional_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    elif kind.startswith("map"):
        _map(made.type.map_type, kind)
    elif kind.startswith("sparse"):
        made.type.sparse_tensor_type.elem_type = TensorProto.FLOAT
    else:
        made.type.tensor_type.elem_type = TensorProto.FLOAT
    return made


def _map(made: onnx.TypeProto.Map, kind: str) -> None:
    made.key_type = TensorProto.STRING if "map(string" in kind else TensorProto.INT64
    made.value_type.tensor_type.elem_type = TensorProto.FLOAT
