"""Runs of models with regions: by definition, by every kernel, and both compared bit for bit."""

from __future__ import annotations

import copy
import os

import kernels
import numpy as np
import onnx
import pytest
from islands import Net, operators, with_regions
from numpy.typing import NDArray

import onnxq
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument
HAS_LIBRARY = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")


#: Those of regions; where another is forced, the next best of them runs.
ISAS = [isa for isa in kernels.isas() if isa in ("amx", "avx512_vnni", "avx_vnni", "avx2", "scalar")]


def options(threads: int = 2, optimized: bool = True) -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.log_severity_level = 4  # what is refused is raised as well
    made.intra_op_num_threads = threads
    if not optimized:
        made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return made


def by_definition(model: onnx.ModelProto, x: NDArray) -> list[NDArray]:
    """By ONNX's definitions of the operators, in float32: without the library, and without what fuses them."""
    session = ort.InferenceSession(model.SerializeToString(), options(optimized=False))
    found: list[NDArray] = session.run(None, {"x": x})
    return found


def by_kernels(model: onnx.ModelProto, isa: str) -> ort.InferenceSession:
    before = os.environ.get("ONNXQ_FORCE_ISA", "")
    os.environ["ONNXQ_FORCE_ISA"] = isa
    try:
        return onnxq.session(model.SerializeToString(), options(optimized=False))  # of all that is no region
    finally:
        os.environ["ONNXQ_FORCE_ISA"] = before


def samples(net: Net, shape: tuple[int, ...] | None = None) -> NDArray:
    return net.rng.uniform(-9, 9, shape or net.x_shape).astype(np.float32)


def require_equal(net: Net, *shapes: tuple[int, ...]) -> onnx.ModelProto:
    """Bit for bit, by every kernel, and by the body."""
    model = net.model()
    made = with_regions(model)
    assert "Region" in operators(made)
    sessions = [by_kernels(made, isa) for isa in ISAS]
    for shape in shapes or (net.x_shape,):
        x = samples(net, shape)
        expected = by_definition(model, x)
        for found in (by_definition(made, x), *(session.run(None, {"x": x}) for session in sessions)):
            for y, y0 in zip(found, expected, strict=True):
                assert y.shape == y0.shape
                np.testing.assert_array_equal(y, y0)
    return made


def said(node: onnx.NodeProto) -> list[str]:
    """The steps of a region."""
    (text,) = (attribute.s.decode() for attribute in node.attribute if attribute.name == "steps")
    return str(text).split("\n")[1:]


def steps_of(model: onnx.ModelProto) -> list[str]:
    """The words of the steps of all regions of the main graph."""
    return [line.split()[0] for node in model.graph.node if node.op_type == "Region" for line in said(node)]


def saying(model: onnx.ModelProto, text: str) -> onnx.ModelProto:
    """The same with another list of steps."""
    changed = copy.deepcopy(model)
    for node in changed.graph.node:
        for attribute in node.attribute:
            attribute.s = text.encode()
    return changed
