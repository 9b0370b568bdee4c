"""Outlier channels are seen in the weights of the norms before them."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from onnxq.plan import Choice, Method, Plan
from onnxq.planning.outliers import without_outliers

BODIES = {
    "norm": "n = LayerNormalization(x, gamma, beta)",
    "pieces": "m = ReduceMean<axes = [-1]>(x) s = Sqrt(m) d = Div(x, s) g = Mul(d, gamma) n = Add(g, beta)",
    "rms": "r = Sqrt(x) d = Div(x, r) n = Mul(gamma, d)",
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("outlier", [1.0, 3.0, 40.0])
def test_products_behind_outliers_stay_in_float(body: str, outlier: float) -> None:
    gamma, beta = np.ones(64, np.float32), np.zeros(64, np.float32)
    gamma[5] = outlier
    w = tiny.normal(64, 16)
    w[5] /= 1000  # as in trained models: a channel that is large is weighted little
    made = tiny.read(
        tiny.model(
            f"g (float[N, 64] x) => (y) {{ {BODIES[body]} y = MatMul(n, w) }}", {"gamma": gamma, "beta": beta, "w": w}
        )
    )
    name = tiny.find(made, "MatMul").name = "product"
    plan = Plan("w8a8-dynamic", "ort-cpu", {name: Choice(name, "MatMul", Method.DYNAMIC, "int8", None, w.size)})
    found = without_outliers(made, plan).choices[name]
    assert found.method is (Method.STORED if outlier > 10 else Method.DYNAMIC)
    # What it says is what happens: 8 bits with one scale for the whole tensor.
    n = np.random.default_rng(0).standard_normal((500, 64)) * gamma
    step = (n.max() - n.min()) / 255
    decibels = tiny.sqnr(n @ w, np.round(n / step) * step @ w)
    assert (decibels < 20) == (outlier > 10)
    if outlier > 10:
        told = float(found.reason.rsplit(" ", 2)[1])
        assert abs(told - decibels) < 4


def test_an_input_of_unknown_size_is_left_alone() -> None:
    made = tiny.read(tiny.model("g (float[N, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 16)}))
    name = tiny.find(made, "MatMul").name = "product"
    plan = Plan("w8a8-dynamic", "ort-cpu", {name: Choice(name, "MatMul", Method.DYNAMIC, "int8")})
    assert without_outliers(made, plan) == plan
