"""Scaled channels stay numbers: no factor makes more of an activation than its type holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

from onnxq.calibration.layers.balance_channels import balanced
from onnxq.job import open_job
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
TEXT = "g (float[n, 32] x) => (float[n, 8] y) { a = MatMul (x, W)  r = Relu (a)  y = MatMul (r, V) }"


@pytest.mark.parametrize("size", [1.0, 1e30, 1e37])
def test_what_was_finite_stays_finite(size: float, tmp_path: Path) -> None:
    """Not even where a quiet channel is the difference of two sums that are loud."""
    w = tiny.normal(32, 64)
    quiet = np.arange(64) % 16 == 3
    w[16:, quiet] = -w[:16, quiet]
    constants = {"W": w, "V": tiny.normal(64, 8, seed=1) / 64}
    path = tiny.save(tiny.model(TEXT, constants), tmp_path)
    x = [np.tile(tiny.normal(4, 16, seed=seed), 2) + tiny.normal(4, 32, seed=seed) / 4096 for seed in range(24)]
    data = [{"x": each * np.float32(size)} for each in x]
    job = open_job(path, Recipe("w8a8", keep_slow=True), "onnx", data)
    made = balanced(job)
    assert bool(made.ways) == (size < 1e37)
    for feed in data:
        wanted, found = (Session(each.model).run(feed)[0] for each in (job, made.job))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
