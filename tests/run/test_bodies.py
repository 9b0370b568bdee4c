"""The function bodies of the onnxq domain in stock onnxruntime, against numpy's decoding of the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxq import formats, layouts, own_ops
from onnxq.formats import E8M0, Granularity, QuantizedTensor
from onnxq.own_ops import Variant

#: (N, K, block): one row, one block, short last blocks and tiles, and none short.
SHAPES = [(1, 16, 16), (20, 70, 32), (17, 48, 16), (16, 256, 256), (33, 100, 128), (48, 64, 64)]
LEVELS = [ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL]
WIDTHS = [*formats.names(), *(f"uniform{bits}" for bits in range(2, 17))]
WIDTHS = [word for word in WIDTHS if formats.get(word).scale_type and formats.get(word).code_type.kind in "iu"]
FORMATS = [formats.get(word) for word in formats.names()]
KERNELS = [f.name for f in FORMATS if f.kernel and f.scale_type and f.base is None]
DENSE = [f.name for f in FORMATS if f.is_dense]
shapes = pytest.mark.parametrize(("n", "k", "block"), SHAPES, ids=[f"{n}x{k}b{block}" for n, k, block in SHAPES])


def run(
    nodes: Sequence[onnx.NodeProto],
    variants: Sequence[Variant],
    constants: Mapping[str, NDArray],
    feed: Mapping[str, NDArray],
    level: ort.GraphOptimizationLevel,
) -> list[NDArray]:
    """The outputs of all nodes."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feed.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for node in nodes for name in node.output]
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(x, name) for name, x in constants.items()]
    )
    model = ir.from_proto(
        helper.make_model(
            graph,
            ir_version=8,
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(own_ops.DOMAIN, own_ops.VERSION)],
        )
    )
    own_ops.add_functions(model, variants)
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options).run(None, dict(feed))


def encoded(word: str, n: int, k: int, block: int, dtype: type = np.float32) -> tuple[QuantizedTensor, dict]:
    """A random weight, and the inputs of a node that hold it."""
    w = np.random.default_rng(n * k).standard_normal((n, k)).astype(np.float32)
    format = formats.get(word)
    q = format.encode(w, Granularity(1, block))
    if q.scales is not None and q.scales.dtype == np.float32:
        q = format.encode(w, Granularity(1, block), q.scales.astype(dtype).astype(np.float32), q.zero_points)
    scales = layouts.onnxq_scales(q)
    parts = {"w": layouts.onnxq_tiles(q), "s": scales.astype(dtype) if scales.dtype == np.float32 else scales}
    if q.zero_points is not None:
        parts["z"] = layouts.onnxq_zero_points(q)
    return q, parts


def matmul(v: Variant, n: int, k: int, block: int) -> onnx.NodeProto:
    inputs = ["x", "w", "s", "z" if v.zero_points else "", "b"][: 5 if v.bias else 4 if v.zero_points else 3]
    attributes = {"K": k, "N": n, "block_size": block, "format": v.format, "activations": "fast"}
    return helper.make_node(v.op, inputs, ["y"], domain=own_ops.DOMAIN, overload=v.overload, **attributes)


