"""Our own operators on codes: onnxq.MatMulNBits, DenseMatMul, GatherNBits, Recurrent; what DequantizeNBits unpacks."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedOpsetsPass

from onnxq import formats, layouts, own_ops
from onnxq.encoding.lazy import GivenTensor
from onnxq.formats import E8M0, Format, Granularity, QuantizedTensor
from onnxq.formats.kinds.nested import NestedScales, unnest
from onnxq.formats.kinds.super_blocks import StoredScales, sharing
from onnxq.model import graph
from onnxq.model.origin import HALVES, ORIGIN, TURNED, inherit_type
from onnxq.passes.restore._restored import (
    Restored,
    RestorePass,
    Stored,
    array_of,
    constants_of,
    input_of,
    read_instead,
)
from onnxq.passes.restore.read_layers import read_recurrent


class ReadOnnxqNodes(RestorePass):
    """Products become a MatMul by [K, N] and an Add of the bias, lookups a Gather, recurrent layers those of the
    standard. Nested scales stay nested; a table that is made of the tiles of a product becomes a constant again."""

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        if node.domain != own_ops.DOMAIN:
            return False
        if node.op_type == own_ops.DENSE:
            return _dense(node, restored)
        if node.op_type == own_ops.DEQUANTIZE:
            return _unpacked(node, restored)
        if node.op_type == own_ops.RECURRENT:
            return read_recurrent(node, restored)
        if node.op_type in (own_ops.MATMUL, own_ops.GATHER):
            return _packed(node, 1 if node.op_type == own_ops.MATMUL else 0, restored)
        return False


class WidenDense(RestorePass):
    """Products on weights of 16 bits become those of a float model, whose weights have no codes that are kept."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        result = super().call(model)
        if result.modified:
            RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
            RemoveUnusedOpsetsPass()(model)
        return result

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        is_dense = graph.is_op(node, own_ops.DENSE, domain=own_ops.DOMAIN)
        return is_dense and _dense(node, restored, keeps_codes=False)


def _packed(node: ir.Node, first: int, restored: Restored) -> bool:
    """A product, or lookup, whose codes, scales and zero points are its inputs from `first` on."""
    source, stored = _source_of(node, first), _stored(node, first)
    if source is None or stored is None:
        return False
    scales = input_of(node, first + 1)
    made = graph.producer(scales)  # of scales in 8 bits
    parts = () if made is None else made.inputs
    if first == 0:
        dtype = _rounded(node, ir.DataType(graph.attribute_int(node, "dtype", int(ir.DataType.FLOAT))))
        restored.lookup(node, restored.weight(node, source, stored, dtype, *parts), input_of(node, 3))
    else:
        w = restored.weight(node, source, stored.transposed((1, 0)), restored.float_type(node), *parts)
        restored.product(node, w, input_of(node, 4))
    return True


def _rounded(node: ir.Node, dtype: ir.DataType) -> ir.DataType:
    """The type of a weight that a node unpacks in the type `dtype`, or looks rows up of: that of halves, where it makes
    these, or a Cast alone reads it and does, in which case that goes. Each number is rounded once either way."""
    cast = graph.only_consumer(node.outputs[0])
    if cast is None or not graph.is_op(cast, "Cast") or cast.graph is not node.graph:
        return dtype
    wanted = graph.attribute_int(cast, "to", 0)
    if wanted not in HALVES:
        return dtype
    graph.replace_value(cast.outputs[0], node.outputs[0])
    assert cast.graph is not None
    cast.graph.remove(cast, safe=True)
    return ir.DataType(wanted)


