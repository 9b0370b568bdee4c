"""What only a GPU can answer: capture of CUDA graphs, and streams. Skipped, visibly, where there is none."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from abi import FORMATS, PATHS, SCALES, TYPES, Matmul, random_weight, random_x
from device import Device


@pytest.mark.parametrize("path", ["gemv", "tensor"])
def test_a_captured_product_computes_anew_at_every_replay(gpu: Device, path: str) -> None:
    w, m = random_weight(96, 4096), 3
    first, second = (random_x(m, 4096, np.dtype(np.float16), seed) for seed in (1, 2))
    y = np.full((m, 96), np.nan, np.float16)
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("stream", ctypes.byref(stream))
    gpu.stream = stream
    try:
        with gpu.memory(first, w.tiles, w.scale_tiles, y) as (px, pw, ps, py):
            p = Matmul(
                m, 96, 4096, w.block, FORMATS[w.format], TYPES[first.dtype], SCALES[w.scales.dtype], 0, PATHS[path],
                px, pw, ps, None, None, py,
            )  # fmt: skip
            gpu.call("prepare", ctypes.byref(p))
            gpu.call("capture", stream)
            gpu.call("matmul", ctypes.byref(p), stream, None)
            gpu.call("captured", stream, ctypes.byref(graph))
            for x in (first, second):
                gpu.copy(px, x.ctypes.data, x.nbytes)
                gpu.call("replay", graph, stream)
                gpu.copy(y.ctypes.data, py, y.nbytes)
                wanted = x.astype(np.float64) @ w.values.T
                assert np.linalg.norm(y - wanted) < 2e-3 * np.linalg.norm(wanted)
            gpu.call("free_graph", graph)
    finally:
        gpu.stream = ctypes.c_void_p(None)