@pytest.mark.each_value
@shapes
@pytest.mark.parametrize("word", KERNELS)
@pytest.mark.parametrize("level", LEVELS, ids=["plain", "optimized"])
def test_products(word: str, n: int, k: int, block: int, level: ort.GraphOptimizationLevel) -> None:
    """float32 arithmetic, but for integers that onnxruntime fuses to a kernel that rounds activations to int8.

    A sum of K products, each rounded, in any order: relative to the sum of magnitudes at most (K + 3) epsilons.
    """
    rng = np.random.default_rng(0)
    for exact, bias, scale_type in itertools.product([True, False], [True, False], [np.float16, np.float32]):
        q, constants = encoded(word, n, k, block, scale_type)
        v = Variant(own_ops.MATMUL, formats.get(word).kernel or "", q.zero_points is not None, bias, exact)
        x, b = rng.standard_normal((2, 3, k)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
        (y,) = run([matmul(v, n, k, block)], [v], constants | ({"b": b} if bias else {}), {"x": x}, level)
        w = q.dequantize().astype(np.float64)
        wanted, magnitude = x @ w.T + bias * b, np.abs(x) @ np.abs(w.T) + np.abs(b)
        is_fused = v.decoded.is_integer and not exact and level == LEVELS[1]
        # Rounding to int8 moves each activation by at most 1/254 of its block's largest.
        rounding = np.abs(x).max() / 127 * np.abs(w).sum(axis=1) if is_fused else 0
        assert (np.abs(y - wanted) <= (k + 3) * np.finfo(np.float32).eps * magnitude + rounding).all()


@shapes
@pytest.mark.parametrize("word", DENSE)
@pytest.mark.parametrize("level", LEVELS, ids=["plain", "optimized"])
def test_dense_products(word: str, n: int, k: int, block: int, level: ort.GraphOptimizationLevel) -> None:
    """float32 arithmetic, as above, with and without a bias, in float16 too."""
    rng = np.random.default_rng(n)
    q = formats.get(word).encode(rng.standard_normal((n, k)).astype(np.float32), Granularity())
    w = q.dequantize().astype(np.float64)
    for bias, dtype in itertools.product([True, False], [np.float32, np.float16]):
        x, b = rng.standard_normal((2, 3, k)).astype(dtype), rng.standard_normal(n).astype(dtype)
        v = Variant(own_ops.DENSE, word, bias=bias, exact=block == 16)
        inputs = ["x", "w", *["b"] * bias]
        node = helper.make_node(v.op, inputs, ["y"], domain=own_ops.DOMAIN, overload=v.overload, K=k, N=n)
        constants = {"w": layouts.dense_tiles(q.codes)} | ({"b": b} if bias else {})
        (y,) = run([node], [v], constants, {"x": x}, level)
        wide = x.astype(np.float64)
        wanted, magnitude = wide @ w.T + bias * b.astype(np.float64), np.abs(wide) @ np.abs(w.T) + np.abs(b)
        last = np.abs(wanted) * 2.0**-11 * (dtype == np.float16)
        assert y.dtype == dtype
        assert (np.abs(y - wanted) <= (k + 3) * np.finfo(np.float32).eps * magnitude + last * 1.01 + 2e-7).all()


@pytest.mark.each_value
@shapes
@pytest.mark.parametrize("word", KERNELS)
@pytest.mark.parametrize("level", LEVELS, ids=["plain", "optimized"])
def test_rows(word: str, n: int, k: int, block: int, level: ort.GraphOptimizationLevel) -> None:
    """Bit for bit, in every shape of indices; negative ones count from the end."""
    q, constants = encoded(word, n, k, block, np.float16)
    v = Variant(own_ops.GATHER, formats.get(word).kernel or "", q.zero_points is not None)
    rng = np.random.default_rng(0)
    for dtype, shape, index_type in [
        (np.float32, (2, 3), np.int64),
        (np.float16, (5,), np.int32),
        (np.float32, (), np.int64),
        (np.float32, (0, 2), np.int64),
    ]:
        indices = rng.integers(-n, n, shape).astype(index_type)
        inputs = ["w", "s", "z" if v.zero_points else "", "i"]
        node = helper.make_node(
            v.op,
            inputs,
            ["y"],
            domain=own_ops.DOMAIN,
            overload=v.overload,
            K=k,
            N=n,
            block_size=block,
            format=v.format,
            dtype=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
        )
        (y,) = run([node], [v], constants, {"i": indices}, level)
        np.testing.assert_array_equal(y, q.dequantize()[indices].astype(dtype), strict=True)


@pytest.mark.parametrize("shape", [(70,), (1, 1, 70), (0, 70), (4, 0, 70)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_shapes_and_types_of_activations(shape: tuple[int, ...], dtype: type) -> None:
    q, constants = encoded("uint4", 20, 70, 32)
    v = Variant(own_ops.MATMUL, "int4", zero_points=True, exact=True)
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for level in LEVELS:
        (y,) = run([matmul(v, 20, 70, 32)], [v], constants, {"x": x}, level)
        wanted = (x.astype(np.float32) @ q.dequantize().T).astype(dtype)
        assert (y.dtype, y.shape) == (dtype, wanted.shape)
        np.testing.assert_allclose(y, wanted, rtol=2e-3 if dtype == np.float16 else 1e-5, atol=1e-3)


@pytest.mark.each_value
@pytest.mark.parametrize(
    "granularity", [Granularity(1, 32), Granularity(0, 16), Granularity(0), Granularity(1)], ids=str
)
@pytest.mark.parametrize("word", WIDTHS)
@pytest.mark.parametrize("moved", ["", "shaped"], ids=["matrix", "any-rank"])
def test_codes_of_any_width(word: str, granularity: Granularity, moved: str) -> None:
    """float32 decoding of the same codes; uniform is decoded in float64 by numpy, hence one unit more."""
    format = formats.get(word)
    w = np.random.default_rng(1).standard_normal((37, 41)).astype(np.float32)
    q = format.encode(w, granularity)
    assert q.scales is not None
    scales = q.scales.view(np.uint8) if q.scales.dtype == E8M0 else q.scales
    codes, offset = layouts.bit_fields(q), format.offset_type
    rows, k = layouts.as_rows(q.codes, granularity).shape
    assert codes.nbytes == rows * -(-k // 8) * format.bits
    constants = {"c": codes, "s": layouts.group_rows(scales, granularity)}
    if offset is not None:
        assert q.zero_points is not None and q.zero_points.dtype == offset
        constants["z"] = layouts.group_rows(q.zero_points, granularity)
    transposed = granularity == Granularity(0, 16) or granularity == Granularity(1)
    v = Variant(own_ops.DEQUANTIZE, word, moved=moved or ("turned" if transposed else ""))
    node = helper.make_node(
        v.op,
        list(constants),
        ["y"],
        domain=own_ops.DOMAIN,
        overload=v.overload,
        K=k,
        block_size=granularity.block or k,
        shape=[41, 37] if transposed else [37, 41],
        perm=[1, 0] if transposed else [0, 1],
        format=word,
    )
    for level in LEVELS:
        (y,) = run([node], [v], constants, {}, level)
        wanted = q.dequantize()
        assert (np.abs(y - wanted) <= 2 * np.spacing(np.abs(wanted).max())).all()
        if offset is None or offset.kind != "f":
            np.testing.assert_array_equal(y, wanted, strict=True)


def test_levels_survive_their_text_form() -> None:
    """The bodies are written as text; tables of levels come back bit for bit."""
    for word in ("nf4", "fp4", "mxfp4"):
        function = own_ops.body(Variant(own_ops.GATHER, word), 21)
        (tensor,) = (a.t for node in function.node for a in node.attribute if node.output[0] == "levels")
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), formats.get(word).levels)  # type: ignore[attr-defined]


def test_integer_products_become_onnxruntimes_own_kernel(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """What makes the file fast without the library; `exact` ones and those of tables become float."""
    for word, exact, wanted in [
        ("uint4", False, "MatMulNBits"),
        ("int8", False, "MatMulNBits"),
        ("uint4", True, "MatMul"),
        ("nf4", False, "MatMul"),
    ]:
        q, constants = encoded(word, 32, 64, 32)
        v = Variant(own_ops.MATMUL, formats.get(word).kernel or "", q.zero_points is not None, exact=exact)
        path = tmp_path / f"{word}{exact}.onnx"
        graph = helper.make_graph(
            [matmul(v, 32, 64, 32)],
            "g",
            [helper.make_tensor_value_info("x", 1, [1, 64])],
            [helper.make_tensor_value_info("y", 1, [1, 32])],
            [numpy_helper.from_array(x, name) for name, x in constants.items()],
        )
        model = ir.from_proto(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 21)]))
        own_ops.add_functions(model, [v])
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        options = ort.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(path), 4
        ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
        assert {node.op_type for node in onnx.load(path).graph.node} - {"Cast", "Concat"} == {wanted}
