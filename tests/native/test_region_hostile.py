"""Lists of steps that are spoiled, hostile or do not fit are refused in a sentence; they end no process."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import islands
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from islands import Net, with_regions
from region_runs import HAS_LIBRARY, InvalidArgument, by_kernels, options, said, saying

import onnxq
from onnxq.errors import BadModel

pytestmark = HAS_LIBRARY


@pytest.fixture(scope="module")
def honest() -> onnx.ModelProto:
    net = Net(14, (1, 3, 6, 6))
    a = net.conv(net.x, 4, (3, 3), act="Clip")
    net.outputs.append(net.binary("Add", net.concat([a, a]), net.conv(a, 8, (1, 1))))
    return with_regions(net.model())


@pytest.fixture(scope="module")
def of_all_kinds() -> onnx.ModelProto:
    """What is moved, pooled, looked up by channel, added with a convolution, joined by rows, and multiplied."""
    net = Net(15, (1, 8, 6, 6))
    bent = net.function(net.conv(net.x, 8, (3, 3), pads=[1, 1, 1, 1]), "by channel")
    a = net.function(bent, "curve by channel")
    b = net.binary("Add", net.conv(a, 8, (1, 1), group=8), net.conv(a, 8, (1, 1)), "Relu")
    ends = [net.constant(np.array(each, np.int64)) for each in ([1], [5], [3])]
    c = net.moved("Slice", b, (1, 8, 6, 4), ends)
    pooled = net.pool("MaxPool", c, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    net.shapes[pooled] = net.shapes[c]
    e = net.flatten(net.pool("GlobalAveragePool", net.concat([c, pooled], 2)))
    f = net.gemm(e, 16, 1)
    net.shapes[f] = (1, 16)
    net.outputs += [net.gemm(net.activated(f, "Clip", 0.5), 4, 0), b]
    made = with_regions(net.model())
    (region,) = (node for node in made.graph.node if node.op_type == "Region")
    assert {"affine", "table", "slice", "concat", "product", "gemm"} <= {line.split()[0] for line in said(region)}
    return made


HOSTILE = {
    "": "must begin with the line 'region 1'",
    "region 2\nquantize in=0 scale=1 zero=2": "must begin with",
    "region 1": "must have 1 to 4096 steps",
    "region 1\n": "is none that this version",
    "region 1\nfly in=0": "is none that this version",
    "region 1\nquantize in=0 scale=1": "must say 'zero'",
    "region 1\nquantize in=0 scale=1 zero=2 x=0": "has no use for",
    "region 1\nquantize in=0 scale=1 zero=2 zero=2": "twice",
    "region 1\nquantize in=999 scale=1 zero=2": "out of range",
    "region 1\nquantize in=-1 scale=1 zero=2": "out of range",
    "region 1\nquantize in=- scale=1 zero=2": "whole numbers",
    "region 1\nquantize in=99999999999999999999 scale=1 zero=2": "whole numbers",
    "region 1\nquantize in=0,1 scale=1 zero=2": "with 2 numbers",
    "region 1\nquantize in=0 scale=2 zero=1\ndequantize x=0 out=0": "reads input 2 as its scale",
    "region 1\nquantize in=0 scale=0 zero=2\ndequantize x=0 out=0": "reads input 0 as its scale",
    "region 1\nadd x=0,0 scale=1 zero=2": "out of range",
    "region 1\nquantize in=0 scale=1 zero=2\nadd x=1,0 scale=1 zero=2": "out of range",
    "region 1\nquantize in=0 scale=1 zero=2\nadd x=0 scale=1 zero=2": "with 1 numbers",
    "region 1\nquantize in=0 scale=1 zero=2": "not all outputs",
    "region 1\nquantize in=0 scale=1 zero=2\ndequantize x=0 out=0\ndequantize x=0 out=0": "another step makes",
    "region 1\nquantize in=0 scale=1 zero=2\ndequantize x=0 out=0\ndequantize x=1 out=0": "makes no codes",
    "region 1\nquantize in=0 scale=1 zero=2\ntable x=0 table=2 scale=1 zero=2\ndequantize x=1 out=0": "256 codes",
    "region 1\nquantize in=0 scale=1 zero=2\nconv x=0 weight=1 weight_scale=1 scale=1 zero=2"
    "\ndequantize x=1 out=0": "as its weight",
}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_steps_that_cannot_be_right(honest: onnx.ModelProto, text: str) -> None:
    with pytest.raises(BadModel, match="onnxq node 'region'") as error:
        onnxq.session(saying(honest, text).SerializeToString(), options())
    assert HOSTILE[text] in str(error.value)


def test_tensors_that_no_memory_holds_are_refused(honest: onnx.ModelProto) -> None:
    doubled = [f"concat x={i},{i} scale=1 zero=2" for i in range(70)]
    text = "\n".join(["region 1", "quantize in=0 scale=1 zero=2", *doubled, "dequantize x=70 out=0"])
    for shape in ((1, 3, 6, 6), (2, 3, 6, 6)):
        changed = saying(honest, text)
        changed.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        session = onnxq.session(changed.SerializeToString(), options(optimized=False))
        with pytest.raises(InvalidArgument, match="more bytes than any memory has"):
            session.run(None, {"x": np.zeros(shape, np.float32)})


ODD = ("kernel=4000,4000", "pads=9,0,1048576,1048576", "strides=4096,1", "starts=-9,16777216,0,1", "steps=0,-1,1,1")
MORE = (
    "stops=0,0,-16777216,2",
    "axis=3",
    "group=8",
    "before=-9,9,0,1",
    "transposed=1",
    "low=0",
    "x=0,0",
    "perm=1,1,0,2",
)


def spoiled(model: onnx.ModelProto, draw: Callable[[int, int], int]) -> onnx.ModelProto:
    """Words from one place to another, other numbers, lines twice or not at all.

    Args:
        draw: a number from one to another.
    """
    (region,) = (node for node in model.graph.node if node.op_type == "Region")
    words = " \n ".join(["region 1", *said(region)]).split(" ")
    for _ in range(draw(1, 4)):
        at = draw(3, len(words) - 1)
        every = [*words, *ODD, *MORE]
        other, number = every[draw(0, len(every) - 1)], draw(0, 40)
        words[at] = f"{other.partition('=')[0]}={number}" if "=" in other and number < 25 else other
    return saying(model, " ".join(words).replace(" \n ", "\n"))


@pytest.mark.parametrize("net", ["honest", "of_all_kinds"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_spoiled_steps_end_no_process(net: str, data: st.DataObject, request: pytest.FixtureRequest) -> None:
    """It runs, or is refused in a sentence."""
    model = request.getfixturevalue(net)
    changed = spoiled(model, lambda low, high: data.draw(st.integers(low, high)))
    x = np.zeros([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim], np.float32)
    with contextlib.suppress(BadModel, InvalidArgument):
        onnxq.session(changed.SerializeToString(), options(threads=1)).run(None, {"x": x})


def test_constants_that_are_given_in_the_run_are_refused(honest: onnx.ModelProto) -> None:
    changed = copy.deepcopy(honest)
    weight = next(i for i in changed.graph.initializer if len(i.dims) == 4)
    given = onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
    changed.graph.initializer.remove(weight)
    changed.graph.input.append(given)
    with pytest.raises(BadModel, match="which is no constant"):
        onnxq.session(changed.SerializeToString(), options())


def test_inputs_that_do_not_fit_are_refused() -> None:
    net = Net(15, (1, 3, 6, 6), declared=("n", "c", "h", "w"))
    net.outputs.append(net.conv(net.x, 4, (3, 3)))
    session = onnxq.session(with_regions(net.model()).SerializeToString(), options())
    for shape, why in (((1, 4, 6, 6), "convolves 4 channels"), ((1, 3, 2, 6), "larger than its input")):
        with pytest.raises(InvalidArgument, match=why):
            session.run(None, {"x": np.zeros(shape, np.float32)})


def test_forced_names_that_do_not_exist_are_refused(honest: onnx.ModelProto) -> None:
    with pytest.raises(BadModel, match="is not a kernel of this library"):
        by_kernels(honest, "sse9")


def test_helper_counts_what_it_says() -> None:
    assert islands.operators(Net(0, (1, 1, 1, 1)).model()) == ["QuantizeLinear", "DequantizeLinear"]
