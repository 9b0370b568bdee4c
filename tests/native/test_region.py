"""Regions: the same numbers as their bodies, by every kernel; refused where their steps cannot be right."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import islands
import kernels
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net, operators, with_regions
from numpy.typing import NDArray

import onnxq
from onnxq.errors import BadModel
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument
HAS_LIBRARY = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
pytestmark = HAS_LIBRARY


#: Those of regions; where another is forced, the next best of them runs.
ISAS = [isa for isa in kernels.isas() if isa in ("amx", "avx512_vnni", "avx2", "scalar")]


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


CONVS = {
    "1x1": {"kernel": (1, 1)},
    "3x3": {"kernel": (3, 3), "pads": [1, 1, 1, 1]},
    "strided": {"kernel": (3, 3), "pads": [1, 1, 1, 1], "strides": [2, 2]},
    "wide-stride": {"kernel": (2, 3), "strides": [3, 2]},
    "dilated": {"kernel": (3, 3), "pads": [2, 3, 2, 3], "dilations": [2, 3]},
    "uneven-pads": {"kernel": (2, 4), "pads": [0, 1, 1, 2]},
    "5x5": {"kernel": (5, 5), "pads": [2, 2, 2, 2]},
    "strided-1x1": {"kernel": (1, 1), "strides": [2, 2]},
}


@pytest.mark.parametrize("channels", [(1, 1), (3, 17), (24, 33), (70, 40)], ids=str)
@pytest.mark.parametrize("kind", CONVS)
def test_convolutions(kind: str, channels: tuple[int, int]) -> None:
    net = Net(1, (2, channels[0], 9, 12))
    net.outputs.append(net.conv(net.x, channels[1], act="Relu", **CONVS[kind]))
    require_equal(net)


@pytest.mark.parametrize("groups", [5])
@pytest.mark.parametrize("kind", CONVS)
def test_grouped_convolutions(kind: str, groups: int) -> None:
    net = Net(2, (1, 6 * groups, 9, 12))
    net.outputs.append(net.conv(net.x, 3 * groups, group=groups, act="Clip", **CONVS[kind]))
    require_equal(net)


@pytest.mark.parametrize("channels", [2, 64, 100])
@pytest.mark.parametrize("kind", CONVS)
def test_depthwise_convolutions(kind: str, channels: int) -> None:
    net = Net(3, (2, channels, 9, 12))
    net.outputs.append(net.conv(net.x, channels, group=channels, act="Relu", **CONVS[kind]))
    require_equal(net)


@pytest.mark.parametrize("kernel", [(5, 3), (9, 1), (6, 5)], ids=str)
def test_depthwise_windows_of_more_than_four_rows(kernel: tuple[int, int]) -> None:
    net = Net(18, (2, 70, 13, 12))
    for more in ({}, {"strides": [2, 2]}, {"dilations": [1, 2]}):
        net.outputs.append(net.conv(net.x, 70, kernel, group=70, pads=[2, 2, 2, 2], **more))
    require_equal(net)


@pytest.mark.parametrize("channels", [1, 24, 40])
def test_pads_larger_than_windows(channels: int) -> None:
    """Rows of the output are longer than rows of the input with the pads that they share."""
    net = Net(17, (2, channels, 9, 12))
    for kernel, pads in (((1, 1), [1, 2, 1, 2]), ((2, 1), [2, 1, 2, 1]), ((3, 3), [4, 5, 3, 6])):
        net.outputs.append(net.conv(net.x, 33, kernel, pads=pads))
        net.outputs.append(net.conv(net.x, channels, kernel, pads=pads, group=channels))
    require_equal(net)


@pytest.mark.parametrize("size", [(1, 1), (1, 17), (33, 1), (2, 2), (16, 16), (7, 40)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_sizes_of_images(size: tuple[int, int], stride: int) -> None:
    net = Net(4, (1, 32, *size))
    y = net.conv(net.x, 48, (3, 3), pads=[1, 1, 1, 1], strides=[stride, stride], bias=False)
    net.outputs.append(net.conv(y, 48, (1, 1)))
    require_equal(net)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pads_that_depend_on_the_size(auto_pad: str) -> None:
    net = Net(5, (1, 8, 10, 13), declared=("n", 8, "h", "w"))
    net.outputs.append(net.conv(net.x, 8, (3, 4), auto_pad=auto_pad, strides=[2, 3]))
    require_equal(net, (1, 8, 10, 13), (2, 8, 11, 9), (1, 8, 4, 4))


def test_one_dimension() -> None:
    net = Net(6, (2, 5, 40))
    a = net.conv(net.x, 16, (5,), act="Relu", pads=[2, 2], strides=[2])
    b = net.conv(a, 16, (3,), group=16, pads=[1, 1])
    net.outputs += [net.pool("MaxPool", b, kernel_shape=[2], strides=[2]), net.concat([a, b])]
    require_equal(net)


@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("other", [(2, 20, 1, 1), (1, 1, 6, 7), (2, 20, 6, 1), (1, 1, 1, 1)], ids=str)
def test_operands_that_are_repeated(op: str, other: tuple[int, ...]) -> None:
    net = Net(7, (2, 20, 6, 7))
    a = net.conv(net.x, 20, (1, 1))
    small = net.node("ReduceMax", ["x", net.constant(np.array([i for i in range(4) if other[i] == 1], np.int64))])
    net.shapes[small] = net.x_shape
    b = net.quantized(small)
    net.outputs += [net.binary(op, a, b, "Relu"), net.binary(op, b, a)]
    require_equal(net)


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 1]], ids=str)
def test_pools(ceil: int, pads: list[int]) -> None:
    net = Net(8, (2, 70, 9, 8))
    a = net.conv(net.x, 70, (1, 1))
    net.outputs.append(net.pool("MaxPool", a, kernel_shape=[3, 2], strides=[2, 2], pads=pads, ceil_mode=ceil))
    for counts in (0, 1):  # powers of two: by other counts float32 rounds, as kernels of onnxruntime like
        y = net.pool("AveragePool", a, kernel_shape=[2, 2], strides=[2, 1], count_include_pad=counts)
        net.outputs.append(y)
    require_equal(net)


def test_products_at_the_end() -> None:
    for turned in (0, 1):
        net = Net(9, (3, 7, 4, 4), declared=("n", 7, "h", "w"))
        a = net.conv(net.x, 33, (3, 3), act="Relu")
        pooled = net.flatten(net.pool("GlobalAveragePool", a))
        net.outputs.append(net.gemm(pooled, 19, turned))
        made = require_equal(net, (3, 7, 4, 4), (0, 7, 4, 4), (1, 7, 6, 6))
        assert operators(made) == ["Region"]


def test_flattened_images() -> None:
    net = Net(10, (3, 7, 5, 4))
    net.outputs.append(net.gemm(net.flatten(net.conv(net.x, 9, (2, 2), act="Relu")), 40, 1))
    require_equal(net)


def test_batches_and_sizes_from_run_to_run() -> None:
    net = Net(11, (1, 12, 8, 8), declared=("n", 12, "h", "w"))
    a = net.conv(net.x, 12, (3, 3), act="Relu", pads=[1, 1, 1, 1])
    net.outputs.append(net.binary("Add", net.conv(a, 12, (3, 3), pads=[1, 1, 1, 1]), a))
    shapes = [(n, 12, h, w) for n in (0, 1, 5) for h, w in ((1, 1), (8, 8), (3, 30))]
    require_equal(net, *shapes, *[(1, 12, 2, w) for w in range(1, 20)])


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Any graph of steps: each reads what was made before, and what nobody reads is returned."""
    integer = st.integers
    shape = (draw(integer(1, 2)), draw(integer(1, 40)), draw(integer(1, 12)), draw(integer(1, 12)))
    net = Net(draw(integer(0, 2**32)), shape)
    made = [net.conv(net.x, draw(integer(1, 40)), (1, 1))]
    for _ in range(draw(integer(1, 6))):
        x = draw(st.sampled_from(made))
        n, channels, height, width = net.shapes[x]
        act = draw(st.sampled_from(["", "Relu", "Clip"]))
        kind = draw(st.sampled_from(["conv", "depthwise", "binary", "concat", "max", "average"]))
        if kind in ("conv", "depthwise"):
            kernel = (draw(integer(1, 4)), draw(integer(1, 4)))
            low = [draw(integer(0, k - 1)) for k in kernel]
            pads = [*low, *[k - 1 - p for k, p in zip(kernel, low, strict=True)]]
            strides = draw(st.sampled_from([[1, 1], [1, 1], [2, 2], [1, 3]]))
            outputs, group = (channels, channels) if kind == "depthwise" else (draw(integer(1, 70)), 1)
            made.append(net.conv(x, outputs, kernel, act, pads=pads, strides=strides, group=group))
        elif kind in ("binary", "concat"):
            fitting = [y for y in made if net.shapes[y] == net.shapes[x]]
            y = draw(st.sampled_from(fitting))
            if kind == "concat":
                made.append(net.concat([x, y, x]))
            else:
                made.append(net.binary(draw(st.sampled_from(["Add", "Mul"])), x, y, act))
        elif kind == "max":
            y = net.pool("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
            net.shapes[y] = (n, channels, height, width)
            made.append(y)
        elif height > 1 and width > 1:
            y = net.pool("AveragePool", x, kernel_shape=[2, 2])
            net.shapes[y] = (n, channels, height - 1, width - 1)
            made.append(y)
    read = {name for node in net.nodes for name in node.input}
    net.outputs += [y for y in made if y not in read or y == made[-1]]
    return net


@settings(max_examples=25, deadline=None)
@given(nets())
def test_any_graph_of_steps(net: Net) -> None:
    require_equal(net)


def test_other_scales_round_as_integers_do() -> None:
    """With scales that are no powers of two, sums in float32 depend on their order; those of int32 do not."""
    net = Net(12, (1, 30, 11, 11))
    net.outputs.append(net.conv(net.x, 50, (3, 3), pads=[1, 1, 1, 1]))
    weights = {node.input[1] for node in net.nodes if net.constants.get(node.input[0], net.x_shape) is not net.x_shape}
    biases = {
        n.input[1] for n in net.nodes if n.input[0] in net.constants and net.constants[n.input[0]].dtype == np.int32
    }
    for name, array in net.constants.items():
        if array.dtype == np.float32 and name not in weights - biases:
            net.constants[name] = array * np.float32(1.07)
    model = net.model()
    made = with_regions(model)
    x = samples(net)
    expected = by_definition(model, x)[0]
    (region,) = (node for node in made.graph.node if node.op_type == "Region")
    step = net.constants[region.input[int(said(region)[1].partition(" scale=")[2].split()[0])]]
    first, *others = (by_kernels(made, isa).run(None, {"x": x})[0] for isa in ISAS)
    for y in others:
        np.testing.assert_array_equal(y, first)
    assert np.abs(first - expected).max() <= step * 1.01
    assert np.mean(first != expected) < 0.002


def said(node: onnx.NodeProto) -> list[str]:
    """The steps of a region."""
    (text,) = (attribute.s.decode() for attribute in node.attribute if attribute.name == "steps")
    return str(text).split("\n")[1:]


def test_a_bias_of_another_scale_stays_outside() -> None:
    """It would be added to sums that it does not fit."""
    net = Net(16, (1, 3, 6, 6))
    net.outputs.append(net.conv(net.x, 4, (3, 3)))
    scale = next(
        n.input[1] for n in net.nodes if n.input[0] in net.constants and net.constants[n.input[0]].dtype == np.int32
    )
    net.constants[scale] = net.constants[scale] * 2
    assert "Region" not in operators(with_regions(net.model()))


def test_many_threads_and_sessions_at_once() -> None:
    net = Net(13, (2, 40, 20, 20), declared=("n", 40, "h", "w"))
    a = net.conv(net.x, 40, (3, 3), act="Relu", pads=[1, 1, 1, 1])
    net.outputs.append(net.binary("Add", a, net.conv(a, 40, (1, 1))))
    model = net.model()
    made = with_regions(model)
    inputs = [samples(net, (1 + i % 3, 40, 18 + i % 5, 20)) for i in range(8)]
    expected = [by_definition(model, x)[0] for x in inputs]
    session = onnxq.session(made.SerializeToString(), options(threads=4))

    def run(i: int) -> None:
        for k in range(i, i + 6):
            mine = session if i % 2 else onnxq.session(made.SerializeToString(), options(threads=2))
            np.testing.assert_array_equal(mine.run(None, {"x": inputs[k % 8]})[0], expected[k % 8])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))


