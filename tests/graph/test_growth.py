"""Numbers that grow with an open size are never read as codes: no range that was seen holds them at other sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from tiny import normal

from onnxq import targets
from onnxq.model.types import types_of
from onnxq.passes.prepare import prepare
from onnxq.plan import Method, Plan
from onnxq.planning.counts.growth import REASON, growing_in
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe

INPUTS = (
    "float[N, S, 8] x, bool[N, S] m, bool[N, 9] f, int64[N, S] i, bool[N, S, S] m3, float[N, S, S] g, float[S, 8] r2, "
    "int64[3] t3, int64[S, 1] j"
)
CONSTANTS = {
    "nought": np.int64(0),
    "one": np.int64(1),
    "half": np.float32(0.5),
    "two": np.float32(2),
    "zero": np.float32(0),
    "last": np.array([-1]),
    "first": np.array([1]),
    "square": np.tri(9, dtype=np.float32),
    "w": normal(8, 8),
    "most": np.float32(512),
    "some": normal(8, seed=1),
    "tiny": np.float32(1e-9),
    "graphs": np.array([6, 8]),
    "wide": np.array([1, 8]),
    "nine": np.int64(9),
    "endless": np.int64(2**63 - 1),
}
#: [S] places, counted in floats.
PLACES = (
    "n = Shape<start = 1, end = 2>(x) k = Squeeze(n) r = Range(nought, k, one) p = Cast<to = 1>(r) "
    "l = Cast<to = 1>(k) c = Unsqueeze(p, last) "
)


def turns(body: str, behind: str = "y = Identity(t)", number: str = "k", begin: str = "zero") -> str:
    """A loop of as many turns as there are rows, with what a turn makes of what it gets and of the row, and what
    becomes of the last."""
    return (
        f"{PLACES} t, v = Loop({number}, , {begin}, zero) <body = turn (int64 i, bool c, float s, float o) => "
        f"(bool c1, float s1, float o1) {{ c1 = Identity(c) r = Gather<axis = 1>(x, i) {body} }}> {behind}"
    )


def scan(body: str, rows: str = "r2") -> str:
    made = f"float s, float r) => (float s1, float o) {{ {body} o = Identity(s1) }}"
    return f"y, z = Scan<num_scan_inputs = 1, body = turn ({made}>(zero, {rows})"


COUNTED = "o1 = Add(o, half)"
KEPT = "o1 = Identity(o)"
#: What a turn makes, what becomes of the last, and whether that grows.
TURNS = {
    "sum": ("s1 = Add(s, r) " + KEPT, True),
    "layer-of-a-sum": ("s1 = Add(s, r) " + KEPT, "a = Relu(t) y = MatMul(a, w)", True),
    "sum-of-layers": ("a = MatMul(r, w) b = Relu(a) s1 = Add(b, s) " + KEPT, True),
    "difference": ("s1 = Sub(s, r) " + KEPT, True),
    "sum-of-several": ("a = Add(r, half) b = Add(a, s) s1 = Sum(b, r) " + KEPT, True),
    "sum-of-states": ("a = Add(o, r) o1 = Tanh(a) s1 = Add(s, o1)", True),
    "sum-of-some": ("a = Add(s, r) b = Greater(r, half) s1 = Where(b, a, s) " + KEPT, True),
    "sum-in-branches": (
        "b = Greater(i, nought) s1 = If(b) <then_branch = f () => (float fy) { fy = Add(s, r) }, "
        "else_branch = e () => (float ey) { ey = Identity(s) }> " + KEPT,
        True,
    ),
    "sum-until": ("s1 = Add(s, r) " + KEPT, "y = Identity(t)", "endless", True),
    "sum-of-no-number": ("s1 = Add(s, r) " + KEPT, "y = Identity(t)", "", True),
    "counter": ("s1 = Identity(s) " + COUNTED, "y = Identity(v)", True),
    "mean": ("s1 = Add(s, r) " + COUNTED, "y = Div(t, v)", False),
    "mean-of-shares": (
        "a = Softmax<axis = 1>(x) b = Gather<axis = 1>(a, i) s1 = Add(s, b) " + KEPT,
        False,
    ),
    "few": ("s1 = Add(s, r) " + KEPT, "y = Identity(t)", "nine", False),
    "largest": ("s1 = Max(s, r) " + KEPT, False),
    "recurrent": ("a = Add(s, r) s1 = Tanh(a) " + KEPT, False),
    "decaying": ("a = Mul(s, half) s1 = Add(a, r) " + KEPT, False),
    "running-mean": ("a = Sub(r, s) b = Mul(a, half) s1 = Add(s, b) " + KEPT, False),
    "handed-on": ("s1 = Identity(s) " + KEPT, False),
}

CASES = {
    "places": (PLACES + "y = Mul(p, half)", True),
    "area": (PLACES + "a = Mul(l, l) y = Sqrt(a)", True),
    "squares": (PLACES + "y = Pow(p, two)", True),
    "added": (PLACES + "y = Add(x, c)", True),
    "factor": (PLACES + "y = Mul(x, c)", True),
    "layer": (PLACES + "a = Add(x, c) b = Relu(a) y = MatMul(b, w)", True),
    "beside": (PLACES + "s = Shape(x) e = Expand(c, s) y = Concat<axis = 2>(x, e)", True),
    "counted": ("a = Cast<to = 1>(m) y = CumSum(a, one)", True),
    "length": ("a = Cast<to = 1>(m) y = ReduceSum<keepdims = 1>(a, last)", True),
    "ones": ("s = Shape(x) o = ConstantOfShape(s) y = CumSum(o, one)", True),
    "those-that-are-not": ("a = Cast<to = 1>(m) b = Sub(half, a) y = ReduceSum<keepdims = 1>(b, last)", True),
    "clipped-to-the-image": (PLACES + "y = Clip(p, half, l)", True),
    "chosen": (
        PLACES + "b = Greater(l, half) q = If(b) <then_branch = t () => (float[S] ty) { ty = Identity(p) }, "
        "else_branch = e () => (float[S] ey) { ey = Neg(p) }> y = Mul(q, half)",
        True,
    ),
    "best-of-an-open-size": ("v, z = TopK<axis = 1>(x, first) y = Cast<to = 1>(z)", True),
    "best-of-what-grows": (PLACES + "y, z = TopK(p, first)", True),
    "all-sizes": ("n = Shape<start = 1, end = 2>(x) k = ReduceProd(n) y = Cast<to = 1>(k)", True),
    "rest-of-a-size": (PLACES + "y = Mod<fmod = 1>(p, l)", True),
    "area-of-a-side": (
        PLACES
        + "n2 = Shape<start = 0, end = 2>(x) k2 = ReduceProd<keepdims = 0>(n2) l2 = Cast<to = 1>(k2) y = Div(l2, l)",
        True,
    ),
    "sum-of-squares": (PLACES + "y = ReduceSumSquare(p)", True),
    "squares-of-ones": ("a = Cast<to = 1>(m) y = ReduceSumSquare<keepdims = 1>(a, last)", True),
    "sum-of-distances": ("a = Cast<to = 1>(m) y = ReduceL1<keepdims = 1>(a, last)", True),
    "distance": ("a = Cast<to = 1>(m) y = ReduceL2<keepdims = 1>(a, last)", True),
    "counted-by-a-triangle": (
        PLACES + "h = Unsqueeze(p, last) b = GreaterOrEqual(p, h) t = Cast<to = 1>(b) a = Cast<to = 1>(m) "
        "y = MatMul(a, t)",
        True,
    ),
    "counted-by-a-cut-square": (
        PLACES + "s = Concat<axis = 0>(n, n) o = ConstantOfShape(s) t = Trilu(o) a = Cast<to = 1>(m) y = MatMul(a, t)",
        True,
    ),
    "counted-by-letters": ('a = Cast<to = 1>(m) y = Einsum<equation = "ns,ns->n">(a, a)', True),
    "added-up-by-letters": ('a = Cast<to = 1>(m) y = Einsum<equation = "ns->n">(a)', True),
    "largest-of-an-open-size": ("a = ArgMax<axis = 1>(x) y = Cast<to = 1>(a)", True),
    # between bounds that are known
    "share": (PLACES + "y = Div(p, l)", False),
    "share-by-a-step": (PLACES + "q = Reciprocal(l) a = Mul(p, q) y = Add(x, a)", False),
    "share-of-an-area": (PLACES + "a = Mul(l, l) b = Div(p, a) y = Mul(b, l)", False),
    "up-to": (PLACES + "y = Min(p, most)", False),
    "clipped": (PLACES + "y = Clip(p, half, most)", False),
    "clipped-above": (PLACES + "y = Clip(p, , most)", False),
    "turned": (PLACES + "y = Sin(p)", False),
    "normalized": (PLACES + "a = Add(x, c) y = LayerNormalization(a, some)", False),
    "normalized-in-parts": (
        PLACES + "a = Add(x, c) e = ReduceMean<keepdims = 1>(a, last) d = Sub(a, e) q = Mul(d, d) "
        "v = ReduceMean<keepdims = 1>(q, last) s = Sqrt(v) t = Reciprocal(s) y = Mul(d, t)",
        False,
    ),
    "compared": (PLACES + "a = Greater(p, half) y = Cast<to = 1>(a)", False),
    "of-a-fixed-size": ("a = Cast<to = 1>(f) y = ReduceSum<keepdims = 1>(a, last)", False),
    "a-fixed-size": ("n = Shape<start = 2, end = 3>(x) y = Cast<to = 1>(n)", False),
    "best-of-a-fixed-size": ("v, z = TopK(x, first) y = Cast<to = 1>(z)", False),
    "rest-of-a-step": (PLACES + "y = Mod<fmod = 1>(p, most)", False),
    "unit": ("a = Cast<to = 1>(m) b = ReduceL2<keepdims = 1>(a, last) y = Div(a, b)", False),
    "counted-of-a-fixed-size": ("a = Cast<to = 1>(f) y = MatMul(a, square)", False),
    "fixed-letters": ('a = Cast<to = 1>(f) y = Einsum<equation = "nf,nf->n">(a, a)', False),
    "largest-of-a-fixed-size": ("a = ArgMax<axis = 2>(x) y = Cast<to = 1>(a)", False),
    # activations, whose ranges data show
    "best": ("y, z = TopK<axis = 1>(x, first)", False),
    "squares-of-activations": ("y = ReduceSumSquare<keepdims = 1>(x, last)", False),
    "sum-of-a-fixed-size": ("y = ReduceSum<keepdims = 1>(x, last)", False),
    # sums of them over an open size
    "sum": ("y = ReduceSum<keepdims = 1>(x, first)", True),
    "sum-up-to-here": ("y = CumSum(x, one)", True),
    "layer-of-a-sum": ("a = MatMul(x, w) b = Relu(a) s = ReduceSum(b, first) c = MatMul(s, w) y = Relu(c)", True),
    "sum-along-whatever-axis": ("b = Reshape(x, t3) y = ReduceSum(b, first)", True),
    "distance-from-nought": ("y = ReduceL2<keepdims = 1>(x, first)", True),
    "sum-of-letters": ('y = Einsum<equation = "...sf->...f">(x)', True),
    "masked-sum-by-letters": ('a = Cast<to = 1>(m) y = Einsum<equation = "ns,nsf->nf">(a, x)', True),
    "masked-sum": ("a = Cast<to = 1>(m) b = Unsqueeze(a, first) y = MatMul(b, x)", True),
    "sum-of-marked-words": (
        "b = Equal(i, nought) a = Cast<to = 1>(b) c = Unsqueeze(a, last) d = Mul(x, c) y = ReduceSum(d, first)",
        True,
    ),
    "keys-by-values": ("t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(t, x)", True),
    "keys-by-values-in-a-gemm": ("y = Gemm<transA = 1>(r2, r2)", True),
    "attention-that-is-no-mean": (
        "t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) a = Sigmoid(q) y = MatMul(a, x)",
        True,
    ),
    "sum-for-each-of-a-few-graphs": (
        'z = Expand(zero, graphs) y = ScatterND<reduction = "add">(z, j, r2)',
        True,
    ),
    "sum-of-elements-for-each-of-a-few": (
        'z = Expand(zero, graphs) e = Expand(j, wide) y = ScatterElements<reduction = "add", axis = 0>(z, e, r2)',
        True,
    ),
    "sum-of-shares-of-a-fixed-size": ("a = Softmax<axis = 2>(x) y = ReduceSum<keepdims = 1>(a, first)", True),
    "sum-of-magnitudes": ("t = Transpose<perm = [0, 2, 1]>(x) y = GlobalLpPool<p = 1>(t)", True),
    "distance-of-a-picture": ("t = Transpose<perm = [0, 2, 1]>(x) y = GlobalLpPool(t)", True),
    "sum-of-magnitudes-of-a-fixed-size": ("y = GlobalLpPool<p = 1>(x)", False),
    **{f"{name}-in-turns": (turns(*case[:-1]), case[-1]) for name, case in TURNS.items()},
    "sum-of-rows-in-a-scan": (scan("s1 = Add(s, r)"), True),
    "sums-up-to-here-in-a-scan": (scan("s1 = Add(s, r)").replace("y, z", "z, y"), True),
    "sum-of-a-fixed-number-of-rows": (scan("s1 = Add(s, r)", "square"), False),
    "recurrent-in-a-scan": (scan("a = Add(s, r) s1 = Tanh(a)"), False),
    "mean": (PLACES + "s = ReduceSum<keepdims = 1>(x, first) y = Div(s, l)", False),
    "mean-at-places": (PLACES + "s = ReduceSum<keepdims = 1>(x, first) a = Div(s, l) y = Mul(a, c)", True),
    "mean-of-shares": (PLACES + "a = Div(x, l) y = ReduceSum<keepdims = 1>(a, first)", False),
    "masked-mean": (
        "a = Cast<to = 1>(m) b = Unsqueeze(a, last) c = Mul(x, b) s = ReduceSum(c, first) n = ReduceSum(b, first) "
        "e = Max(n, half) y = Div(s, e)",
        False,
    ),
    "attention": ("t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) a = Softmax(q) y = MatMul(a, x)", False),
    "scores-of-which-nothing-is-known": (
        "b = Reshape(x, t3) t = Transpose<perm = [0, 2, 1]>(b) y = MatMul(b, t)",
        False,
    ),
    "masked-attention": (
        "t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) a = Softmax(q) b = Cast<to = 1>(m) "
        "c = Unsqueeze(b, first) d = Mul(a, c) e = Where(m3, d, zero) y = MatMul(e, x)",
        False,
    ),
    "attention-in-parts": (
        "t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) a = Exp(q) b = ReduceSum<keepdims = 1>(a, last) "
        "c = Div(a, b) y = MatMul(c, x)",
        False,
    ),
    "attention-of-logarithms": (
        "t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) a = LogSoftmax(q) b = Exp(a) y = MatMul(b, x)",
        False,
    ),
    "attention-of-differences": (
        "t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) n = ReduceLogSumExp<keepdims = 1>(q, last) a = Sub(q, n) "
        "b = Exp(a) y = MatMul(b, x)",
        False,
    ),
    "attention-that-is-never-nought": (
        "t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) a = Softmax(q) b = Add(a, tiny) y = MatMul(b, x)",
        False,
    ),
    "put-in-places": ("z = Expand(zero, graphs) y = ScatterND(z, j, r2)", False),
    "sum-for-each-of-an-open-number": ('y = ScatterND<reduction = "add">(r2, j, r2)', False),
    "linear-attention": (
        "t = Transpose<perm = [0, 2, 1]>(x) k = MatMul(t, x) v = MatMul(x, k) s = ReduceSum<keepdims = 1>(x, first) "
        "p = Mul(x, s) z = ReduceSum<keepdims = 1>(p, last) y = Div(v, z)",
        False,
    ),
    "pooled-by-shares": ("a = Softmax<axis = 1>(x) b = Mul(a, x) y = ReduceSum(b, first)", False),
    "channels-of-unit-rows": (
        "n = ReduceL2<keepdims = 1>(x, first) u = Div(x, n) t = Transpose<perm = [0, 2, 1]>(u) y = MatMul(t, u)",
        False,
    ),
    "decays": (
        PLACES + "d = Sub(p, c) e = Exp(d) t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, t) a = Mul(q, e) "
        "y = MatMul(a, x)",
        False,
    ),
    "one-that-is-chosen": (
        PLACES + "b = Equal(i, r) a = Cast<to = 1>(b) d = Unsqueeze(a, last) e = Mul(x, d) y = ReduceSum(e, first)",
        False,
    ),
    "chosen-by-truth-values": ("a = Cast<to = 1>(m3) y = MatMul(a, x)", False),
    "neighbours-that-are-given": ("y = MatMul(g, x)", False),
    "shape": (PLACES + "s = Shape(x) z = Reshape(x, s) y = Relu(z)", False),
    "given": ("y = Cast<to = 1>(i)", False),
}


@pytest.mark.parametrize(("nodes", "grows"), CASES.values(), ids=CASES.keys())
def test_what_grows_is_found(nodes: str, grows: bool) -> None:
    made = tiny.read(tiny.model(f"g ({INPUTS}) => (y) {{ {nodes} }}", CONSTANTS))
    prepare(made)
    assert ("y" in {value.name for value in growing_in(made, types_of(made))}) == grows


COORDINATES = """g (float[N, 3, SIZE, SIZE] x) => (y) {
    [first] c = Conv<pads = [1, 1, 1, 1]>(x, w1) s = Shape(x) h = Shape<start = 2, end = 3>(x) k = Squeeze(h)
    n = Shape<start = 0, end = 1>(x) e = Concat<axis = 0>(n, one, h, h)
    r = Range(nought, k, step) p = Cast<to = 1>(r) DIVIDED g = Expand(a, e)
    [beside] z = Concat<axis = 1>(c, g) [second] v = Conv<pads = [1, 1, 1, 1]>(z, w3)
    [sum] u = Add(v, c) [third] y = Conv(u, w4) }"""


def coordinates(size: str = "S", divided: str = "a = Identity(p)", target: str = "onnxq") -> Plan:
    kernels = {
        "w1": normal(16, 3, 3, 3),
        "w3": normal(16, 17, 3, 3),
        "w4": normal(32, 16, 1, 1),
    }
    constants = {"nought": np.int64(0), "step": np.int64(1), "one": np.array([1])}
    text = COORDINATES.replace("SIZE", size).replace("DIVIDED", divided)
    made = tiny.read(tiny.model(text, kernels | constants))
    prepare(made)
    return make_plan(made, Recipe("w8a8"), targets.get(target), types_of(made))


@pytest.mark.parametrize("target", ["onnxq", "ort-cpu", "tensorrt"])
def test_layers_behind_places_of_an_open_size_stay_in_float(target: str) -> None:
    plan = coordinates(target=target)
    assert {choice.node for choice in plan if choice.reason.startswith(REASON)} == {"second", "third"}
    assert {choice.node for choice in plan.those(Method.STATIC)} == {"first"}


@pytest.mark.parametrize("target", ["onnxq", "ort-cpu"])
def test_places_of_a_fixed_size_or_divided_by_it_are_computed_in_integers(target: str) -> None:
    for plan in (
        coordinates("32", target=target),
        coordinates(divided="l = Cast<to = 1>(k) a = Div(p, l)", target=target),
    ):
        assert {"first", "second", "third"} <= {choice.node for choice in plan.those(Method.STATIC)}
