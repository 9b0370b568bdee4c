"""Products of more than a matrix by a constant one: the same numbers as their bodies, by every kernel."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net, operators, with_regions
from region_runs import (
    HAS_LIBRARY,
    ISAS,
    InvalidArgument,
    by_definition,
    by_kernels,
    options,
    require_equal,
    said,
    samples,
    saying,
    steps_of,
)

import onnxq
from onnxq.errors import BadModel

pytestmark = HAS_LIBRARY
CODES = "scale=1 zero=2"


@pytest.mark.sweep
@pytest.mark.each_value
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", [1, 3, 48, 130])
@pytest.mark.parametrize("leading", [(5,), (2, 7), (1, 1), (3, 1), (2, 3, 17)], ids=str)
def test_products_of_any_rank(leading: tuple[int, ...], inputs: int, bias: bool) -> None:
    net = Net(91, (*leading, inputs))
    hidden = net.quantized(net.matmul(net.x, 33, bias), 2.0**-1)
    net.outputs.append(net.matmul(hidden, 40, bias))
    made = require_equal(net)
    assert steps_of(made) == ["quantize", "product", "gemm"]


@pytest.mark.parametrize("act", ["Relu", "Clip"])
@pytest.mark.parametrize("bias", [True, False])
def test_activations_belong_to_products(act: str, bias: bool) -> None:
    net = Net(92, (2, 9, 24))
    net.outputs.append(net.matmul(net.activated(net.matmul(net.x, 31, bias), act, 2.0**-1), 8))
    (product,) = [line for line in said(require_equal(net).graph.node[0]) if line.startswith("product")]
    assert ("relu=1" if act == "Relu" else "low=") in product


def test_a_feed_forward_block_is_one_region() -> None:
    """As of a transformer: into more numbers, a function of each, and back; and what was there is added."""
    net = Net(93, (2, 9, 24), declared=("n", "t", 24))
    hidden = net.quantized(net.matmul(net.x, 96), 2.0**-2)
    made = net.matmul(net.function(hidden, "Gelu"), 24)
    net.shapes[made] = net.x_shape
    net.outputs.append(net.binary("Add", net.x, net.quantized(made, 2.0**-1)))
    found = require_equal(net, (2, 9, 24), (1, 1, 24), (4, 31, 24), (0, 3, 24), (3, 0, 24))
    assert steps_of(found) == ["quantize", "product", "table", "product", "add", "dequantize"]


def test_projections_share_what_they_read() -> None:
    """Query, key and value are made of codes that are made once, in one region."""
    net = Net(94, (2, 9, 24))
    net.outputs += [net.matmul(net.x, outputs) for outputs in (24, 24, 17)]
    found = require_equal(net)
    assert steps_of(found) == ["quantize", "gemm", "gemm", "gemm"]


@pytest.mark.parametrize("rank", [3, 4])
def test_rows_are_cut_joined_and_added_along_any_dimension(rank: int) -> None:
    shape = (2, 6, 5, 24)[4 - rank :]
    net = Net(95, shape)
    a = net.quantized(net.matmul(net.x, 20), 2.0**-1)
    for axis in range(rank):
        sizes = list(net.shapes[a])
        sizes[axis] -= 1
        ends = [net.constant(np.array([each], np.int64)) for each in (0, sizes[axis], axis)]
        cut = net.moved("Slice", a, tuple(sizes), ends)
        net.outputs.append(net.matmul(net.concat([cut, a], axis), 8))
        one = [int(each) if i != axis else 1 for i, each in enumerate(net.shapes[a])]
        ends = [net.constant(np.array([each], np.int64)) for each in (0, 1, axis)]
        net.outputs.append(net.matmul(net.binary("Mul", a, net.moved("Slice", a, tuple(one), ends)), 8))
        pads = [0] * 2 * rank
        pads[axis] = 1
        sizes[axis] += 2
        net.outputs.append(
            net.matmul(net.moved("Pad", a, tuple(sizes), [net.constant(np.array(pads, np.int64))], mode="reflect"), 8)
        )
    assert {"slice", "concat", "mul", "pad"} <= set(steps_of(require_equal(net)))


def test_heads_are_parted_and_joined_again() -> None:
    """Reshape and Transpose between products, as an attention writes them."""
    net = Net(96, (2, 7, 24))
    a = net.quantized(net.matmul(net.x, 24), 2.0**-1)
    shape = net.constant(np.array([0, 0, 3, 8], np.int64))
    parted = net.node("Transpose", [net.node("Reshape", [a, shape])], perm=[0, 2, 1, 3])
    net.shapes[parted] = (2, 3, 7, 8)
    heads = net.quantized(parted, like=a)
    made = net.quantized(net.matmul(heads, 8), 2.0**-1)
    net.shapes[made] = (2, 3, 7, 8)
    back = net.node("Reshape", [net.node("Transpose", [made], perm=[0, 2, 1, 3]), net.constant(np.array([0, 0, 24]))])
    net.shapes[back] = (2, 7, 24)
    net.outputs.append(net.matmul(net.quantized(back, like=made), 16))
    assert steps_of(require_equal(net)) == ["quantize", "product", "arrange", "product", "arrange", "gemm"]


def test_pixels_become_rows() -> None:
    """Patches of an image, as a vision transformer reads them: channels last is what they are already."""
    net = Net(97, (2, 3, 16, 16))
    patches = net.conv(net.x, 24, (4, 4), strides=[4, 4])
    flat = net.node("Reshape", [patches, net.constant(np.array([0, 24, -1], np.int64))])
    rows = net.node("Transpose", [flat], perm=[0, 2, 1])
    net.shapes[rows] = (2, 16, 24)
    net.outputs.append(net.matmul(net.quantized(rows, like=patches), 10))
    found = require_equal(net)
    assert steps_of(found) == ["quantize", "conv", "arrange", "gemm"]
    assert "stack=1" in said(found.graph.node[0])[2]


def test_rows_become_pixels() -> None:
    net = Net(98, (2, 16, 24))
    rows = net.quantized(net.matmul(net.x, 8), 2.0**-1)
    flat = net.node("Transpose", [rows], perm=[0, 2, 1])
    image = net.node("Reshape", [flat, net.constant(np.array([0, 8, 4, 4], np.int64))])
    net.shapes[image] = (2, 8, 4, 4)
    net.outputs.append(net.conv(net.quantized(image, like=rows), 5, (3, 3), pads=[1, 1, 1, 1]))
    assert steps_of(require_equal(net)) == ["quantize", "product", "arrange", "conv", "dequantize"]


def test_what_a_convolution_and_a_product_read_alike_is_an_image() -> None:
    """The product multiplies along the last dimension, which lies apart there: it stays outside."""
    net = Net(99, (2, 8, 6))
    a = net.conv(net.x, 8, (3,), pads=[1, 1])
    net.outputs += [net.matmul(a, 9), net.conv(a, 4, (1,))]
    found = require_equal(net)
    assert "gemm" not in steps_of(found)
    assert "MatMul" in operators(found)


@pytest.mark.parametrize("kind", ["scale", "size"])
def test_a_bias_that_does_not_fit_stays_outside(kind: str) -> None:
    net = Net(100, (2, 5, 24))
    net.outputs.append(net.matmul(net.x, 1 if kind == "size" else 24))
    bias = next(n for n in net.nodes if n.input[0] in net.constants and net.constants[n.input[0]].dtype == np.int32)
    if kind == "scale":
        net.constants[bias.input[1]] = net.constants[bias.input[1]] * 2
    else:  # which makes more numbers of each row
        net.constants[bias.input[0]] = np.arange(3, dtype=np.int32).reshape(1, 1, 3)
        net.constants[bias.input[1]] = np.repeat(net.constants[bias.input[1]], 3)
    model = net.model()
    made = with_regions(model)
    x = samples(net)
    for isa in ISAS:
        np.testing.assert_array_equal(by_kernels(made, isa).run(None, {"x": x})[0], by_definition(model, x)[0])
    assert not any("bias=" in line for node in made.graph.node if node.op_type == "Region" for line in said(node))


@st.composite
def stacks(draw: st.DrawFn) -> Net:
    """Any graph of what stacks of matrices have steps for."""
    integer = st.integers
    shape = (*(draw(integer(1, 6)) for _ in range(draw(integer(1, 3)))), draw(integer(1, 70)))
    net = Net(draw(integer(0, 2**16)), shape)
    made = [net.x]
    for _ in range(draw(integer(1, 6))):
        x = draw(st.sampled_from(made))
        fitting = [y for y in made if net.shapes[y] == net.shapes[x]]
        kind = draw(st.sampled_from(["product", "product", "binary", "concat", "table", "turn"]))
        if kind == "product":
            act = draw(st.sampled_from(["", "", "Relu", "Clip"]))
            made.append(net.activated(net.matmul(x, draw(integer(1, 70)), draw(st.booleans())), act, 2.0**-1))
        elif kind == "binary":
            made.append(net.binary(draw(st.sampled_from(["Add", "Sub", "Mul"])), x, draw(st.sampled_from(fitting))))
        elif kind == "concat":
            made.append(net.concat([x, draw(st.sampled_from(fitting))], draw(integer(0, len(shape) - 1))))
        elif kind == "table":
            made.append(net.function(x, draw(st.sampled_from(["LeakyRelu", "Abs", "relu of sum"]))))
        else:
            perm = draw(st.permutations(range(len(shape))))
            sizes = tuple(net.shapes[x][axis] for axis in perm)
            made.append(net.moved("Transpose", x, sizes, perm=list(perm)))
    last = net.matmul(made[-1], draw(integer(1, 40)))
    read = {name for node in net.nodes for name in node.input}
    net.outputs += [last, *(y for y in made if y not in read)]
    return net


@pytest.mark.sweep
@settings(max_examples=25, deadline=None)
@given(stacks())
def test_any_graph_of_stacks(net: Net) -> None:
    require_equal(net)


def of_stacks() -> onnx.ModelProto:
    net = Net(101, (2, 6, 40))
    net.outputs.append(net.matmul(net.x, 4))
    return with_regions(net.model())


REFUSED = {
    "conv x=0 weight=3 weight_scale=4 {codes}": "no convolution|has a weight",
    "max_pool x=0 kernel=1,1": "pools a matrix",
    "global_average_pool x=0 {codes}": "pools a matrix",
    "resize x=0 sizes={sizes}": "resizes matrices",
    "resize_linear x=0 sizes={sizes} {codes}": "resizes matrices",
    "pad x=0 before=0,0,1,0 behind=0,0,0,0": "rows or images of what has none",
    "product x=1 weight=3 weight_scale=4 {codes}": "no matrix, and no stack of them",
    "add x=0,1 {codes}": "shapes do not go together",
    "concat x=0,1 {codes}": "joins tensors of different shapes",
    "space_to_depth x=0 block=2 to_depth=1": "blocks of what is no image",
    "quantize in=0 {codes} stack=2": "out of range",
    "add x=0,0 {codes} stack=1": "has no use for",
}


@pytest.mark.parametrize("step", REFUSED)
def test_steps_that_no_stack_has_are_refused(step: str) -> None:
    model = of_stacks()
    del model.functions[:]
    (node,) = model.graph.node
    node.input.append("sizes")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 6, 40], np.int64), "sizes"))
    said_step = step.format(codes=CODES, sizes=len(node.input) - 1)
    text = f"region 1\nquantize in=0 {CODES} stack=1\nquantize in=0 {CODES}\n{said_step}\ndequantize x=2 out=0"
    with pytest.raises((InvalidArgument, BadModel), match=REFUSED[step]):
        _ran(saying(model, text))


def _ran(model: onnx.ModelProto) -> None:
    session = onnxq.session(model.SerializeToString(), options(optimized=False))
    session.run(None, {"x": np.zeros((2, 6, 40), np.float32)})


def test_a_stack_of_another_length_is_refused() -> None:
    made = copy.deepcopy(of_stacks())
    del made.functions[:]
    made.graph.input[0].type.tensor_type.ClearField("shape")
    session = onnxq.session(made.SerializeToString(), options(optimized=False))
    for shape, reason in (((2, 6, 39), "rows of 39 by a matrix for 40"), ((2, 6, 40, 1, 1), "rank is not 2, 3 or 4")):
        with pytest.raises(InvalidArgument, match=reason):
            session.run(None, {"x": np.zeros(shape, np.float32)})


def test_constants_may_be_stacks() -> None:
    """In the order that the definition has."""
    model = of_stacks()
    del model.functions[:]
    (node,) = model.graph.node
    codes = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 7)).astype(np.uint8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(codes, "codes"))
    node.input.append("codes")
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    text = f"region 1\nconstant codes={len(node.input) - 1} {CODES} stack=1\ndequantize x=0 out=0"
    session = onnxq.session(saying(model, text).SerializeToString(), options(optimized=False))
    (y,) = session.run(None, {"x": np.zeros((2, 6, 40), np.float32)})
    values = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    scale, zero = (values[node.input[i]] for i in (1, 2))
    np.testing.assert_array_equal(y, (codes.astype(np.float32) - np.float32(zero)) * scale)
