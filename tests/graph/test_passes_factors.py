"""Factors of columns go into products, slopes of one number into LeakyRelu: fewer nodes, the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from test_passes_folding import apply, assert_untouched
from tiny import normal

from onnxq.passes.normalize.fold_layer_scales import FoldLayerScales
from onnxq.passes.normalize.leaky_relus import LeakyRelus

CONSTANTS = {
    "w": normal(6, 8),
    "wt": normal(8, 6),
    "b": normal(8, seed=1),
    "rows": normal(5, 8, seed=2),
    "column": normal(5, 1, seed=3),
    "g": np.abs(normal(8, seed=4)) + 0.1,
    "negative": normal(8, seed=5) - 3,
}
FACTORS = {
    "MatMul": "m = MatMul(x, w)  y = Mul(m, g)",
    "its bias": "m = MatMul(x, w)  a = Add(m, b)  y = Mul(negative, a)",
    "a bias for each row": "m = MatMul(x, w)  a = Add(rows, m)  y = Mul(g, a)",
    "one number a row": "m = MatMul(x, w)  a = Add(m, column)  y = Mul(g, a)",
    "Gemm": "m = Gemm<alpha = 2.0, beta = 0.5>(x, w, b)  y = Mul(m, g)",
    "a turned weight": "m = Gemm<transB = 1>(x, wt, b)  y = Mul(m, g)",
    "Gemm and a bias": "m = Gemm<transB = 1>(x, wt)  a = Add(m, b)  y = Mul(m2, a)",
}


def model(body: str, inputs: str = "float[5, 6] x") -> tuple[str, dict[str, np.ndarray]]:
    body = body.replace("m2", "g")
    used = {
        name: each
        for name, each in CONSTANTS.items()
        if any(f"{edge}{name}{end}" in body for edge in "( " for end in ",)")
    }
    return f"g ({inputs}) => (y) {{ {body} }}", used


@pytest.mark.parametrize("case", FACTORS)
def test_factors_of_columns_go_into_a_product(case: str) -> None:
    text, used = model(FACTORS[case])
    made = apply(FoldLayerScales, text, used)
    assert "Mul" not in tiny.ops(made)
    x = normal(5, 6, seed=7)
    wanted = tiny.evaluate(tiny.model(text, used), x=x)[0]
    np.testing.assert_allclose(tiny.evaluate(made, x=x)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "m = MatMul(x, w)  y = Mul(m, m)",
        "m = MatMul(x, w)  y = Mul(m, column)",
        "m = MatMul(x, w)  n = MatMul(x, w)  a = Add(m, n)  y = Mul(a, g)",
        "m = MatMul(x, w)  n = MatMul(x, w)  s = Mul(m, g)  y = Add(s, n)",
        "m = MatMul(x, w)  s = Mul(m, g)  y = Add(s, m)",
        "m = MatMul(x, w)  a = Add(m, b)  s = Mul(a, g)  y = Add(s, b)",
        "r = Relu(x)  m = MatMul(r, w)  t = Tanh(m)  y = Mul(t, g)",
    ],
)
def test_what_others_read_too_stays(body: str) -> None:
    assert_untouched(FoldLayerScales, *model(body))


def test_factors_that_would_take_all_digits_stay() -> None:
    text, used = model(FACTORS["MatMul"])
    assert_untouched(FoldLayerScales, text, used | {"g": np.full(8, 1e-6, np.float32)})


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1), ()], ids=str)
def test_one_slope_is_an_attribute(shape: tuple[int, ...]) -> None:
    text, used = "g (float[2, 8, 5] x) => (y) { y = PRelu(x, s) }", {"s": np.full(shape, 0.3, np.float32)}
    made = apply(LeakyRelus, text, used)
    assert tiny.ops(made) == ["LeakyRelu"]
    x = normal(2, 8, 5)
    np.testing.assert_array_equal(tiny.evaluate(made, x=x)[0], tiny.evaluate(tiny.model(text, used), x=x)[0])


def test_other_slopes_stay() -> None:
    text = "g (float[2, 8, 5] x, float[1] s) => (y) { y = PRelu(x, s) }"
    assert_untouched(LeakyRelus, text, {})
    assert_untouched(LeakyRelus, "g (float[2, 8, 5] x) => (y) { y = PRelu(x, k) }", {"k": normal(8, 1)})
    halves = tiny.read(tiny.model("g (float16[2, 8] x) => (y) { y = PRelu(x, k) }", {"k": np.float16([0.5])}))
    assert not LeakyRelus()(halves).modified and isinstance(halves, ir.Model)