def _stored(node: ir.Node, first: int) -> Stored | None:
    n, k, block = (graph.attribute_int(node, word, 0) for word in ("N", "K", "block_size"))
    word, found = graph.attribute_string(node, "format", ""), constants_of(node, first + 2)
    codes = _source_of(node, first)
    if min(n, k) < 1 or block < 16 or block % 16 or not formats.is_known(word) or not found:
        return None
    (zeros,), weight, scales = found, graph.constant(codes), input_of(node, first + 1)
    if weight is None or scales is None:
        return None
    format, steps, sizes = formats.get(word), graph.constant(scales), {"n": n, "k": k, "block": block}
    if steps is None:
        nested = scales.producer()
        return None if nested is None or zeros is not None else _nested(weight, nested, **sizes)
    short = _widened(node, first)
    if short is not None:
        format = formats.get(short.overload)
    elif zeros is not None:
        format = formats.get(f"uint{layouts.onnxq_width(format.bits)}")

    def read() -> QuantizedTensor:
        tiles = weight.numpy()
        if short is not None:
            tiles = layouts.from_few_bits_tiles(tiles, signed=format.code_type.kind == "i")
        return layouts.from_onnxq_tiles(format, tiles, steps.numpy(), array_of(zeros), **sizes)

    return Stored(format, Granularity(1, block), (n, k), read, steps.dtype is ir.DataType.FLOAT16)


def _widened(node: ir.Node, index: int) -> ir.Node | None:
    """The node that makes what is read there of codes of 2 or 3 bits; None: it is no such one."""
    value = input_of(node, index)
    made = graph.producer(value)
    if made is None or made.domain != own_ops.DOMAIN or made.op_type != own_ops.WIDEN:
        return None
    return made if formats.is_known(made.overload) and formats.get(made.overload).widened else None


def _source_of(node: ir.Node, index: int) -> ir.Value | None:
    """What the node reads there; of codes that are widened before, those."""
    short = _widened(node, index)
    return input_of(node, index) if short is None else input_of(short, 0)