# --- hostile files ---


@pytest.fixture(scope="module")
def honest() -> onnx.ModelProto:
    net = Net(14, (1, 3, 6, 6))
    a = net.conv(net.x, 4, (3, 3), act="Clip")
    net.outputs.append(net.binary("Add", net.concat([a, a]), net.conv(a, 8, (1, 1))))
    return with_regions(net.model())


def saying(model: onnx.ModelProto, text: str) -> onnx.ModelProto:
    """The same with another list of steps."""
    changed = copy.deepcopy(model)
    for node in changed.graph.node:
        for attribute in node.attribute:
            attribute.s = text.encode()
    return changed


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


def _texts(honest: onnx.ModelProto) -> Iterator[str]:
    (region,) = (node for node in honest.graph.node if node.op_type == "Region")
    yield "\n".join(["region 1", *said(region)])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_spoiled_steps_end_no_process(honest: onnx.ModelProto, data: st.DataObject) -> None:
    """Words from one place to another, other numbers: it runs, or is refused in a sentence."""
    (text,) = _texts(honest)
    words = text.replace("\n", " \n ").split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(3, len(words) - 1))
        other = data.draw(st.sampled_from([*words, "kernel=4000,4000", "pads=9,0,1048576,1048576", "strides=4096,1"]))
        number = data.draw(st.integers(0, 30))
        words[at] = f"{other.partition('=')[0]}={number}" if "=" in other and number < 25 else other
    spoiled = saying(honest, " ".join(words).replace(" \n ", "\n"))
    x = np.zeros((1, 3, 6, 6), np.float32)
    with contextlib.suppress(BadModel, InvalidArgument):
        onnxq.session(spoiled.SerializeToString(), options(threads=1)).run(None, {"x": x})


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
