"""Numbers that come of integers stay in float32 for as long as float16 would miscount."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq import targets
from onnxq.model import graph
from onnxq.model.types import types_of
from onnxq.passes.prepare import prepare
from onnxq.plan import Method
from onnxq.planning.counts import spans, uses
from onnxq.planning.counts.find_counts import REASON, counts_in
from onnxq.planning.counts.spans import Span
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import Recipe
from onnxq.targets import Target

INPUTS = (
    "int64[N, S] i, bool[N, S] m, uint8[N, S] u, float[N, S] x, float[N, S, 4] h, float[N] t, "
    "uint8[N, 3, S, S] image, bool[N, 1, S, S] seen, float[N, 3, S, S] smooth"
)
CONSTANTS = {
    "one": np.float32(1),
    "low": np.float32(-10000),
    "scale": np.float32(0.125),
    "nil": np.float32(0),
    "few": np.array(9),
    "axis": np.array(1),
    "zero": np.array([0]),
    "last": np.array([-1]),
    "f": np.array([1, 0.1, 0.01, 0.001], np.float32),
    "v": normal(4, 64),
    "c": normal(4, 64, 3, seed=1),
    "mean": np.float32(123.7),
    "left": np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)).astype(np.float32),
    "means": np.array([123.7, 116.3, 103.5], np.float32).reshape(3, 1, 1),
    "kernels": normal(8, 3, 3, 3),
    "thin": normal(8, 1, 1, 1, seed=5),
    "box": np.ones((1, 1, 3, 3), np.float32),
    "large": np.ones((1, 1, 65, 65), np.float32),
    "depthwise": normal(8, 1, 3, 3, seed=4),
    "nothing": np.empty(0, np.float32),
    "halves": np.array([1, 1, 0.5, 0.5], np.float32),
    "flow": np.array([1, 1, 1, 2]),
    "three": np.array([3]),
    "colours": normal(3, 64, seed=2),
    "turn": normal(3, 3, seed=3),
    "truths": np.array([0, 1], np.float32),
    "lows": np.array([0, -10000], np.float32),
    "bits": np.array([0, 1]),
    "nines": normal(9, 64, seed=6),
    "axes": np.array([0, 1]),
    "table": normal(2000, 64),  # too large to be looked into
}
PLACES = (
    "k0 = Shape<start = 1, end = 2>(x) n = Squeeze(k0) nought = Constant<value_int = 0>() "
    "step = Constant<value_int = 1>() j = Range(nought, n, step) [a] p = Cast<to = 1>(j)"
)
CASES = {
    # turned: up to the sine, but not what it makes
    "rotary": ("[a] p = Cast<to = 1>(i) [b] q = Unsqueeze(p, last) [c] r = Mul(q, f) [d] s = Sin(r) "
               "y = Mul(s, h)", "abcd"),
    "expanded": ("[a] p = Cast<to = 1>(i) [b] q = Unsqueeze(p, last) n = Shape(h) [c] e = Expand(f, n) "
                 "[d] r = Mul(q, e) [e] y = Cos(r)", "abcde"),
    "frequencies-of-a-range": ("[a] p = Cast<to = 1>(i) n = Shape<start = 1, end = 2>(h) k = Squeeze(n) nought = "
                               "Constant<value_int = 0>() step = Constant<value_int = 1>() r = Range(nought, k, step) "
                               "[b] g = Cast<to = 1>(r) [c] l = Mul(g, scale) [d] w = Exp(l) [e] z = Mul(p, w) "
                               "[f] y = Sin(z)", "abcdef"),
    "steps-as-floats": ("[a] q = Unsqueeze(t, last) [b] r = Mul(q, f) [c] y = Sin(r)", "abc"),
    "bins": ("[a] q = Unsqueeze(t, last) [b] z = Greater(q, f) k = Cast<to = 1>(z) "
             "[c] s = ReduceSum<keepdims = 0>(k, last) [d] y = Relu(s)", "abcd"),
    "learned-turns": ("a = Relu(h) b = Mul(a, f) y = Sin(b)", ""),
    # lengths: divided by, as a sum is
    "mean": ("s = ReduceSum<keepdims = 0>(x, last) n = Shape<start = 1, end = 2>(x) [a] k = Cast<to = 1>(n) "
             "[b] q = Div(s, k) y = Relu(q)", "ab"),
    "mean-of-masked": ("[a] k = Cast<to = 1>(m) n = ReduceSum<keepdims = 1>(k, last) [b] y = Div(x, n)", "b n"),
    "ratio": (f"{PLACES} [b] l = Cast<to = 1>(n) [c] q = Div(p, l) r = Unsqueeze(q, last) y = Mul(h, r)", "abc"),
    "ratio-of-what-may-be-any": ("n = Shape(h) [a] k = Cast<to = 1>(n) [b] j = Cast<to = 1>(i) "
                                 "[c] l = ReduceMax<keepdims = 0>(k) [d] q = Div(j, l) [e] r = Unsqueeze(q, last) "
                                 "[f] y = Mul(h, r)", "abcdef"),
    # what is divided by its number is as large as one of its parts
    "mean-of-integers": ("[a] p = Cast<to = 1>(i) o = Cast<to = 1>(m) "
                         "[b] k = Mul(p, o) [c] s = ReduceSum<keepdims = 1>(k, last) "
                         "[g] l = ReduceSum<keepdims = 1>(o, last) [d] q = Div(s, l) [e] z = Unsqueeze(q, last) "
                         "[f] y = Relu(z)", "abcdefg"),
    "norm-of-integers": ("[a] p = Cast<to = 1>(i) [b] s = ReduceSum<keepdims = 1>(p, last) [c] r = Sqrt(s) "
                         "[d] z = Div(p, r) [e] y = Relu(z)", "abcde"),
    "mean-of-bytes": ("p = Cast<to = 1>(u) [a] s = ReduceSum<keepdims = 1>(p, last) n = Shape<start = 1, end = 2>(u) "
                      "[b] k = Cast<to = 1>(n) [c] q = Div(s, k) y = Relu(q)", "abc"),
    "ratio-of-lengths": ("[a] k = Cast<to = 1>(i) j = Identity(i) l = Mul(j, last) [b] p = Cast<to = 1>(l) "
                         "[c] q = Div(k, p) [d] y = Div(x, q)", "abcd"),
    "root-of-a-size": ("n = Shape<start = 1, end = 2>(x) [a] k = Cast<to = 1>(n) [b] r = Sqrt(k) y = Div(x, r)", "ab"),
    # whole numbers: sizes that are computed
    "whole": ("n = Shape(h) [a] k = Cast<to = 1>(n) [b] l = Mul(k, scale) [c] o = Floor(l) "
              "[d] y = Cast<to = 7>(o)", "abcd"),
    "durations": ("g = Sigmoid(x) grown = Exp(g) [a] w = Ceil(grown) [b] s = CumSum(w, axis) "
                  "[c] k = ReduceSum(w, last) [d] l = Max(k, one) [e] y = Less(s, l)", "abcde"),
    # masks are no counts
    "truth": ("k = Cast<to = 1>(m) r = Sub(one, k) s = Mul(r, low) z = Add(x, s) y = Softmax(z)", ""),
    "mask-of-integers": ("k = Cast<to = 1>(i) r = Sub(one, k) s = Mul(r, low) z = Add(x, s) y = Softmax(z)", ""),
    "mask-that-is-also-one": ("b = Cast<to = 9>(i) w = Where(b, x, scale) k = Cast<to = 1>(i) y = Mul(w, k)", ""),
    "mask-filled-by-itself": ("k = Cast<to = 1>(i) r = Sub(one, k) j = Cast<to = 9>(r) w = Where(j, low, r) "
                              "z = Add(x, w) y = Softmax(z)", ""),
    "places-that-hide": ("j = Cast<to = 9>(i) w = Where(j, x, scale) [a] p = Cast<to = 1>(i) "
                         "[b] q = Unsqueeze(p, last) [c] r = Mul(q, f) [d] s = Sin(r) "
                         "z = Unsqueeze(w, last) y = Mul(s, z)", "abcd"),
    "numbers-that-are-there": ("j = Cast<to = 9>(i) w = Where(j, x, scale) [a] k = Cast<to = 1>(i) "
                               "[b] l = Add(k, one) [c] z = Log(l) y = Mul(w, z)", "abc"),
    # scores that grow with the distance: what a Softmax compares
    "slopes": ("[a] k = Cast<to = 1>(i) [b] s = Mul(k, scale) [c] z = Add(x, s) [d] y = Softmax(z)", "abcd"),
    # numbers of few bits are exact, but for what is subtracted from them
    "pixels": ("p = Cast<to = 1>(u) y = Mul(p, x)", ""),
    "pixels-by-mean": ("p = Cast<to = 1>(u) [a] q = Sub(p, mean) [b] y = Mul(q, x)", "ab"),
    "words": ("w = Gather(table, i) y = Relu(w)", ""),
    "angles-of-places": ("[a] w = Gather(table, i) [b] y = Cos(w)", "ab"),
    # the kernel of a convolution makes activations, however few channels it reads, and pixels are good enough for it
    "convolution-of-pixels": ("p = Cast<to = 1>(image) [a] q = Sub(p, means) [b] r = Div(q, scale) "
                              "k = Conv(r, kernels) d = Relu(k) y = Conv<group = 8>(d, depthwise)", "ab"),
    "convolution-of-places": ("k = NonZero(seen) [a] p = Cast<to = 1>(k) w = Shape(smooth) [b] q = Reshape(p, w) "
                              "[c] s = Conv(q, kernels) y = Relu(s)", "abc"),
    "product-of-pixels": ("p = Cast<to = 1>(image) [a] q = Transpose<perm = [0, 2, 3, 1]>(p) [b] r = Sub(q, mean) "
                          "g = MatMul(r, colours) y = Relu(g)", "b"),
    # kernels of ones add up what is there
    "seen-pixels": ("p = Cast<to = 1>(seen) s = Conv(p, box) y = Div(smooth, s)", ""),
    "many-seen-pixels": ("p = Cast<to = 1>(seen) [a] s = Conv(p, large) [b] y = Div(smooth, s)",
                         "ab"),
    # few coordinates that are turned stay what they are
    "turned-coordinates": ("n = Shape(smooth) k = Slice(n, zero, three) [a] p = Cast<to = 1>(k) "
                           "[b] q = MatMul(p, turn) [c] y = Relu(q)", "abc"),
    "of-constants": ("w = Where(m, scale, low) y = Add(x, w)", ""),
    # one number for each step is exact up to what it multiplies, roots and differences of it too
    "steps-of-diffusion": ("[a] w = Gather(left, i) [b] r = Sub(one, w) [c] s = Sqrt(r) [d] q = Div(s, w) "
                           "[e] z = Mul(q, x) y = Relu(z)", "abcde"),
    "steps-by-elements": ("j = Cast<to = 7>(i) k = Reshape(j, last) [a] w = GatherElements(left, k) "
                          "[b] r = Sub(one, w) [c] y = Log(r)", "abc"),
    # one of a few numbers each, and how often each is there
    "one-hot": ("o = OneHot<axis = -1>(i, few, truths) z = MatMul(o, nines) y = Relu(z)", ""),
    "one-hot-integers": ("j = OneHot<axis = -1>(i, few, bits) o = Cast<to = 1>(j) z = MatMul(o, nines) "
                         "y = Relu(z)", ""),
    "one-hot-counted": ("o = OneHot<axis = -1>(i, few, truths) [a] s = ReduceSum<keepdims = 0>(o, axes) "
                        "[b] y = Relu(s)", "ab"),
    "large-or-nothing": ("o = OneHot<axis = -1>(i, few, lows) z = MatMul(o, nines) y = Relu(z)", ""),
    # best places: rows of a picture, and columns
    "share-of-the-best": ("w, k = TopK<axis = 1>(x, three) n = Shape<start = 1, end = 2>(x) [a] p = Cast<to = 1>(k) "
                          "[b] l = Cast<to = 1>(n) [c] q = Div(p, l) y = Relu(q)", "abc"),
    "places-of-the-best": ("w, k = TopK<axis = 1>(x, three) n = Shape<start = 1, end = 2>(x) r = Mod(k, n) "
                           "[a] p = Cast<to = 1>(r) [b] l = Cast<to = 1>(n) [c] q = Div(p, l) y = Relu(q)", "abc"),
    # sums of places and activations are places: of boxes, of what is looked at, of distances
    "boxes": (f"{PLACES} o = Sigmoid(x) [b] q = Add(o, p) [c] y = Mul(q, mean)", "abc"),
    "distances": (f"{PLACES} o = Sigmoid(x) [b] q = Add(o, p) [c] r = Transpose(q) [d] s = Sub(q, r) [e] l = Abs(s) "
                  "[f] k = Neg(l) [g] w = Exp(k) y = Relu(w)", "abcdefg"),
    "warp": (f"{PLACES} [b] l = Cast<to = 1>(n) [c] q = Div(p, l) [d] r = Expand(q, flow) o = Tanh(smooth) "
             "[e] z = Add(o, r) [f] s = GridSample(smooth, z) y = Relu(s)", "abcdef"),
    "boxes-by-class": ("l = ArgMax<axis = 1>(x) o = Sigmoid(h) w = ReduceMax<keepdims = 0>(o) [a] k = Cast<to = 1>(l) "
                       "[b] q = Mul(k, w) [c] r = Unsqueeze(q, last) [d] z = Add(o, r) "
                       "[e] y = NonMaxSuppression(z, h)", "abcde"),
    # what a layer or a norm reads, or what a factor is of, is an activation as any other
    "places-and-a-layer": (f"{PLACES} o = Sigmoid(smooth) [b] q = Add(o, p) z = Conv(q, kernels) y = Relu(z)", "ab"),
    "places-in-a-layer": (f"{PLACES} [b] q = Expand(p, flow) [c] z = Conv(q, thin) y = Relu(z)", "abc"),
    "places-and-a-norm": (f"{PLACES} [b] q = Add(x, p) z = LayerNormalization(q, scale) y = Relu(z)", "ab"),
    "places-and-a-factor": (f"{PLACES} o = Sigmoid(x) [b] q = Add(o, p) [c] r = Mul(q, x) y = Relu(r)", "abc"),
    # pixels that are made smaller are pixels
    "resized-pixels": ("p = Cast<to = 1>(image) [a] r = Resize(p, nothing, halves) [b] q = Sub(r, means) "
                       "y = Conv(q, kernels)", "ab"),
    # subgraphs: what branches make, and what is carried from turn to turn
    "branches": ("k = Size(x) w = Greater(k, few) p = If (w) <"
                 "then_branch = one () => (float[N, S] p1) { [a] p1 = Cast<to = 1>(i) }, "
                 "else_branch = two () => (float[N, S] p2) { j = Neg(i) [b] p2 = Cast<to = 1>(j) }> "
                 "[c] q = Unsqueeze(p, last) [d] r = Mul(q, f) [e] s = Sin(r) y = Mul(s, h)", "abcde"),
    "steps-of-a-scan": ("l, p = Scan<num_scan_inputs = 1, body = turn (float k, float j) => (float k1, float o) "
                        "{ [a] k1 = Add(k, j) [b] o = Mul(k1, one) }>(nil, t) [c] q = Unsqueeze(p, last) "
                        "[d] r = Mul(q, f) [e] s = Sin(r) y = Relu(s)", "abcde"),
    "turns-of-a-scan": ("l, p = Scan<num_scan_inputs = 1, body = turn (float k, float j) => (float k1, float o) "
                        "{ [a] k1 = Add(k, one) w = Sigmoid(j) [b] o = Div(w, k1) }>(nil, t) y = Relu(p)", "ab"),
    "states-of-a-scan": ("l, p = Scan<num_scan_inputs = 1, body = turn (float k, float j) => (float k1, float o) "
                         "{ w = Sigmoid(j) k1 = Add(k, w) o = Tanh(k1) }>(nil, t) y = Relu(p)", ""),
    # a layer makes activations of anything
    "layer": ("[a] p = Cast<to = 1>(i) [b] q = Unsqueeze(p, last) n = Shape(h) [c] e = Expand(q, n) r = Relu(h) "
              "[d] s = Mul(e, r) g = MatMul(s, v) y = Relu(g)", "abcd"),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "wanted"), CASES.values(), ids=CASES.keys())
def test_what_counts_is_found(nodes: str, wanted: str) -> None:
    made = tiny.read(tiny.model(f"g ({INPUTS}) => (y) {{ {nodes} }}", CONSTANTS))
    prepare(made)
    found = [node.name or "" for node in counts_in(made, types_of(made)).nodes]
    names = {node.name for node in graph.nodes(made) if len(node.name or "") == 1 and node.name in "abcdefg"}
    assert {name for name in found if name in names} == set(wanted.replace(" n", ""))
    assert len(found) == len(wanted.replace(" ", ""))


def test_many_readers_of_a_mask_are_looked_at_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them asks what all of them do."""
    asked: list[str] = []
    reads_mask = uses._reads_mask
    monkeypatch.setattr(uses, "_reads_mask", lambda *given: asked.append("") or reads_mask(*given))

    def looks(count: int) -> int:
        layers = [
            f"b{k} = Cast<to = 9>(i) w{k} = Where(b{k}, t{k}, low) k{k} = Cast<to = 1>(i) t{k + 1} = Mul(w{k}, k{k})"
            for k in range(count)
        ]
        text = f"g (int64[N, S] i, float[N, S] t0) => (y) {{ {' '.join(layers)} y = Softmax(t{count}) }}"
        made = tiny.read(tiny.model(text, CONSTANTS))
        asked.clear()
        assert not counts_in(made, types_of(made)).nodes
        return len(asked)

    assert looks(40) == 2 * looks(20)


