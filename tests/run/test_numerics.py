"""What onnxruntime computes from the nodes we write is what our numpy formats say."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxq import algorithms, formats
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.passes.quantize.quantize_gathers import QuantizeGathers
from onnxq.passes.quantize.replace_matmuls import ReplaceMatMuls
from onnxq.passes.quantize.store_weights import StoreWeights
from onnxq.plan import Choice, Method, Plan
from onnxq.planning.scales import to_scale
from onnxq.runtime.session import Session
from onnxq.summaries.ranges import Range

EPS = float(np.finfo(np.float32).eps)
HALF = float(np.finfo(np.float16).eps)
BLOCK = 16
BLOCKED = ["uint4", "int8", "nf4", "fp4"]
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda t: t.__name__)
sizes = pytest.mark.parametrize(
    ("m", "k", "n"), [pytest.param(*s, id="x".join(map(str, s))) for s in [(1, 16, 16), (3, 96, 8), (2, 37, 9)]]
)


def model_of(op: str, inputs: list[str], w: NDArray, **attributes: int) -> ir.Model:
    """y = op(inputs) with the weight `w`; `x` has its type, `i` are integers."""
    floats = helper.np_dtype_to_tensor_dtype(w.dtype)
    free = [
        helper.make_tensor_value_info(name, onnx.TensorProto.INT64 if name == "i" else floats, ["M"] * rank)
        for name, rank in (("x", 2), ("i", 1))
        if name in inputs
    ]
    y = helper.make_tensor_value_info("y", floats, None)
    node = helper.make_node(op, inputs, ["y"], name="node", **attributes)
    body = helper.make_graph([node], "g", free, [y], [numpy_helper.from_array(w, "w")])
    return ir.from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def plan_of(op: str, method: Method, word: str, block: int | None) -> Plan:
    return Plan("", "", {"node": Choice("node", op, method, word, block)})


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def quantized(op: str, w: NDArray, word: str, granularity: Granularity) -> QuantizedTensor:
    """What the passes make of `w`, by numpy."""
    format = formats.get(word)
    return algorithms.DATA_FREE[algorithms.choose(op, format, granularity)](w.astype(np.float32), format, granularity)


def in_half(q: QuantizedTensor) -> QuantizedTensor:
    """`q` with its scales rounded to float16, as kernels of that type hold them."""
    assert q.scales is not None
    rounded = q.scales.astype(np.float16).astype(np.float32)
    return QuantizedTensor(q.format, q.granularity, q.codes, rounded, q.zero_points)


def written(model: ir.Model) -> list[str]:
    return [node.op_type for node in graph.nodes(model)]


def run(model: ir.Model, **feed: NDArray) -> NDArray:
    (y,) = Session(model, optimize=False).run(feed)
    return y


def assert_product(x: NDArray, w: NDArray, got: NDArray, noise: NDArray | float = 0.0) -> None:
    """got ≈ x · w, both factors exact.

    A float32 sum of K products, added in any order, is off by at most (K + 2) · eps · Σ|x||w|. A float16 kernel rounds
    each decoded weight and the sum once more, each by half an eps of that type.
    """
    exact, size = x.astype(np.float64) @ w, np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    bound = (x.shape[-1] + 2) * EPS * size + (HALF * size if got.dtype == np.float16 else 0)
    assert got.dtype == x.dtype
    np.testing.assert_array_less(np.abs(got - exact), bound + noise + 1e-30)


@dtypes
@sizes
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("word", BLOCKED)
def test_packed_product(word: str, op: str, m: int, k: int, n: int, dtype: type) -> None:
    transposed = {"transB": 1} if op == "Gemm" else {}
    w, x = normal(*((n, k) if transposed else (k, n))).astype(dtype), normal(m, k).astype(dtype)
    model = model_of(op, ["x", "w"], w, **transposed)
    ReplaceMatMuls(plan_of(op, Method.PACKED, word, BLOCK), contrib=True, accuracy_level=1)(model)
    by_rows = np.ascontiguousarray(w if transposed else w.T)
    if word in ("nf4", "fp4"):  # blocks are counted through the flattened [N, K]
        assert "MatMulBnb4" in written(model)
        flat = quantized(op, by_rows.reshape(-1), word, Granularity(0, BLOCK))
        assert_product(
            x, (in_half(flat) if dtype == np.float16 else flat).dequantize().reshape(n, k).T, run(model, x=x)
        )
        return
    assert "MatMulNBits" in written(model)
    q = quantized(op, by_rows, word, Granularity(1, BLOCK))
    assert_product(x, (in_half(q) if dtype == np.float16 else q).dequantize().T, run(model, x=x))


@sizes
@pytest.mark.parametrize("word", ["uint4", "int8"])
def test_packed_product_with_rounded_activations(word: str, m: int, k: int, n: int) -> None:
    """Level 4 rounds x to int8 in blocks, half a step of max|x| / 127 off for each."""
    w, x = normal(k, n), normal(m, k)
    model = model_of("MatMul", ["x", "w"], w)
    ReplaceMatMuls(plan_of("MatMul", Method.PACKED, word, BLOCK), contrib=True, accuracy_level=4)(model)
    decoded = quantized("MatMul", w, word, Granularity(0, BLOCK)).dequantize()
    noise = np.abs(x).max(axis=1, keepdims=True) / 254 * np.abs(decoded).sum(axis=0) * (1 + 1e-3)
    assert_product(x, decoded, run(model, x=x), noise)


@dtypes
@sizes
@pytest.mark.parametrize("word", ["uint4", "uint8", "int8"])
def test_blocked_dequantize_linear(word: str, m: int, k: int, n: int, dtype: type) -> None:
    """DequantizeLinear itself is exact: every operation of it is one of numpy's, in the same order."""
    w = normal(k, n).astype(dtype)
    model = model_of("MatMul", ["x", "w"], w)
    ReplaceMatMuls(plan_of("MatMul", Method.PACKED, word, BLOCK), contrib=False, accuracy_level=0)(model)
    dequantize = next(node for node in graph.nodes(model) if node.op_type == "DequantizeLinear")
    dequantize.outputs[0].type, dequantize.outputs[0].shape = model.graph.outputs[0].type, ir.Shape((k, n))
    model.graph.outputs[:] = [dequantize.outputs[0]]
    q = quantized("MatMul", w, word, Granularity(0, BLOCK))
    got = run(model, x=normal(m, k).astype(dtype))
    if dtype == np.float32:
        np.testing.assert_array_equal(got, q.dequantize())
    else:
        np.testing.assert_allclose(got, in_half(q).dequantize(), rtol=HALF, atol=HALF / 16)


