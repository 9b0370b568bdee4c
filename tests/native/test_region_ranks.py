"""Lines have no rows and matrices no images: steps that make some are refused, as outputs have no room for them."""

from __future__ import annotations

import copy

import kernels
import numbers_net
import numpy as np
import onnx
import pytest
from islands import Net, with_regions
from onnx import TensorProto, helper, numpy_helper
from region_runs import HAS_LIBRARY, InvalidArgument, by_definition, options, said, saying

import onnxq
from onnxq.errors import BadModel

pytestmark = HAS_LIBRARY
CODES, NOTHING = "scale=1 zero=2", "steps=1,1,1,1"
ROWS = {
    "conv": "conv x=0 weight=3 weight_scale=4 {codes} pads=1,0,1,0",
    "conv_transpose": "conv_transpose x=0 weight=3 weight_scale=4 {codes} output_padding=1,0",
    "max_pool": "max_pool x=0 kernel=1,1 pads=1,0,1,0",
    "average_pool": "average_pool x=0 kernel=1,1 pads=0,0,1,0 {codes}",
    "concat": "concat x=0,0 {codes} axis=2",
    "pad": "pad x=0 before=0,0,1,0 behind=0,0,0,0",
    "slice": f"slice x=0 starts=0,0,1,0 stops=9,9,9,9 {NOTHING}",
}
IMAGES = {
    "concat": "concat x=0,0 {codes} axis=0",
    "rows": "concat x=0,0 {codes} axis=2",
    "pad": "pad x=0 before=1,0,0,0 behind=0,0,0,0",
    "no image": f"slice x=0 starts=1,0,0,0 stops=9,99,9,99 {NOTHING}",
    "no row": f"slice x=0 starts=0,0,1,0 stops=9,99,9,99 {NOTHING}",
}


def of_lines() -> onnx.ModelProto:
    net = Net(81, (2, 4, 6))
    net.outputs.append(net.conv(net.x, 4, (1,), bias=False))
    return with_regions(net.model())


def of_rows() -> onnx.ModelProto:
    net = Net(82, (6, 40))
    net.outputs.append(net.gemm(net.x, 4, 1))
    return with_regions(net.model())


@pytest.mark.parametrize("step", IMAGES)
def test_a_matrix_has_no_images(step: str) -> None:
    require_refused(of_rows(), IMAGES[step].format(codes=CODES))


@pytest.mark.parametrize("step", ROWS)
def test_a_line_has_no_rows(step: str) -> None:
    require_refused(of_lines(), ROWS[step].format(codes=CODES))


@pytest.mark.parametrize("step", sorted({*ROWS} - {"concat"}))  # which is of channels alone
@pytest.mark.skipif("avx512_bf16" not in kernels.isas(), reason="without bfloat16 the bodies run")
def test_a_line_of_numbers_has_no_rows(step: str) -> None:
    net = numbers_net.Net(83, (2, 4, 6))
    net.outputs.append(net.conv("x", (4, 4, 1), bias=False))
    model = numbers_net.with_regions(net.model())
    assert numbers_net.steps(model)[1].split()[:3] == ["conv", "x=0", "weight=1"]
    said = ROWS[step].format(codes="").replace("weight=3 weight_scale=4", "weight=1")
    require_refused(model, " ".join(said.split()), "bf16 region 1\nread in=0\n{}\nwrite x=1 out=0")


def require_refused(
    model: onnx.ModelProto, step: str, text: str = f"region 1\nquantize in=0 {CODES}\n{{}}\ndequantize x=1 out=0"
) -> None:
    session = onnxq.session(saying(model, text.format(step)).SerializeToString(), options(optimized=False))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    with pytest.raises(InvalidArgument, match="step 1 of attribute steps makes rows or images of what has none"):
        session.run(None, {"x": np.zeros(shape, np.float32)})


