"""Passes that carry a plan out in standard operators, compared with the float model by ONNX's reference."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal, sqnr

from onnxq.encoding.lazy import EncodedTensor, GivenTensor
from onnxq.formats import Granularity
from onnxq.model import graph
from onnxq.passes.prepare import prepare
from onnxq.passes.quantize.insert_qdq import InsertQDQ
from onnxq.passes.quantize.quantize_dynamically import QuantizeDynamically
from onnxq.passes.quantize.replace_matmuls import ReplaceMatMuls
from onnxq.passes.quantize.store_weights import StoreWeights
from onnxq.plan import Choice, Method, Plan
from onnxq.planning.scales import Scale, Scales
from onnxq.recipe import Recipe

GEMMS = {
    "plain": "Gemm(x, w, b)",
    "transB": "Gemm<transB=1>(x, wt, b)",
    "transA": "Gemm<transA=1>(xt, w, b)",
    "alpha-beta": "Gemm<alpha=0.5, beta=2.0>(x, w, b)",
    "everything": "Gemm<alpha=0.5, beta=2.0, transA=1, transB=1>(xt, wt, b)",
    "no-bias": "Gemm(x, w)",
    "matrix-bias": "Gemm<beta=0.5>(x, w, m)",
    "free-bias": "Gemm<beta=3.0>(x, w, f)",
    "MatMul": "MatMul(x, w)",
}
W = normal(40, 24)
CONSTANTS: dict[str, NDArray] = {
    "w": W,
    "wt": np.ascontiguousarray(W.T),
    "b": normal(24, seed=1),
    "m": normal(6, 24, seed=2),
}
X, F = normal(6, 40, seed=3) * 6, normal(6, 24, seed=4)
FEED = {"x": X, "xt": np.ascontiguousarray(X.T), "f": F}


def product(node: str) -> tuple[str, dict[str, NDArray]]:
    """A model of one product, reading only the inputs that it needs."""
    inputs = {"x": "float[6,40] x", "xt": "float[40,6] xt", "f": "float[6,24] f"}
    read = node.partition("(")[2].rstrip(")").split(", ")
    declared = ", ".join(text for name, text in inputs.items() if name in read)
    return f"g ({declared}) => (float[6,24] y) {{ [n] y = {node} }}", {k: v for k, v in CONSTANTS.items() if k in read}


def applied(
    pass_: ir.passes.InPlacePass, text: str, constants: dict[str, NDArray], opset: int = 21
) -> tuple[ir.Model, float]:
    """The model after the pass, and its SQNR against the float one; a second run finds nothing to do."""
    proto = tiny.model(text, constants, opset=opset, ir_version=10)
    made = tiny.read(proto)
    prepare(made)
    assert pass_(made).modified
    assert not pass_(made).modified
    assert [value.name for value in made.graph.outputs] == [value.name for value in proto.graph.output]
    feed = {value.name: FEED[value.name] for value in proto.graph.input}
    return made, sqnr(tiny.evaluate(proto, **feed)[0], tiny.evaluate(made, **feed)[0])


def plan(method: Method, op: str, format: str = "int8", block: int | None = None) -> Plan:
    return Plan("w8a8", "onnx", {"n": Choice("n", op, method, format, block)})


def op_of(node: str) -> str:
    return node.partition("(")[0].partition("<")[0]


@pytest.mark.parametrize("form", GEMMS)
@pytest.mark.parametrize(("word", "least"), [("uint4", 18), ("int8", 40)])
def test_blocks_in_standard_operators(form: str, word: str, least: float) -> None:
    """40 weights along the contraction: the second block of 32 is short."""
    text, constants = product(GEMMS[form])
    chosen = plan(Method.PACKED, op_of(GEMMS[form]), word, 32)
    made, quality = applied(ReplaceMatMuls(chosen, contrib=False, accuracy_level=4), text, constants)
    assert quality > least
    node = tiny.find(made, "DequantizeLinear")
    assert [graph.attribute_int(node, key, -1) for key in ("axis", "block_size")] == [0, 32]
    assert [tiny.array(value).shape for value in node.inputs[:2]] == [(40, 24), (2, 24)]
    assert tiny.find(made, "MatMul").name == "n"
    assert "Gemm" not in tiny.ops(made)


@pytest.mark.parametrize("form", GEMMS)
def test_dynamic_products(form: str) -> None:
    text, constants = product(GEMMS[form])
    made, quality = applied(QuantizeDynamically(plan(Method.DYNAMIC, op_of(GEMMS[form]))), text, constants, opset=13)
    assert quality > 33
    assert tiny.find(made, "MatMulInteger").name == "n"
    assert tiny.array(tiny.find(made, "MatMulInteger").inputs[1]).dtype == np.int8


def test_readers_of_one_activation_quantize_it_once() -> None:
    text = "g (float[6,40] x) => (y) { [n] p = MatMul(x, w)  [o] q = MatMul(x, v)  y = Add(p, q) }"
    both = Plan("w8a8-dynamic", "onnx", {k: Choice(k, "MatMul", Method.DYNAMIC, "int8") for k in "no"})
    made, quality = applied(QuantizeDynamically(both), text, {"w": W, "v": normal(40, 24, seed=5)})
    assert tiny.ops(made).count("DynamicQuantizeLinear") == 1
    assert quality > 33


X_SCALE = Scale(float(np.float32(np.ptp(X) / 255)), round(float(-X.min() / (np.ptp(X) / 255))))


@pytest.mark.parametrize("form", [form for form in GEMMS if form not in ("transA", "everything")])
def test_static_products(form: str) -> None:
    text, constants = product(GEMMS[form])
    chosen = plan(Method.STATIC, op_of(GEMMS[form]))
    made, quality = applied(InsertQDQ(chosen, {"x": X_SCALE}, {"x": 2}, Recipe("w8a8")), text, constants)
    assert quality > 33
    node = tiny.find(made, "Gemm")
    assert node.name == "n"
    assert not {"alpha", "beta"} & set(node.attributes)
    assert [v.producer().op_type for v in node.inputs if v and v.producer()] == ["DequantizeLinear"] * len(node.inputs)


def maker(value: ir.Value | None) -> ir.Node:
    node = None if value is None else value.producer()
    assert node is not None
    return node


def static_conv(bias: NDArray, weight: NDArray | None = None, *, reduce_range: bool = False) -> tuple[ir.Model, float]:
    text = "g (float[1,8,5,5] x) => (float[1,24,3,3] y) { [n] y = Conv(x, w, b) }"
    constants = {"w": normal(24, 8, 3, 3) if weight is None else weight, "b": bias}
    proto = tiny.model(text, constants, opset=19)
    x = normal(1, 8, 5, 5, seed=3) * 5
    (wanted,) = tiny.evaluate(proto, x=x)
    scales: Scales = {}
    for name, values in (("x", x), ("y", wanted)):
        step = float(np.float32(np.ptp(values) / 255))
        scales[name] = Scale(step, round(float(-values.min() / step)))
    made = tiny.read(proto)
    prepare(made)
    InsertQDQ(plan(Method.STATIC, "Conv"), scales, {}, Recipe("w8a8", reduce_range=reduce_range))(made)
    return made, sqnr(wanted, tiny.evaluate(made, x=x)[0])


def test_static_convolution() -> None:
    """int8 a filter, int32 bias in steps of both scales, and the output's pair owning the public name."""
    made, quality = static_conv(normal(24, seed=1))
    assert quality > 33
    assert tiny.ops(made).count("QuantizeLinear") == 2
    x, w, b = (maker(value) for value in tiny.find(made, "Conv").inputs)
    assert graph.attribute_int(w, "axis", -1) == 0
    assert tiny.array(w.inputs[0]).dtype == np.int8
    assert tiny.array(b.inputs[0]).dtype == np.int32
    np.testing.assert_array_equal(tiny.array(w.inputs[2]), np.zeros(24))
    np.testing.assert_array_equal(tiny.array(b.inputs[1]), tiny.array(w.inputs[1]) * tiny.array(x.inputs[1]))
    assert (maker(made.graph.outputs[0]).op_type, made.graph.outputs[0].name) == ("DequantizeLinear", "y")