def _nested(weight: ir.TensorProtocol, made: ir.Node, *, n: int, k: int, block: int) -> Stored | None:
    """A weight whose scales are in 8 bits, of which a function before the node makes floats."""
    is_ours = made.domain == own_ops.DOMAIN and made.op_type == own_ops.NESTED and formats.is_known(made.overload)
    if not is_ours:
        return None
    format, how = formats.get(made.overload), Granularity(1, block)
    base, half = format.base, graph.attribute_int(made, "dtype", 1) == ir.DataType.FLOAT16
    found = constants_of(made, *range(2 if format.super_block is None and format.stored_scales is not None else 3))
    if base is None or (format.nested_type is None and format.stored_scales is None) or not found or None in found:
        return None

    def read() -> QuantizedTensor:
        parts = [tensor.numpy() for tensor in found if tensor is not None]
        blocks = -(-k // block)
        plain = np.zeros((-(-n // layouts.ROWS), blocks, layouts.ROWS), np.float32)
        codes = layouts.from_onnxq_tiles(base, weight.numpy(), plain, None, n=n, k=k, block=block).codes
        nested: NestedScales | StoredScales
        if format.stored_scales is not None:
            rows = layouts.from_row_tiles(parts[0], n)
            nested = StoredScales(QuantizedTensor(format.stored_scales, sharing(format, how), rows, parts[1]))
            scales = nested.scales.dequantize()
        else:
            short, factors, offset = parts[0].reshape(-1)[: n * blocks], parts[1].reshape(-1), parts[2].item()
            nested = NestedScales(short, factors, np.float32(offset), format.nested_block)
            scales = unnest(nested, how, (n, k))
        return QuantizedTensor(format, how, codes, scales.astype(np.float16) if half else scales, None, nested)

    return Stored(format, how, (n, k), read, half)


def _unpacked(node: ir.Node, restored: Restored) -> bool:
    """A matrix that is unpacked when the model is loaded."""
    source, tensor = input_of(node, 0), graph.constant(input_of(node, 0))
    word, moved = graph.attribute_string(node, "format", ""), _ints(node, "shape")
    (k, block), order = (graph.attribute_int(node, key, 0) for key in ("K", "block_size")), _ints(node, "perm")
    if source is None or tensor is None or not formats.is_known(word) or min(k, block) < 1 or sorted(order) != [0, 1]:
        return False
    if moved[1:] != [k] or len(tensor.shape) != 2 or tensor.shape.numpy()[0] != moved[0]:
        return False
    format = formats.get(word)
    two_levels = format.stored_scales is not None and format.stored_scales.is_integer
    if format.base is not None and not two_levels:
        format = format.base  # the scales of such a format lie here as the floats that they stand for
    how = Granularity(1, block) if block < k or format.default_block is not None else Granularity(0)
    shape = (moved[0], k)
    made = _short_scales(node, format, how, shape) if two_levels else _plain_scales(node, format, how, shape)
    if made is None:
        return False
    parts, others, half = made

    def read() -> QuantizedTensor:
        return QuantizedTensor(format, how, _codes_of(format, tensor.numpy(), k), *parts())

    stored, dtype = Stored(format, how, shape, read, half).transposed(order), _rounded(node, ir.DataType.FLOAT)
    read_instead(node, restored.weight(node, source, stored, dtype, *others), restored)
    return True


#: Scales, zero points or minima, and the same as they are stored; the constants that they are made of; whether float16.
_Scales = tuple[Callable[[], tuple[NDArray, NDArray | None, StoredScales | None]], list[ir.Value | None], bool]


def _codes_of(format: Format, fields: NDArray, k: int) -> NDArray:
    """[rows, K] codes of the format."""
    packed = layouts.from_bit_fields(fields, format.bits, k).astype(np.int32)
    if np.issubdtype(format.code_type, np.signedinteger):
        packed -= 1 << (format.bits - 1)
    return packed.astype(format.code_type)


def _plain_scales(node: ir.Node, format: Format, how: Granularity, shape: tuple[int, ...]) -> _Scales | None:
    """Those that the node reads as constants."""
    found = constants_of(node, 1, 2)
    if not found or found[0] is None:
        return None
    (scales, offsets), wanted = found, how.scale_shape(shape)

    def read() -> tuple[NDArray, NDArray | None, StoredScales | None]:
        assert scales is not None
        steps = scales.numpy()
        steps = (steps.view(E8M0) if format.scale_type == E8M0 else steps).reshape(wanted)
        return steps, None if offsets is None else offsets.numpy().reshape(wanted), None

    return read, [], scales.dtype is ir.DataType.FLOAT16  # type: ignore[union-attr]


def _short_scales(node: ir.Node, format: Format, how: Granularity, shape: tuple[int, ...]) -> _Scales | None:
    """Those of a format of two levels: each part is made by a node of its own, of codes and factors."""
    kinds = [("scales", format.stored_scales), ("minima", format.stored_minima)]
    read: list[Callable[[], QuantizedTensor]] = []
    others: list[ir.Value | None] = []
    for i, (word, kind) in enumerate(kinds):
        value = input_of(node, 1 + i)
        made = graph.producer(value)
        if kind is None:
            continue
        wanted = own_ops.Variant(own_ops.DEQUANTIZE, format.name, moved=word).overload
        if made is None or made.domain != own_ops.DOMAIN or made.overload != wanted:
            return None
        found = constants_of(made, 0, 1)
        if not found or None in found:
            return None
        read.append(functools.partial(_short, kind, sharing(format, how), found, how.scale_shape(shape)))
        others += made.inputs

    def both() -> tuple[NDArray, NDArray | None, StoredScales | None]:
        stored = StoredScales(*(each() for each in read))
        return *stored.values, stored

    return both, others, False


def _short(
    kind: Format, how: Granularity, found: list[ir.TensorProtocol | None], shape: tuple[int, ...]
) -> QuantizedTensor:
    codes, factors = (tensor.numpy() for tensor in found if tensor is not None)
    return QuantizedTensor(kind, how, _codes_of(kind, codes, shape[1]), factors.reshape(how.scale_shape(shape)))


def _ints(node: ir.Node, name: str) -> list[int]:
    found = node.attributes.get(name)
    return list(found.as_ints()) if found is not None and found.type is ir.AttributeType.INTS else []


def _dense(node: ir.Node, restored: Restored, *, keeps_codes: bool = True) -> bool:
    source, tensor = input_of(node, 1), graph.constant(input_of(node, 1))
    n, k = (graph.attribute_int(node, word, 0) for word in ("N", "K"))
    if source is None or tensor is None or min(n, k) < 1 or tensor.dtype not in HALVES:
        return False
    format = formats.get(tensor.dtype.name.lower())
    tables = _read_tables(source, tensor)

    def read() -> QuantizedTensor:
        rows = layouts.from_dense_tiles(tensor.numpy(), n=n, k=k)
        return QuantizedTensor(format, Granularity(), np.ascontiguousarray(rows.T))

    w = restored.weight(node, source, Stored(format, Granularity(), (k, n), read), restored.float_type(node))
    if not keeps_codes and isinstance(w.const_value, GivenTensor):
        w.const_value = graph.lazily(w.const_value, lambda numbers: numbers)
        inherit_type(w, source)
        w.meta[TURNED] = any(table.shape == (n, k) for table in tables)
    restored.product(node, w, input_of(node, 2), lambda y: _finished(node, y, restored))
    return True


def _read_tables(source: ir.Value, tiles: ir.TensorProtocol) -> list[ir.Value]:
    """Make what nodes make of a product's tiles (`layouts.steps_to_rows`) constants of the same names.

    The tiles are of them then, as they are of a table that is stored beside its tiles.
    """
    owner, tables = source.graph, list[ir.Value]()
    for turn in list(source.consumers()):
        nodes, shape = _made_rows(turn, tuple(tiles.shape.numpy()))
        if not isinstance(owner, ir.Graph) or any(node.graph is not owner for node in nodes):
            continue
        if not nodes or nodes[-1].outputs[0].is_graph_output():
            continue
        last, name = nodes[-1].outputs[0], nodes[-1].outputs[0].name or ""
        last.name = None
        rows = functools.partial(layouts.from_dense_tiles, n=shape[0], k=shape[1])
        tables.append(graph.add_constant(owner, name, graph.lazily(tiles, rows, shape=shape)))
        source.meta.setdefault(ORIGIN, name)
        last.replace_all_uses_with(tables[-1])
        owner.remove(nodes, safe=True)
    return tables


def _made_rows(turn: ir.Node, tiles: tuple[int, ...]) -> tuple[list[ir.Node], tuple[int, ...]]:
    """The nodes from `turn` on that make a matrix of tiles of that shape, and its shape; no nodes if none does."""
    steps: list[layouts.Step] = []
    nodes, found, shape = list[ir.Node](), list[ir.Node](), tuple[int, ...]()
    node: ir.Node | None = turn
    while node is not None and len(nodes) < 3:
        constants = [graph.integers(node, i) or [] for i in range(1, len(node.inputs))]
        steps.append((node.op_type, {name: _ints(node, name) for name in node.attributes}, constants))
        nodes.append(node)
        last = tuple(constants[-1]) if constants else ()
        if steps == layouts.steps_to_rows(tiles, last):
            found, shape = [*nodes], last
        node = graph.only_consumer(node.outputs[0])
    return found, shape


def _finished(node: ir.Node, y: ir.Value, restored: Restored) -> ir.Value:
    """What a DenseMatMul does to its sums, in nodes of their own."""
    word, other = graph.attribute_string(node, "activation", "none"), input_of(node, 3)

    def add(op_type: str, *inputs: ir.Value, **attributes: str) -> ir.Value:
        name = restored.names.fresh(f"{node.name}_{op_type.lower()}")
        return graph.add_node(node, op_type, inputs, name, restored.names.fresh(f"{name}_out"), attributes)

    if word == "silu":
        y = add("Mul", y, add("Sigmoid", y))
    elif word == "relu":
        y = add("Relu", y)
    elif word in ("gelu", "gelu_tanh"):
        y = add("Gelu", y, approximate="tanh" if word == "gelu_tanh" else "none")
    if other is None:
        return y
    return add("Mul" if graph.attribute_string(node, "combine", "plus") == "times" else "Add", y, other)
