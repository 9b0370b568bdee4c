"""Step lists of bf16 regions that cannot be right are refused in a sentence, and end no process."""

from __future__ import annotations

import contextlib
import copy

import kernels
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbers_net import Net, steps, with_regions
from region_runs import options

import onnxq
from onnxq.errors import BadModel
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument
pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.skipif("avx512_bf16" not in kernels.isas(), reason="without bfloat16 the bodies run"),
]


@pytest.fixture(scope="module")
def honest() -> onnx.ModelProto:
    net = Net(13, (1, 3, 6, 6))
    a = net.node("LeakyRelu", [net.conv("x", (4, 3, 3, 3))])
    net.outputs.append(net.node("Add", [net.node("Concat", [a, a], axis=1), net.conv(a, (8, 4, 1, 1))]))
    return with_regions(net.model())


def _saying(model: onnx.ModelProto, text: str) -> onnx.ModelProto:
    changed = copy.deepcopy(model)
    for node in changed.graph.node:
        for attribute in node.attribute:
            attribute.s = text.encode()
    return changed


HOSTILE = {
    "region 1": "must begin with the line 'bf16 region 1'",
    "bf16 region 1\nquantize in=0 scale=1 zero=2": "is none that this version",
    "bf16 region 1\nread in=0 scale=1": "has no use for",
    "bf16 region 1\nread in=0\nconv x=0 weight=0 \nwrite x=1 out=0": "has no use for",
    "bf16 region 1\nread in=0\nconv x=0 weight=0\nwrite x=1 out=0": "reads input 0 as its weight",
    "bf16 region 1\nread in=0\nconv x=0,0,0 weight=1\nwrite x=1 out=0": "with 3 numbers",
    "bf16 region 1\nread in=0\nconv x=1 weight=1\nwrite x=1 out=0": "out of range",
    "bf16 region 1\nread in=0\nconv x=0 weight=1 group=3\nwrite x=1 out=0": "which no convolution of 3 groups",
    "bf16 region 1\nread in=0\nconv x=0 weight=1 act=99\nwrite x=1 out=0": "out of range",
    "bf16 region 1\nread in=0\nconv x=0 weight=1 act=3 low=1\nwrite x=1 out=0": "as its number of its activation",
    "bf16 region 1\nread in=0\naffine x=0 weight=1\nwrite x=1 out=0": "reads input 1 as its weight",
    "bf16 region 1\nread in=0": "makes not all outputs",
    "bf16 region 1\nread in=0\nwrite x=0 out=0\nwrite x=0 out=0": "which another step makes",
    "bf16 region 1\nread in=0\nwrite x=0 out=0\nadd x=1,0": "reads step 1",
}


@pytest.mark.parametrize("text", HOSTILE, ids=str)
def test_steps_that_cannot_be_right_are_refused(honest: onnx.ModelProto, text: str) -> None:
    with pytest.raises(BadModel, match=HOSTILE[text]):
        onnxq.session(_saying(honest, text).SerializeToString(), options())


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_spoiled_steps_end_no_process(honest: onnx.ModelProto, data: st.DataObject) -> None:
    """Words from one place to another, other numbers: it runs, or is refused in a sentence."""
    words = "\n".join(["bf16_region 1", *steps(honest)]).replace("\n", " \n ").split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(3, len(words) - 1))
        other = data.draw(st.sampled_from([*words, "kernel=4000,4000", "pads=9,0,1048576,1048576", "strides=4096,1"]))
        number = data.draw(st.integers(0, 30))
        words[at] = f"{other.partition('=')[0]}={number}" if "=" in other and number < 25 else other
    text = " ".join(words).replace(" \n ", "\n").replace("bf16_region", "bf16 region")
    with contextlib.suppress(BadModel, InvalidArgument):
        session = onnxq.session(_saying(honest, text).SerializeToString(), options(threads=1))
        session.run(None, {"x": np.zeros((1, 3, 6, 6), np.float32)})


def test_a_sum_of_other_sizes_is_refused_when_it_runs(honest: onnx.ModelProto) -> None:
    said = steps(honest)
    weight = next(word for word in said[1].split() if word.startswith("weight="))
    text = f"bf16 region 1\nread in=0\nconv x=0,0 {weight}\nwrite x=1 out=0"
    session = onnxq.session(_saying(honest, text).SerializeToString(), options())
    with pytest.raises(InvalidArgument, match="whose shape is not that of its sums"):
        session.run(None, {"x": np.zeros((1, 3, 6, 6), np.float32)})