def test_a_bias_that_would_overflow_raises_the_weight_scale() -> None:
    """A channel of tiny weights and a large bias: in steps of both scales the bias would not fit 32 bits."""
    weight, bias = normal(24, 8, 3, 3), normal(24, seed=1)
    weight[3] *= 1e-9
    bias[3] = 40
    weight[5] = 0
    made, quality = static_conv(bias, weight)
    assert quality > 33
    b = maker(tiny.find(made, "Conv").inputs[2])
    q, s = (tiny.array(value).astype(np.float64) for value in b.inputs[:2])
    np.testing.assert_allclose(q * s, bias, atol=float(s.max()))
    assert np.abs(q).max() <= 2**30


def test_reduced_range_has_seven_bits() -> None:
    made, quality = static_conv(normal(24), reduce_range=True)
    w = maker(tiny.find(made, "Conv").inputs[1])
    assert np.abs(tiny.array(w.inputs[0]).astype(int)).max() == 63
    assert quality > 28


STORED = {
    "Conv": ("Conv(x, w)", (24, 8, 3, 3), "float[1,8,5,5] x"),
    "ConvTranspose": ("ConvTranspose(x, w)", (8, 24, 3, 3), "float[1,8,5,5] x"),
    "MatMul": ("MatMul(x, w)", (40, 24), "float[6,40] x"),
    "left": ("MatMul(w, x)", (24, 36), "float[36,4] x"),
    "batched": ("MatMul(x, w)", (2, 40, 24), "float[2,6,40] x"),
    "Gather": ("Gather(w, x)", (30, 21), "int64[4] x"),
}