ROTARY = """g (int64[N, S] i, float[N, S, 64] x) => (y) {
  [cast] p = Cast<to = 1>(i) [column] q = Unsqueeze(p, last) [angle] r = Mul(q, f) [sine] s = Sin(r)
  [first] h = MatMul(x, w) [turn] u = Mul(h, s) [last] y = MatMul(u, w) }"""


def rotary(width: int = 64) -> onnx.ModelProto:
    f = (1e4 ** -(np.arange(width) / width)).astype(np.float32).reshape(1, 1, width)
    return tiny.model(
        ROTARY.replace("64] x", f"{width}] x"), {"f": f, "w": normal(width, width), "last": np.array([-1])}
    )


@pytest.mark.parametrize(("target", "is_kept"), [("onnx", True), ("ort-cuda", True), ("ort-cpu", False)])
def test_the_plan_says_what_counts_and_why(target: str, is_kept: bool) -> None:
    made = tiny.read(rotary())
    prepare(made)
    plan = make_plan(made, Recipe("fp16"), targets.get(target), types_of(made))
    kept = {choice.node for choice in plan if choice.reason == REASON}
    assert kept == ({"cast", "column", "angle", "sine"} if is_kept else set())
    assert plan.choices["first"].method == (Method.HALF if is_kept else Method.STORED)


