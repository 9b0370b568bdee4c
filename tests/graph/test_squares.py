"""Squares and sums of what float16 holds are more than it holds: in float up to where usual numbers are made."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tiny
from tiny import normal

from onnxq import targets
from onnxq.model import graph
from onnxq.model.types import types_of
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.prepare import prepare
from onnxq.passes.quantize.convert_to_half import ConvertToHalf
from onnxq.plan import Choice, Method, Plan
from onnxq.planning.first_plan import make_plan
from onnxq.planning.rows.squares import REASON, large_in
from onnxq.recipe import Recipe

CONSTANTS = {
    "two": np.float32(2),
    "three": np.float32(3),
    "one": np.float32(1),
    "some": np.float32(1e-5),
    "last": np.array([-1]),
    "most": np.int64(9),
    "w": normal(8, 8),
    "bands": np.abs(normal(8, 8)),
}
#: What is computed, and which nodes compute with squares on the way.
CASES = {
    "mean": ("[s] s = Mul(x, x) [m] y = ReduceMean(s, last)", "s"),
    "sum": ("[s] s = Mul(x, x) [m] y = ReduceSum(s, last)", "s"),
    "rms": (
        "[s] s = Mul(x, x) [m] m = ReduceMean<keepdims = 1>(s, last) [a] a = Add(m, some) [r] r = Sqrt(a) "
        "[d] y = Div(x, r)",
        "s m a",
    ),
    "power": ("[s] s = Pow(x, two) [m] m = ReduceMean(s, last) [a] a = Add(m, some) [r] y = Sqrt(a)", "s m a"),
    "variance": (
        "[e] e = ReduceMean<keepdims = 1>(x, last) [c] c = Sub(x, e) [s] s = Mul(c, c) "
        "[m] m = ReduceMean<keepdims = 1>(s, last) [h] h = Shape(x) [b] b = Expand(m, h) [a] a = Add(b, some) "
        "[r] r = Reciprocal(a) [p] y = Mul(x, r)",
        "c s m b a r p",
    ),
    "centred": (  # what is divided is as large as x
        "[e] e = ReduceMean<keepdims = 1>(x, last) [c] c = Sub(x, e) [s] s = Mul(c, c) "
        "[m] m = ReduceMean<keepdims = 1>(s, last) [r] r = Sqrt(m) [d] y = Div(c, r)",
        "s m",
    ),
    "by-one-less": (
        "[s] s = Mul(x, x) [m] m = ReduceSum(s, last) [h] h = Size(x) [n] n = Cast<to = 1>(h) [l] l = Sub(n, one) "
        "[q] q = Div(m, l) [r] y = Sqrt(q)",
        "s m q",
    ),
    "mean-of-squares-less-square-of-mean": (
        "[s] s = Mul(x, x) [m] m = ReduceMean(s, last) [e] e = ReduceMean(x, last) [t] t = Mul(e, e) [l] l = Sub(m, t) "
        "[r] y = Sqrt(l)",
        "s m t l",
    ),
    "magnitude": ("[s] s = Mul(x, x) [t] t = Mul(z, z) [a] a = Add(s, t) [r] y = Sqrt(a)", "s t a"),
    "logarithm": ("[s] s = Mul(x, x) [a] a = Add(s, one) [l] y = Log(a)", "s a"),
    "divided-by": ("[s] s = Mul(x, x) [a] a = Add(s, one) [d] y = Div(x, a)", "s a d"),
    "sum-of-squares": ("[s] s = ReduceSumSquare(x, last) [a] a = Add(s, some) [r] y = Sqrt(a)", "s a"),
    "third-power": ("[s] s = Pow(x, three) [a] a = Add(s, some) [r] y = Sqrt(a)", "s a"),
    "product": ("[s] s = Mul(x, z) [m] m = ReduceMean(s, last) [a] a = Add(m, some) [r] y = Sqrt(a)", "s m a"),
    "norm": (
        "[s] s = ReduceL2<keepdims = 1>(x, last) [c] c = Clip(s, some) [h] h = Shape(x) [e] e = Expand(c, h) "
        "[d] y = Div(x, e)",
        "s c e d",
    ),
    "norm-in-parts": (
        "[s] s = Mul(x, x) [m] m = ReduceSum<keepdims = 1>(s, last) [r] r = Sqrt(m) [d] y = Div(x, r)",
        "s m r d",
    ),
    "by-the-inverse": (
        "[s] s = Mul(x, x) [m] m = ReduceSum<keepdims = 1>(s, last) [r] r = Sqrt(m) [q] q = Reciprocal(r) "
        "[d] y = Mul(x, q)",
        "s m r q d",
    ),
    "mean-of-a-sum": ("[m] m = ReduceSum(x, last) [d] y = Div(m, three)", "m d"),
    "mean-by-a-factor": ("[m] m = ReduceSum(x, last) [d] y = Mul(m, some)", "m d"),
    "softplus": ("[e] e = Exp(x) [a] a = Add(e, one) [l] y = Log(a)", "e a"),
    "of-rows": (
        "[t] t = Transpose(z) [p] p = MatMul(x, t) [n] n = ReduceL2<keepdims = 1>(x, last) [d] y = Div(p, n)",
        "p n d",
    ),
    "bands": ("[s] s = Mul(x, x) [p] p = MatMul(s, bands) [c] c = Clip(p, some) [l] y = Log(c)", "s p c"),
    "of-words": (
        "[g] g = Gather(w, i) [s] s = Pow(g, two) [m] m = ReduceMean(s, last) [a] a = Add(m, some) [r] y = Sqrt(a)",
        "s m a",
    ),
    "in-a-branch": (
        "[s] s = Mul(x, x) [m] m = ReduceSum(s, last) f = If(u) <then_branch = t () => (float[N] ty) "
        "{ [k] ty = Identity(m) }, else_branch = e () => (float[N] ey) { [o] ey = Neg(m) }> [a] a = Add(f, one) "
        "[r] y = Sqrt(a)",
        "s m k o a",
    ),
    "in-turns": (
        "[z] o = Sub(x, x) t = Loop(most, u, o) <body = turn (int64 k, bool c, float s) => (bool c1, float s1) "
        "{ [i] c1 = Identity(c) [p] p = Mul(x, z) [a] s1 = Add(s, p) }> [d] y = Div(t, three)",
        "p a d",
    ),
    # usual numbers, and large ones of which nothing makes usual ones
    "square": ("[s] s = Mul(x, x) [p] y = MatMul(s, w)", ""),
    "cube": ("[s] s = Mul(x, x) [t] t = Mul(s, x) [a] y = Add(t, x)", ""),
    "beside-activations": ("[s] s = Mul(x, x) [a] a = Add(s, z) [r] y = Sqrt(a)", ""),
    "of-activations": ("[a] a = Add(x, some) [r] r = Sqrt(a) [d] y = Div(x, r)", ""),
    "logarithm-of-a-layer": ("[s] s = Mul(x, x) [p] p = MatMul(s, w) [c] c = Clip(p, some) [l] y = Log(c)", ""),
    "norm-of-a-layer": (
        "[p] p = Mul(x, z) [m] m = MatMul(p, bands) [s] s = Pow(m, two) [e] e = ReduceMean<keepdims = 1>(s, last) "
        "[r] r = Sqrt(e) [d] y = Div(m, r)",
        "s e r d",
    ),
    "gate": ("[g] g = Sigmoid(x) [p] p = Mul(x, g) [m] y = ReduceMean(p, last)", ""),
    "gate-of-six": ("[g] g = Clip(x, some, one) [p] p = Mul(x, g) [m] y = ReduceMean(p, last)", ""),
    "gate-of-a-layer": ("[p] p = Mul(x, z) [m] m = MatMul(p, w) [a] a = Add(x, m) [e] y = ReduceMean(a, last)", ""),
    "scores": ("[t] t = Transpose(z) [p] p = MatMul(x, t) [q] q = Div(p, three) [s] y = Softmax(q)", ""),
    "scores-of-a-softmax-in-parts": (
        "[t] t = Transpose(z) [p] p = MatMul(x, t) [h] h = ReduceMax<keepdims = 1>(p, last) [f] f = Sub(p, h) "
        "[e] e = Exp(f) [s] s = ReduceSum<keepdims = 1>(e, last) [d] y = Div(e, s)",
        "e s d",
    ),
    "normalized-rows": (  # scores would cost as much again in float
        "[t] t = Transpose(z) [p] p = MatMul(x, t) [n] n = ReduceL2<keepdims = 1>(p, last) [d] y = Div(p, n)",
        "n d",
    ),
}


@pytest.mark.parametrize(("nodes", "found"), CASES.values(), ids=CASES.keys())
def test_large_numbers_are_found_to_where_usual_ones_are_made(nodes: str, found: str) -> None:
    inputs = "float[N, 8] x, float[N, 8] z, int64[N] i, bool u"
    made = tiny.read(tiny.model(f"g ({inputs}) => (y) {{ {nodes} }}", CONSTANTS))
    assert {node.name for node in large_in(made)} == set(found.split())


#: What becomes of rows `a` of 64 numbers.
COMPUTED = {
    "normalized": "n = ReduceL2<axes = [-1]>(a) c = Clip(n, least) s = Shape(a) e = Expand(c, s) y = Div(a, e)",
    "normalized-in-parts": "q = Pow(a, two) t = ReduceSum(q, last) r = Sqrt(t) y = Div(a, r)",
    "normalized-by-the-inverse": "q = Mul(a, a) t = ReduceSum(q, last) r = Sqrt(t) i = Reciprocal(r) y = Mul(a, i)",
    "shares": "p = Abs(a) t = ReduceL1<axes = [-1]>(a) y = Div(p, t)",
    "in-one-node": "y = LpNormalization(a)",
    "pooled": "b = Unsqueeze(a, first) y = LpPool<kernel_shape = [64]>(b)",
    "cosine": (
        "b = Mul(a, turned) p = Mul(a, b) t = ReduceSum(p, last) q = Mul(a, a) u = ReduceSum(q, last) r = Mul(b, b) "
        "v = ReduceSum(r, last) m = Mul(u, v) n = Sqrt(m) k = Max(n, least) y = Div(t, k)"
    ),
    "cosines": (
        "t = Transpose(a) p = MatMul(a, t) n = ReduceL2<axes = [-1]>(a) m = Transpose(n) q = Mul(n, m) y = Div(p, q)"
    ),
    "deviation": "m = ReduceMean<axes = [-1]>(a) c = Sub(a, m) q = Mul(c, c) v = ReduceSum(q, last) u = Div(v, count) "
    "y = Sqrt(u)",
    "mean": "p = Abs(a) t = ReduceSum(p, last) y = Div(t, count)",
    "mean-of-some": (
        "g = Greater(x, nought) k = Cast<to = 1>(g) p = Mul(a, k) t = ReduceSum(p, last) n = ReduceSum(k, last) "
        "y = Div(t, n)"
    ),
    "generalized-mean": (
        "p = Abs(a) u = Unsqueeze(p, first) q = Pow(u, three) m = GlobalAveragePool(q) y = Pow(m, third)"
    ),
    "mean-of-turns": (
        "p = Abs(a) o = ReduceMin<axes = [0], keepdims = 0>(p) t = Loop(turns, true, o) <body = u (int64 i, bool c, "
        "float[64] s) => (bool c1, float[64] s1) { c1 = Identity(c) r = Gather(p, i) s1 = Add(s, r) }> "
        "y = Div(t, count)"
    ),
    "response": "q = Mul(a, a) m = ReduceMean<axes = [-1]>(q) s = Add(m, two) p = Pow(s, most) y = Div(a, p)",
    "sum-of-products": "b = Mul(a, turned) p = Mul(a, b) y = ReduceSum(p, last)",
    "linear-attention": (
        "p = Abs(a) t = Transpose(p) k = MatMul(t, a) v = MatMul(p, k) s = ReduceSum(p, rows) q = Mul(p, s) "
        "z = ReduceSum(q, last) y = Div(v, z)"
    ),
    "softplus": "c = Clip(a, , sixty) e = Exp(c) p = Add(e, two) y = Log(p)",
}


@pytest.mark.parametrize("size", [1, 300, 3000, 11000])
@pytest.mark.parametrize("nodes", COMPUTED.values(), ids=COMPUTED.keys())
def test_usual_numbers_come_of_large_ones(nodes: str, size: int) -> None:
    """By kernels that compute in float16 throughout, and as onnxruntime has them on processors."""
    numbers = {"two": 2, "three": 3, "third": 1 / 3, "least": 1e-8, "most": 0.75, "count": 64, "nought": 0, "sixty": 60}
    constants = {name: np.float32(number) for name, number in numbers.items()} | {
        "turns": np.int64(8),
        "true": np.array(True),
        "last": np.array([-1]),
        "first": np.array([1]),
        "rows": np.array([0]),
        "turned": np.linspace(0.5, 1, 64, dtype=np.float32),
        "w": np.linalg.qr(normal(64, 64))[0],
    }
    proto = tiny.model(f"g (float[N, 64] x) => (float y) {{ [l] a = MatMul(x, w) {nodes} }}", constants)
    made = tiny.read(proto)
    UniqueNames()(made)
    plan = Plan("fp16", "onnx", {"l": Choice("l", "MatMul", Method.HALF)})
    assert ConvertToHalf(plan, [node.name or "" for node in graph.nodes(made)])(made).modified
    x = (np.random.default_rng(1).standard_normal((8, 64)) * size).astype(np.float32)
    (wanted,) = tiny.evaluate(proto, x=x)
    half = ir.to_proto(made)
    ran = ort.InferenceSession(half.SerializeToString()).run(None, {"x": x})
    for (found,) in (ran, tiny.evaluate(half, x=x)):
        assert tiny.sqnr(wanted, found) > 50


@pytest.mark.parametrize("size", [1e-4, 1, 1000])
def test_the_plan_leaves_bands_of_a_spectrum_in_float(size: float) -> None:
    """What a float16 product of them lost: powers near 1e-8, and those beyond 65504."""
    constants = {"w": np.linalg.qr(normal(64, 64))[0], "bands": np.abs(normal(64, 64)), "least": np.float32(1e-10)}
    text = """g (float[N, 64] x) => (float[N, 64] y) { [l] a = MatMul(x, w) q = Mul(a, a) [m] b = MatMul(q, bands)
        c = Clip(b, least) y = Log(c) }"""
    proto = tiny.model(text, constants)
    made = tiny.read(proto)
    prepare(made)
    plan = make_plan(made, Recipe("fp16"), targets.get("onnx"), types_of(made))
    assert {name: choice.method for name, choice in plan.choices.items()} == {"l": Method.HALF, "m": Method.STORED}
    assert plan.choices["m"].reason == REASON
    assert ConvertToHalf(plan, [node.name or "" for node in graph.nodes(made)])(made).modified
    x = (np.random.default_rng(1).standard_normal((8, 64)) * size).astype(np.float32)
    assert tiny.sqnr(tiny.evaluate(proto, x=x)[0], tiny.evaluate(made, x=x)[0]) > 60