@pytest.mark.parametrize("opset", [8, 17])
@pytest.mark.parametrize(
    ("word", "block", "least", "share"),
    [
        ("int8", None, 38, 0.35),
        ("int8", 32, 38, 0.5),
        ("uint4", 32, 18, 0.35),
        ("nf4", 32, 17, 0.35),
        ("fp4", 32, 15, 0.35),
        ("float16", None, 60, 0.6),
        ("bfloat16", None, 45, 0.6),
    ],
)
@pytest.mark.parametrize("form", STORED)
def test_stored_weights(form: str, word: str, block: int | None, least: float, share: float, opset: int) -> None:
    """Codes and what unpacks them, for every format, on every axis, in an opset of 2018 too."""
    node, shape, x = STORED[form]
    w = normal(*shape)
    proto = tiny.model(
        f"g ({x}) => (y) {{ [n] y = {node} }}", {"w": w}, opset=max(opset, 13 if word == "bfloat16" else 0)
    )
    made = tiny.read(proto)
    prepare(made)
    chosen = plan(Method.STORED, op_of(node), word, block)
    assert StoreWeights(chosen)(made).modified
    assert not StoreWeights(chosen)(made).modified
    assert not made.graph.initializers["w"].uses()
    del made.graph.initializers["w"]
    unpacked = tiny.read(ir.to_proto(made))
    reader = next(each for each in graph.nodes(unpacked) if each.name == "n")
    weight = next(value for value in reader.inputs if value and value.name != "x")
    unpacked.graph.outputs[:] = [weight]
    weight.name, weight.dtype, weight.shape = "unpacked", ir.DataType.FLOAT, ir.Shape(shape)
    unpacked.graph.inputs.clear()
    unpacked.graph.remove(reader)
    assert sqnr(w, tiny.evaluate(unpacked)[0]) > least
    stored = sum(
        value.const_value.nbytes for value in made.graph.initializers.values() if value.const_value is not None
    )
    assert stored < share * w.nbytes + 120 or len(shape) > 2


def test_a_stored_weight_is_unpacked_once_for_all_its_readers() -> None:
    text = "g (float[6,40] x) => (y) { [n] p = MatMul(x, w)  [o] q = MatMul(x, w)  y = Add(p, q) }"
    both = Plan("w8a16", "onnx", {k: Choice(k, "MatMul", Method.STORED, "int8") for k in "no"})
    made, quality = applied(StoreWeights(both), text, {"w": W})
    assert tiny.ops(made) == ["Cast", "Mul", "MatMul", "MatMul", "Add"]
    assert quality > 38


@pytest.mark.parametrize("word", ["nf4", "int8"])
def test_rows_shorter_than_a_block_stay_so_when_their_codes_are_given(word: str) -> None:
    """As training gives them: of the blocks that the same choice made of the float weight."""
    text = "g (float[6,16] x) => (y) { [n] y = MatMul(x, w) }"
    chosen = plan(Method.STORED, "MatMul", word, 64)
    once = tiny.read(tiny.model(text, {"w": normal(16, 24)}))
    again = tiny.read(tiny.model(text, {"w": normal(16, 24)}))
    for made in (once, again):
        prepare(made)
    StoreWeights(chosen)(once)
    first = next(t.encoding for v in once.graph.initializers.values() if isinstance(t := v.const_value, EncodedTensor))
    kept = first.result()
    assert kept.granularity == Granularity(0, 16)
    form = (kept.format, kept.granularity)
    learned = GivenTensor(lambda: kept, (16, 24), ir.DataType.FLOAT, half_scales=False, form=form)
    again.graph.initializers["w"].const_value = learned
    StoreWeights(chosen)(again)
    x = normal(6, 16, seed=3)
    np.testing.assert_array_equal(tiny.evaluate(again, x=x)[0], tiny.evaluate(once, x=x)[0])


def test_float64_is_unpacked_to_float64() -> None:
    text = "g (double[6,40] x) => (double[6,24] y) { [n] y = MatMul(x, w) }"
    made = tiny.read(tiny.model(text, {"w": W.astype(np.float64)}))
    prepare(made)
    StoreWeights(plan(Method.STORED, "MatMul"))(made)
    (y,) = tiny.evaluate(made, x=X.astype(np.float64))
    assert y.dtype == np.float64
    assert sqnr(X.astype(np.float64) @ W, y) > 38
