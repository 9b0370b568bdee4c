"""Errors of weights in reports: of rounding alone, by whatever names and scales of channels."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from onnxq.conversion.restore import restore_all
from onnxq.report.weights import weight_errors


def test_channels_that_were_scaled_are_scaled_back() -> None:
    """As balancing leaves them: what is told is the error of rounding, not that of another scale."""
    w = tiny.normal(64, 48)
    scales = np.exp(np.random.default_rng(1).uniform(-1, 1, (64, 1))).astype(np.float32)
    step = np.abs(w).max() / 127
    for factor, is_scaled in ((scales, True), (np.float32(1), False)):
        rounded = np.round(w / step) * step * factor
        models = [
            tiny.model("m (float[n, 64] x) => (float[n, 48] y) { y = MatMul (x, w) }", {"w": each})
            for each in (w, rounded)
        ]
        (row,) = weight_errors(*map(tiny.read, models))
        noise = np.sum(((rounded / factor - w) * factor) ** 2)
        assert row.is_scaled == is_scaled and row.shape == [64, 48]
        assert row.sqnr == pytest.approx(10 * np.log10(np.sum((w * factor) ** 2) / noise), abs=0.2)


@pytest.mark.parametrize(("shape", "scaled"), [((16, 8, 3, 3), (0, 1)), ((64, 1, 3, 3), (0,)), ((4, 128, 1, 1), (1,))])
def test_channels_of_kernels_that_were_scaled_are_scaled_back(shape: tuple[int, ...], scaled: tuple[int, ...]) -> None:
    """Between two balanced layers along both axes; of a channel that has a kernel of its own, the last layer's."""
    rng, w = np.random.default_rng(3), tiny.normal(*shape)
    factor = np.ones(shape)
    for axis in scaled:
        factor *= np.exp(rng.uniform(-2, 2, [n if i == axis else 1 for i, n in enumerate(shape)]))
    step = np.abs(w).max() / 127
    rounded = (np.round(w / step) * step * factor).astype(np.float32)
    groups = shape[0] if shape[1] == 1 else 1
    text = (
        f"m (float[1, {shape[1] * groups}, 8, 8] x) => (float[1, {shape[0]}, a, b] y) "
        f"{{ y = Conv <group = {groups}> (x, w) }}"
    )
    (row,) = weight_errors(*(tiny.read(tiny.model(text, {"w": each})) for each in (w, rounded)))
    wanted = 10 * np.log10(((w * factor) ** 2).sum() / ((rounded - w * factor) ** 2).sum())
    assert row.is_scaled and row.sqnr == pytest.approx(wanted, abs=2)


def test_weights_of_nodes_with_other_names_are_found_by_their_numbers() -> None:
    """Tools that write operators on codes call nodes otherwise."""
    plain = "m (float[4, 32] x) => (float[4, 32] y) { a = MatMul (x, w0) y = MatMul (a, w1) }"
    coded = """m (float[4, 32] x) => (float[4, 32] y) {
        d0 = DequantizeLinear (q0, s)  a = MatMul (x, d0)  d1 = DequantizeLinear (q1, s)  y = MatMul (a, d1)
    }"""
    s = np.float32(0.01)
    weights = {f"w{i}": tiny.normal(32, 32, seed=i) for i in range(2)}
    codes = {f"q{i}": np.rint(weights[f"w{1 - i}"] / s).clip(-128, 127).astype(np.int8) for i in range(2)}
    models = [tiny.model(plain, weights), tiny.model(coded, {**codes, "s": s})]
    for each, word in zip(models, ("node", "quant"), strict=True):
        for number, node in enumerate(node for node in each.graph.node if node.op_type == "MatMul"):
            node.name = f"{word}{number}"
    restored = tiny.read(models[1])
    restore_all(restored)
    found = list(weight_errors(tiny.read(models[0]), restored))
    assert [(row.node, row.format) for row in found] == [("node0", "int8"), ("node1", "int8")]
    assert all(row.sqnr is not None and row.sqnr > 30 for row in found)