@pytest.mark.parametrize("scheme", ["fp16", "bf16", "w4a16", "w8a8-dynamic"])
@pytest.mark.parametrize("target", [targets.get("onnx"), targets.get("onnxq")], ids=["onnx", "onnxq"])
def test_frequencies_are_not_rounded(scheme: str, target: Target) -> None:
    """A table of 256 of them is long enough to be worth fewer bits otherwise."""
    made = tiny.read(rotary(256))
    prepare(made)
    plan = make_plan(made, Recipe(scheme), target, types_of(made))
    assert plan.choices["angle"].method is Method.KEEP
    assert plan.choices["angle"].reason == REASON


def test_bounds_are_kept_by_arithmetic() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = (np.sort(rng.integers(-9, 9, 2)) for _ in range(2))
        spanned = [Span(float(low), float(high), whole=True) for low, high in (a, b)]
        x, y = (rng.integers(low, high + 1, 50).astype(np.float64) for low, high in (a, b))
        assert_within(spans.added(*spanned), x + y)
        assert_within(spans.multiplied(*spanned), x * y)
        assert_within(spans.absolute(spanned[0]), np.abs(x))
        assert_within(spans.negated(spanned[0]), -x)
        assert_within(spans.total(spanned[0]), np.cumsum(x))
        assert_within(spans.total(spanned[0], x.size), np.cumsum(x))
        assert_within(spans.exponential(spanned[0]), np.exp(x))
        assert_within(spans.clipped(*spanned, spanned[1]), np.clip(x, *b))
        if (y != 0).all():
            assert_within(spans.divided(*spanned, whole=False), x / y)
            assert_within(spans.divided(*spanned, whole=True), np.trunc(x / y))


def assert_within(found: Span, numbers: NDArray) -> None:
    assert found.low - 1e-9 <= numbers.min() and numbers.max() <= found.high + 1e-9
    assert not found.whole or np.array_equal(numbers, np.rint(numbers))