def _with_constant(model: onnx.ModelProto, array: np.ndarray) -> int:
    """Number of the region's input that it becomes."""
    (node,) = model.graph.node
    model.graph.initializer.append(numpy_helper.from_array(array, f"more{len(node.input)}"))
    node.input.append(f"more{len(node.input)}")
    return len(node.input) - 1


@pytest.mark.parametrize("kind", ["table", "constant", "resize"])
def test_what_steps_copy_counts(kind: str) -> None:
    """Thousands of steps may read one constant of any size."""
    model = of_lines()
    del model.functions[:]
    large = np.zeros(1 << 22, np.uint8).reshape(1, 1, -1)
    given = _with_constant(model, np.zeros(1 << 20, np.int64) if kind == "resize" else large)
    step = {
        "table": f"table x=0 table={given} {CODES}",
        "constant": f"constant codes={given} {CODES}",
        "resize": f"resize_linear x=0 {CODES} sizes={given}",
    }[kind]
    text = "\n".join(["region 1", f"quantize in=0 {CODES}", *[step] * 400, "dequantize x=0 out=0"])
    with pytest.raises(BadModel, match="takes more memory than its weights may"):
        onnxq.session(saying(model, text).SerializeToString(), options(optimized=False))


def test_constants_of_nothing_take_no_time() -> None:
    """As many images and channels as they like, of no pixels."""
    model = of_lines()
    del model.functions[:]
    (node,) = model.graph.node
    node.input.append("nothing")
    model.graph.initializer.append(
        helper.make_tensor("nothing", TensorProto.UINT8, [1 << 29, 1 << 29, 0], b"", raw=True)
    )
    text = f"region 1\nquantize in=0 {CODES}\nconstant codes={len(node.input) - 1} {CODES}\ndequantize x=0 out=0"
    x = np.ones((2, 4, 6), np.float32)
    session = onnxq.session(saying(model, text).SerializeToString(), options(optimized=False))
    assert np.isfinite(session.run(None, {"x": x})[0]).all()


def test_sizes_that_float32_cannot_tell_apart_stay_inside() -> None:
    """2^24 + 1 pixels of 2^24 are resized by what is 1 in float32, to the nearest, which is none behind the last."""
    size = 1 << 24
    model = of_lines()
    del model.functions[:]
    wide = copy.deepcopy(model)
    given = _with_constant(wide, np.array([1, 1, size + 1], np.int64))
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.ClearField("shape")
    text = f"region 1\nquantize in=0 {CODES}\nresize x=0 sizes={given}\ndequantize x=1 out=0"
    session = onnxq.session(saying(wide, text).SerializeToString(), options(optimized=False))
    (y,) = session.run(None, {"x": np.ones((1, 1, size), np.float32)})
    assert y.shape == (1, 1, size + 1) and (y == y[0, 0, 0]).all()


def test_shapes_that_no_time_is_enough_for() -> None:
    model = of_lines()
    del model.functions[:]
    most = 1 << 24
    text = (
        f"region 1\nquantize in=0 {CODES}\nslice x=0 starts=0,0,0,0 stops=1,1,1,1 {NOTHING}\n"
        f"pad x=1 before=255,0,0,{most} behind=0,0,0,0\ndequantize x=2 out=0"
    )
    session = onnxq.session(saying(model, text).SerializeToString(), options(optimized=False))
    with pytest.raises(InvalidArgument, match="more than 1073741824 pixels"):
        session.run(None, {"x": np.zeros((2, 4, 6), np.float32)})


def test_lines_and_matrices_are_what_they_were() -> None:
    for model, shape in ((of_lines(), (2, 4, 6)), (of_rows(), (6, 40))):
        (node,) = [each for each in model.graph.node if each.op_type == "Region"]
        assert said(node)
        x = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
        for y, wanted in zip(
            onnxq.session(model.SerializeToString(), options()).run(None, {"x": x}),
            by_definition(model, x),
            strict=True,
        ):
            np.testing.assert_array_equal(y, wanted)