@dtypes
@pytest.mark.parametrize(("rows", "k"), [(5, 64), (9, 36), (20, 16)], ids=["5x64", "9x36", "20x16"])
@pytest.mark.parametrize("word", ["uint4", "int8"])
def test_gather_block_quantized(word: str, rows: int, k: int, dtype: type) -> None:
    w, i = normal(rows, k).astype(dtype), np.array([rows - 1, 0, 2, 2])
    model = model_of("Gather", ["w", "i"], w)
    QuantizeGathers(plan_of("Gather", Method.PACKED, word, BLOCK))(model)
    assert written(model) == ["GatherBlockQuantized"]
    q = quantized("Gather", w, word, Granularity(1, BLOCK))
    wanted = (in_half(q) if dtype == np.float16 else q).dequantize()[i]
    np.testing.assert_array_equal(run(model, i=i), wanted.astype(dtype))


@pytest.mark.parametrize("shape", [(16, 20), (9, 37)], ids=["16x20", "9x37"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize(
    ("word", "block"), [*((word, BLOCK) for word in BLOCKED), ("int8", None), ("float16", None), ("bfloat16", None)]
)
def test_stored_weights_unpack_to_what_numpy_decodes(
    word: str, block: int | None, dtype: type, shape: tuple[int, int]
) -> None:
    w = normal(*shape).astype(dtype)
    model = model_of("MatMul", ["x", "w"], w)
    StoreWeights(plan_of("MatMul", Method.STORED, word, block))(model)
    granularity = Granularity() if word.endswith("float16") else Granularity(0, block) if block else Granularity(1)
    wanted = quantized("MatMul", w, word, granularity).dequantize()
    got = run(model, x=np.eye(shape[0], dtype=dtype))  # the identity times w is w
    np.testing.assert_array_equal(got, wanted.astype(dtype))


@pytest.mark.parametrize("top", [0.0, -0.01])
def test_codes_of_a_clip_that_ends_at_zero_or_below_end_at_zero(top: float) -> None:
    """A quotient a little below 255 gave a scale of 0, or one below it."""
    for low in np.linspace(-3, -0.1, 200):
        s = to_scale(Range(low, top), Range(-np.inf, top))
        assert s.zero_point == 255 and s.scale == pytest.approx(-low / 255)


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 3.0), (0.0, 6.0), (-2.5, 0.0), (0.5, 0.75), (0.0, 0.0), (-1e30, 1e30)]
)
def test_activations_round_and_saturate_as_uint8_does(low: float, high: float) -> None:
    """Ties go to even, what is outside saturates, zero stays zero."""
    s = to_scale(Range(low, high))
    scale, zero = np.float32(s.scale), np.uint8(s.zero_point)
    ties = (np.arange(-300, 300) / 2).astype(np.float32) * scale
    x = np.concatenate([ties, np.linspace(low, high, 77, dtype=np.float32), np.float32([0, -1e30, 1e30])])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    x_info, y_info = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [x.size]) for name in "xy")
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in (("s", scale), ("z", zero))]
    body = helper.make_graph(nodes, "g", [x_info], [y_info], constants)
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    wanted = formats.get("uint8").encode(x, Granularity(), scale.reshape(()), zero.reshape(())).dequantize()
    np.testing.assert_array_equal(run(ir.from_proto(proto), x=x), wanted)
    assert wanted[x == 0].any() == np.False_
    inside = (x >= s.low) & (x <= s.high)
    np.testing.assert_array_less(np.abs(wanted - x)[inside], scale * (0.5 + 1e-4) + 1e-30)
