"""What the formats and layouts of this package pack is what the kernels read."""

from __future__ import annotations

import ctypes

import kernels
import numpy as np
import pytest
from kernels import Problem, address

from onnxq import formats, layouts
from onnxq.algorithms import DATA_FREE
from onnxq.formats import E8M0, Granularity
from onnxq.runtime import native

pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

#: Those whose scales are one number a block, by the kernel's word for them.
WORDS = {
    **dict.fromkeys(("int2", "int3", "int4", "uint2", "uint4", "q4_0", "pow2_int4"), "int4"),
    **dict.fromkeys(("int8", "uint8", "q8_0", "pow2_int8"), "int8"),
    **{name: name for name in ("nf4", "fp4", "mxfp4")},
}
SCALE_TYPES = (np.dtype(np.float32), np.dtype(np.float16), E8M0)


@pytest.mark.parametrize("isa", kernels.isas())
@pytest.mark.parametrize("name", WORDS)
def test_packed(name: str, isa: str) -> None:
    w = np.random.default_rng(7).standard_normal((37, 80)).astype(np.float32)
    q = DATA_FREE["rtn"](w, formats.get(name), Granularity(1, 32))
    weight, scales = layouts.onnxq_tiles(q), layouts.onnxq_scales(q)
    zeros = None if q.zero_points is None else layouts.onnxq_zero_points(q)
    x = np.random.default_rng(8).standard_normal((5, 80)).astype(np.float32)
    y = np.empty((5, 37), np.float32)
    made = Problem(
        M=5, N=37, K=80, block=32, x=address(x), weight=address(weight), scales=address(scales), y=address(y)
    )
    made.zero_points = address(zeros)
    made.format, made.exact = kernels.FORMATS.index(WORDS[name]), 1
    assert q.scales is not None
    made.scale_type = SCALE_TYPES.index(q.scales.dtype)
    found = ctypes.CDLL(str(native.path()))
    assert found.onnxq_matmul(isa.encode(), ctypes.byref(made), ctypes.c_int32(1)) == 0
    decoded = q.dequantize().astype(np.float64)
    # float32 throughout: see kernels.exact_bound.
    bound = (80 + 6) * 2.0**-24 * np.abs(x) @ np.abs(decoded).T
    assert np.all(np.abs(y - x @ decoded.T) <= bound)
