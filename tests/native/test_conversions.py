"""float16 and bfloat16 go in and out of nodes as numpy converts them, every one of them."""

from __future__ import annotations

import ml_dtypes
import nodes
import numpy as np
import pytest
from kernels import Weight
from nodes import BFLOAT16, FLOAT16
from test_ops import run

import onnxq
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

types = pytest.mark.parametrize(
    ("dtype", "type"), [(np.float16, FLOAT16), (ml_dtypes.bfloat16, BFLOAT16)], ids=["float16", "bfloat16"]
)


def diagonal(scale: float) -> Weight:
    """16 × 16, `scale` on its diagonal: y = scale · x, rounded once to float32 and once to the type of x."""
    codes = np.full((16, 16), 128, np.uint8) + np.eye(16, dtype=np.uint8)
    return Weight("int8", 16, 16, codes, np.full((16, 1), scale, np.float32), None)


@types
@pytest.mark.parametrize("scale", [1.0, 1.0001, 0.37, 1e-5, 3e-8, 300.0, 1e30, -7.7], ids=str)
def test_every_finite_number(monkeypatch: pytest.MonkeyPatch, dtype: type, type: int, scale: float) -> None:
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "scalar")
    numbers = np.arange(2**16, dtype=np.uint16).view(dtype)
    numbers = numbers[np.isfinite(numbers.astype(np.float32))]
    x = np.resize(numbers, (len(numbers) // 16 + 1, 16))
    with np.errstate(over="ignore"):
        wanted = (x.astype(np.float32) * np.float32(scale)).astype(dtype)
    # Zeros are compared as numbers: a sum that starts from +0 never ends at -0.
    np.testing.assert_array_equal(run(nodes.matmul(diagonal(scale), type=type, activations="exact"), x=x), wanted)


@types
def test_what_is_not_finite(dtype: type, type: int) -> None:
    x = np.zeros((3, 16), dtype)
    x[0, 3], x[1, 3], x[2, 3] = np.inf, -np.inf, np.nan
    y = run(nodes.matmul(diagonal(1.0), type=type, activations="exact"), x=x).astype(np.float32)
    assert (y[0, 3], y[1, 3]) == (np.inf, -np.inf) and np.isnan(y[2, 3])


def test_subnormal_halves_where_the_processor_takes_subnormal_floats_for_zero() -> None:
    """A subnormal half is a normal float, and the way there must not lead through a subnormal one."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    model = nodes.matmul(diagonal(1024.0), type=FLOAT16, activations="exact").SerializeToString()
    x = np.arange(1, 1024, dtype=np.uint16).view(np.float16)
    x = np.resize(x, (64, 16))
    (y,) = onnxq.session(model, options).run(None, {"x": x})
    np.testing.assert_array_equal(y, x * np.float16(1024))
