"""Shared by the passes that give weights few bits: two thin matrices beside a weight, which make up for its codes."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir

from onnxq.algorithms import low_rank
from onnxq.algorithms.low_rank import Factors
from onnxq.encoding.lazy import Encoding, GivenTensor
from onnxq.formats import FloatArray
from onnxq.model import graph
from onnxq.model.origin import STORED_TYPE
from onnxq.model.weights import Weight
from onnxq.passes.quantize._matmul import Product
from onnxq.passes.quantize._weight_forms import WeightForms, owner_of
from onnxq.summaries.evidence import Layer

#: How constants of A and B are called, behind the name of their weight; and in nodes, what adds x · A · B.
A, B, ADDED = "_low_rank_a", "_low_rank_b", "_low_rank_added"


def beside(p: Product, y: ir.Value, encoding: Encoding, rank: int, constants: WeightForms, k_axis: int) -> ir.Value:
    """`y` = x · W, and where there is a `rank` + (x · A) · B.

    Args:
        k_axis: of the inputs in the weight as it is encoded, be it a matrix or the same numbers in a row.
    """
    if not rank:
        return y
    a, b = _factors(p.weight, encoding, (p.k, p.n), (k_axis, False), rank, constants, p.dtype)
    added = p.x
    for factor in (a, b):
        name = constants.names.fresh(f"{p.node.name}_low_rank")
        added = graph.add_node(p.node, "MatMul", [added, factor], name, name)
    name = constants.names.fresh(f"{p.node.name}{ADDED}")
    return graph.add_node(p.node, "Add", [y, added], name, name)


def onto(x: ir.Value, weight: Weight, encoding: Encoding, rank: int, constants: WeightForms) -> ir.Value:
    """`x`, the weight as it is unpacked when the model is loaded, and where there is a `rank` + A · B, added then."""
    if not rank or not weight.is_matrix:
        return x
    k_axis, sizes = _lies(weight)
    factors = _factors(weight.value, encoding, sizes, (k_axis, k_axis == 1), rank, constants, weight.tensor.dtype)
    added = _after(x, "MatMul", factors if k_axis == 0 else factors[::-1], constants)
    if weight.node.op_type == "Conv":
        size = constants.array(owner_of(weight.value), "shape_onnxq", np.array(weight.shape, np.int64))
        added = _after(added, "Reshape", (added, size), constants)
    return _after(added, "Add", (x, added), constants)


def added(weight: Weight, q: FloatArray, rank: int, layer: Layer | None) -> FloatArray | None:
    """What a `rank` beside the codes of a weight adds to them; None: nothing can.

    Args:
        q: what the codes say, in the weight's own shape.
        layer: what data say of its layer.
    """
    if not weight.is_matrix:
        return None
    k_axis, sizes = _lies(weight)
    w, codes = (_by_inputs(x, sizes, k_axis) for x in (np.asarray(weight.tensor.numpy(), np.float32), q))
    factors = low_rank.reconstruction(w, codes, min(rank, *sizes), layer)
    product = factors.a @ factors.b
    return product if k_axis == 0 else product.T.reshape(q.shape)


def _lies(weight: Weight) -> tuple[int, tuple[int, int]]:
    """The axis of the inputs of a matrix or kernel, all numbers of a kernel for an output being one; and K and N."""
    shape = weight.shape
    k_axis = 1 if weight.node.op_type == "Conv" else weight.role.contraction
    return k_axis, (shape[0], shape[1]) if k_axis == 0 else (math.prod(shape[1:]), shape[0])


def _by_inputs(x: FloatArray, sizes: tuple[int, int], k_axis: int) -> FloatArray:
    """[K, N]"""
    return x.reshape(sizes) if k_axis == 0 else x.reshape(sizes[::-1]).T


def _after(last: ir.Value, op_type: str, inputs: tuple[ir.Value, ...], constants: WeightForms) -> ir.Value:
    """The output of a new node behind the one that makes `last`."""
    before = last.producer()
    assert before is not None and isinstance(before.graph, ir.Graph)
    name = constants.names.fresh(f"{last.name}_low_rank")
    node = ir.node(op_type, inputs, name=name)
    node.outputs[0].name = name
    before.graph.insert_after(before, node)
    return node.outputs[0]


def _factors(
    weight: ir.Value,
    encoding: Encoding,
    sizes: tuple[int, int],
    lies: tuple[int, bool],
    rank: int,
    constants: WeightForms,
    dtype: ir.DataType,
) -> tuple[ir.Value, ir.Value]:
    """A and B, in float16 in the file, made once for all who read the weight so.

    Args:
        sizes: K and N.
        lies: the axis of the inputs in the weight as it is encoded; whether A and B are to be transposed.
    """
    (k, n), (k_axis, turned) = sizes, lies
    is_known = isinstance(encoding.tensor, GivenTensor) and encoding.tensor.beside is not None
    layer, rank = None if is_known else constants.layer(weight), min(rank, k, n)

    @functools.cache
    def found() -> Factors:
        numbers = np.asarray(encoding.tensor.numpy(), np.float32), encoding.result().dequantize()
        w, q = (_by_inputs(x, sizes, k_axis) for x in numbers)
        return low_rank.reconstruction(w, q, rank, layer)

    def made(suffix: str, part: int, shape: tuple[int, int]) -> ir.Value:
        def evaluate() -> ir.TensorProtocol:
            x = found()[part].T if turned else found()[part]
            return ir.tensor(np.ascontiguousarray(x.astype(dtype.numpy())))

        tensor = ir.LazyTensor(evaluate, dtype=dtype, shape=ir.Shape(shape[::-1] if turned else shape))
        key = (encoding.format.name, encoding.granularity, rank, lies)
        value = constants.value(weight, suffix, key, tensor)
        if dtype is ir.DataType.FLOAT:
            value.meta[STORED_TYPE] = ir.DataType.FLOAT16
        return value

    return made(A, 0, (k, rank)), made(B, 1, (rank, n))
