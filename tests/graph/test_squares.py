"""Squares of what float16 holds are more than it holds: they stay in float up to where something makes them small."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from tiny import normal

from onnxq.planning.rows.squares import squares_in

CONSTANTS = {
    "two": np.float32(2),
    "three": np.float32(3),
    "one": np.float32(1),
    "some": np.float32(1e-5),
    "last": np.array([-1]),
    "w": normal(8, 8),
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
        "c s m b a",
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
    # no mean and no root of squares alone
    "square": ("[s] s = Mul(x, x) [p] y = MatMul(s, w)", ""),
    "cube": ("[s] s = Mul(x, x) [t] t = Mul(s, x) [a] y = Add(t, x)", ""),
    "third-power": ("[s] s = Pow(x, three) [a] a = Add(s, some) [r] y = Sqrt(a)", ""),
    "product": ("[s] s = Mul(x, z) [m] m = ReduceMean(s, last) [a] a = Add(m, some) [r] y = Sqrt(a)", ""),
    "beside-activations": ("[s] s = Mul(x, x) [a] a = Add(s, z) [r] y = Sqrt(a)", ""),
    "of-activations": ("[a] a = Add(x, some) [r] r = Sqrt(a) [d] y = Div(x, r)", ""),
}


@pytest.mark.parametrize(("nodes", "found"), CASES.values(), ids=CASES.keys())
def test_squares_are_found_to_where_they_are_small_again(nodes: str, found: str) -> None:
    made = tiny.read(tiny.model(f"g (float[N, 8] x, float[N, 8] z) => (y) {{ {nodes} }}", CONSTANTS))
    assert {node.name for node in squares_in(made)} == set(found.split())
