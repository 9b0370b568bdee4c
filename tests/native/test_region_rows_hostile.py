"""Lists of steps of rows that no onnxq wrote: refused in a sentence, or run; no process ends."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from islands import with_regions
from region_runs import HAS_LIBRARY, InvalidArgument, options, saying
from row_nets import Rows, block
from test_region_hostile import spoiled

import onnxq
from onnxq.errors import BadModel

pytestmark = HAS_LIBRARY


@pytest.fixture(scope="module")
def honest() -> onnx.ModelProto:
    net = Rows(212, (2, 6, 40))
    net.outputs.append(net.matmul(net.x, 4))
    made = with_regions(net.model())
    del made.functions[:]
    (node,) = made.graph.node
    for name, array in {
        "epsilon": np.float32(1e-3),
        "negative": np.float32(-1),
        "infinite": np.float32(np.inf),
        "three": np.ones(3, np.float32),
    }.items():
        node.input.append(name)
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return made


CODES = "scale=1 zero=2"
NORM, ATTENTION, INSTANCE = "layer_norm x=1 epsilon=", "attention x=1,1,1 factor=", "instance_norm x={} epsilon="
HEADS = "width=8,8 joined=1,1,1,1"
OUT, WRITTEN = "\ndequantize x=2 out=0", "\nwrite x=2 out=0"
REFUSED = {
    f"softmax x=0 {CODES}{OUT}": "no matrix, and no stack of them",  # of an image
    "write x=1 out=0": "makes codes and no float32",
    f"encode x=1 {CODES}{OUT}": "makes codes and no float32",
    f"plus x=1,1{WRITTEN}": "makes codes and no float32",
    f"decode x=1\ntable x=2 table=3 {CODES}\ndequantize x=3 out=0": "makes float32 and no codes",
    f"decode x=1{OUT}": "makes float32 and no codes",
    "decode x=1\nmatmul x=2,2\nwrite x=3 out=0": "makes float32 and no codes",
    f"softmax x=1 scale=1{WRITTEN}": "both 'scale' and 'zero'",
    f"matmul x=1,1{WRITTEN}": "rows of 40 by a matrix for 6",
    f"layer_norm x=1{WRITTEN}": "must say 'epsilon'",
    f"{NORM}NEGATIVE{WRITTEN}": "epsilon that is negative",
    f"{NORM}INFINITE{WRITTEN}": "not finite",
    f"{NORM}EPSILON weight=THREE{WRITTEN}": "3 numbers for 40 channels",
    f"{NORM}EPSILON bias=THREE{WRITTEN}": "3 numbers for 40 channels",
    f"{INSTANCE.format(1)}EPSILON weight=THREE bias=THREE {CODES}{OUT}": "channels of a matrix",
    f"{INSTANCE.format(0)}EPSILON weight=THREE bias=THREE {CODES}{OUT}": "numbers for",
    "decode x=1\nrotary x=2,2,2\nwrite x=3 out=0": "shape is not theirs",
    f"{ATTENTION}EPSILON heads=7 {HEADS} {CODES}{OUT}": "7 heads of 8",
    f"{ATTENTION}EPSILON heads=5 {HEADS} first=8,0,0 {CODES}{OUT}": "5 heads of 8",
    f"{ATTENTION}EPSILON heads=1048576 width=1048576,1048576 joined=1,1,1,1 {CODES}{OUT}": "heads of",
    f"{ATTENTION}EPSILON transposed=1 {CODES}{OUT}": "do not go together",
    f"{ATTENTION}INFINITE {CODES}{OUT}": "not finite",
    f"attention x=1,1,1,1 factor=EPSILON {CODES}{OUT}": "makes codes and no float32",
    f"attention x=1,1 factor=EPSILON {CODES}{OUT}": "with 2 numbers",
    f"read in=1 stack=1{WRITTEN}": "is read, and must be float32|rank",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_steps_that_cannot_be_are_refused(honest: onnx.ModelProto, text: str) -> None:
    (node,) = honest.graph.node
    steps = f"region 1\nquantize in=0 {CODES}\nquantize in=0 {CODES} stack=1\n{text}"
    for name in ("epsilon", "negative", "infinite", "three"):
        steps = steps.replace(name.upper(), str(list(node.input).index(name)))
    with pytest.raises((InvalidArgument, BadModel), match=REFUSED[text]):
        _ran(saying(honest, steps))


def _ran(model: onnx.ModelProto) -> None:
    session = onnxq.session(model.SerializeToString(), options(optimized=False))
    session.run(None, {"x": np.zeros((2, 6, 40), np.float32)})


@pytest.fixture(scope="module")
def transformer() -> onnx.ModelProto:
    net = Rows(215, (2, 9, 32))
    net.outputs.append(block(net, net.x, 4))
    return with_regions(net.model())


ROW_WORDS = (
    "heads=4",
    "width=8,8",
    "width=1,16777216",
    "joined=1,0,1,0",
    "first=8,0,24",
    "centred=0",
    "epsilon=3",
    "factor=2",
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_spoiled_steps_end_no_process(transformer: onnx.ModelProto, data: st.DataObject) -> None:
    """They run, or are refused in a sentence."""
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    changed = spoiled(transformer, draw)
    for attribute in changed.graph.node[0].attribute:
        lines = attribute.s.decode().split("\n")
        at = draw(1, len(lines) - 1)
        lines[at] += " " + ROW_WORDS[draw(0, len(ROW_WORDS) - 1)]
        attribute.s = "\n".join(lines if draw(0, 1) else lines[:at] + lines[at:][::-1]).encode()
    with contextlib.suppress(BadModel, InvalidArgument):
        onnxq.session(changed.SerializeToString(), options(threads=1)).run(
            None, {"x": np.zeros((2, 9, 32), np.float32)}
        )
