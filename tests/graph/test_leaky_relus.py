"""PRelu of one slope becomes a LeakyRelu, which computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from test_passes_folding import apply, assert_untouched
from tiny import normal

from onnxq.passes.normalize.leaky_relus import LeakyRelus


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
    assert not LeakyRelus()(halves).modified
