"""Spoiled lists of steps of images, lines, rows and bfloat16 are computed or refused: under sanitizers, too."""

from __future__ import annotations

import contextlib
import random

import kernels
import numpy as np
import pytest
from attack import mutants_regions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from region_runs import HAS_LIBRARY, InvalidArgument, options, ort

import onnxq
from onnxq.errors import BadModel, CheckFailed

pytestmark = HAS_LIBRARY
#: What onnxruntime itself refuses: shapes that its memory does not hold, bodies that do not fit.
REFUSED = (BadModel, CheckFailed, InvalidArgument, ort.capi.onnxruntime_pybind11_state.RuntimeException)


@pytest.mark.sweep
@pytest.mark.parametrize("made", mutants_regions.MADE, ids=lambda made: made.__name__)
@settings(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), count=st.integers(1, 3))
def test_spoiled_steps_end_no_process(made: mutants_regions.Made, seed: int, count: int) -> None:
    if made is mutants_regions.numbers and "avx512_bf16" not in kernels.isas():
        pytest.skip("without bfloat16 the bodies run")
    r = random.Random(seed)
    model = made(r)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    node = next(node for node in model.graph.node if node.op_type in ("Region", "Bf16Region"))
    for _ in range(count):
        mutants_regions.spoil(model, node, r)
    del model.functions[:]
    with contextlib.suppress(*REFUSED):
        session = onnxq.session(model.SerializeToString(), options(threads=1, optimized=False))
        x = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
        given = x.copy()
        outputs = session.run(None, {"x": x})
        assert all(y.dtype == np.float32 for y in outputs)
        np.testing.assert_array_equal(x, given)
