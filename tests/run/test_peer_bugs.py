"""Verified bugs of onnxruntime's own quantizer (1.31.1), one test for each: what onnxq does with the model that trips
it. Source lines are inside `onnxruntime/quantization/`."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal, sqnr

import onnxq
from onnxq import targets
from onnxq.calibration import calibrate, memory
from onnxq.model import graph
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.passes.rewrite import rewrite
from onnxq.plan import Method
from onnxq.planning.first_plan import make_plan
from onnxq.planning.scales import values_to_observe
from onnxq.recipe import Recipe, Rule
from onnxq.runtime.session import Feed, Session
from onnxq.samples.source import inputs_of, open_data
from onnxq.summaries.ranges import Range, Ranges

pytestmark = pytest.mark.usefixtures("quick")


def samples(*shape: int, name: str = "x", count: int = 8) -> list[Feed]:
    return [{name: np.random.default_rng(i).standard_normal(shape).astype(np.float32)} for i in range(count)]


def in_int8(**settings: object) -> Recipe:
    """Static int8 whatever its speed: these models are too small to be faster."""
    return Recipe("w8a8", keep_slow=True, **settings)  # type: ignore[arg-type]


def quantized(proto: onnx.ModelProto, folder: Path, recipe: Recipe | str, **options: object) -> onnxq.Result:
    """The result of quantizing a model, after a look at the names of the saved file's interface."""
    path = tiny.save(proto, folder)
    result = onnxq.quantize(path, folder / "quantized.onnx", recipe, **options)  # type: ignore[arg-type]
    saved = onnx.load(result.output)
    assert [x.name for x in saved.graph.input] == [x.name for x in proto.graph.input]
    assert [y.name for y in saved.graph.output] == [y.name for y in proto.graph.output]
    onnx.checker.check_model(saved, full_check=False)
    return result


def error(proto: onnx.ModelProto, result: onnxq.Result, feed: Feed) -> float:
    """SQNR of the saved file's first output against the float model, both run in onnxruntime."""
    (wanted, *_), (got, *_) = (Session(m).run(feed) for m in (ir.from_proto(proto), result.output))
    return sqnr(wanted, got)


@pytest.mark.parametrize("group_bytes", [1 << 29, 1], ids=["together", "one-by-one"])
def test_v1_no_sample_is_thrown_away(monkeypatch: pytest.MonkeyPatch, group_bytes: int) -> None:
    """V1, calibrate.py:522: with CalibMaxIntermediateOutputs=2 the ranges of three samples are those of none."""
    monkeypatch.setattr(memory, "GROUP_BYTES", group_bytes)
    made = tiny.read(tiny.model("g (float[N,4] x) => (float[N,4] z) { y = Neg(x)  z = Relu(y) }"))
    rows = [np.full((1, 4), value, np.float32) for value in (-1, 5, -10)]
    data = open_data([{"x": row} for row in rows], inputs_of(made))
    found = calibrate.calibrate(made, ["x", "y", "z"], data, "minmax")
    assert found.values == {"x": Range(-10, 5), "y": Range(-5, 10), "z": Range(0, 10)}


@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
def test_v3_four_bits_need_no_data(tmp_path: Path, target: str) -> None:
    """V3, base_quantizer.py:347,485: QInt4 by the dynamic quantizer raises "must be 8-bit before packing"."""
    proto = tiny.model("g (float[N,64] x) => (float[N,32] y) { y = MatMul(x, w) }", {"w": normal(64, 32)})
    result = quantized(proto, tmp_path, Recipe("w4a16", accuracy_level=0), target=target)
    assert result.check is not None
    assert result.check.kernels == {"MatMulNBits": 1}
    assert 64 * 32 / 2 in {t.nbytes for v in initializers(result) if (t := v.const_value) is not None}
    assert error(proto, result, samples(8, 64)[0]) > 18


def initializers(result: onnxq.Result) -> list[ir.Value]:
    return [value for each in ir.load(result.output).graphs() for value in each.initializers.values()]


def test_v4_blocks_leave_convolutions_a_channel_scale(tmp_path: Path) -> None:
    """V4, quant_utils.py:429: a BlockSize raises NotImplementedError at the first Conv."""
    proto = tiny.model(
        "g (float[1,16,5,5] x) => (float[1,32] z) { y = Conv(x, f)  p = GlobalAveragePool(y) "
        "s = Flatten(p)  z = MatMul(s, w) }",
        {"f": normal(32, 16, 3, 3), "w": normal(32, 32)},
    )
    result = quantized(proto, tmp_path, Recipe("w4a16", min_sqnr=5), target="onnx")
    labels = {choice.op: choice.label for choice in result.plan}
    assert labels == {"Conv": "int8 stored", "MatMul": "uint4 b32"}
    assert error(proto, result, samples(1, 16, 5, 5)[0]) > 18


@pytest.mark.parametrize("trans_b", [0, 1])
def test_v5_blocks_and_a_bias_go_together(tmp_path: Path, trans_b: int) -> None:
    """V5, quant_utils.py:429: a BlockSize and a Gemm with bias raise ValueError, as the bias scale would be blocked."""
    proto = tiny.model(
        f"g (float[N,64] x) => (float[N,48] y) {{ y = Gemm<transB={trans_b}>(x, w, b) }}",
        {"w": normal(48, 64) if trans_b else normal(64, 48), "b": normal(48) * 5},
    )
    result = quantized(proto, tmp_path, Recipe("w4a16", accuracy_level=0), target="onnx")
    assert result.check is not None
    assert result.check.kernels == {"MatMulNBits": 1}
    assert error(proto, result, samples(8, 64)[0]) > 18


def test_v5b_blocks_lie_along_the_contraction(tmp_path: Path) -> None:
    """V5b, qdq_quantizer.py:1465: per_channel with a BlockSize blocks a MatMul weight along N."""
    proto = tiny.model("g (float[N,64] x) => (float[N,96] y) { y = MatMul(x, w) }", {"w": normal(64, 96)})
    result = quantized(proto, tmp_path, "w4a16", target="onnx")
    node = tiny.find(ir.load(result.output), "DequantizeLinear")
    assert graph.attribute_int(node, "axis", -1) == 0
    assert tiny.array(node.inputs[0]).shape == (64, 96)
    assert tiny.array(node.inputs[1]).shape == (64 // 32, 96)


def test_v7_weights_in_constant_nodes_are_weights(tmp_path: Path) -> None:
    """V7, matmul_nbits_quantizer.py:810: a weight in a Constant node is passed over without a word."""
    proto = tiny.model("g (float[N,64] x) => (float[N,32] y) { w = Constant()  y = MatMul(x, w) }")
    tensor = onnx.numpy_helper.from_array(normal(64, 32))
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("value", tensor))
    result = quantized(proto, tmp_path, "w4a16")
    assert result.check is not None
    assert result.check.kernels == {"MatMulNBits": 1}
    assert result.bytes_after < 2500 < result.bytes_before


FUNCTION = '<domain: "local", opset_import: ["" : 17]> layer (a, b) => (c) { d = MatMul(a, b)  c = Relu(d) }'


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8"])
def test_v8_weights_of_local_functions_are_weights(tmp_path: Path, scheme: str) -> None:
    """V8 and V8b, the same walkers: a MatMul inside a local function is never quantized, in 4 bits or statically."""
    proto = tiny.model(
        "g (float[N,64] x) => (float[N,32] z) { y = local.layer(x, v)  z = local.layer(y, w) }",
        {"v": normal(64, 64), "w": normal(64, 32, seed=1)},
        functions=FUNCTION,
    )
    data = samples(8, 64) if scheme == "w8a8" else None
    result = quantized(proto, tmp_path, in_int8() if data else Recipe(scheme, accuracy_level=0), data=data)
    assert [choice.op for choice in result.plan] == ["MatMul", "MatMul"]
    assert result.check is not None
    assert result.check.kernels == ({"QGemm": 2} if data else {"MatMulNBits": 2})
    assert error(proto, result, samples(8, 64)[0]) > (30 if data else 15)


@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic", "w4a16"])
def test_v9_bodies_of_if_are_quantized(tmp_path: Path, scheme: str, target: str) -> None:
    """V9, qdq_quantizer.py:556: with EnableSubgraph=True the body of an If stays in float without a word."""
    proto = tiny.model(
        "g (float[N,64] x, bool c) => (float[N,32] y) "
        "{ y = If(c) <then_branch = t () => (float[N,32] p) { p = MatMul(x, v) },"
        " else_branch = e () => (float[N,32] q) { q = MatMul(x, w) }> }",
        {"v": normal(64, 32), "w": normal(64, 32, seed=1)},
    )
    data = [feed | {"c": np.array(i % 2 == 0)} for i, feed in enumerate(samples(8, 64, count=12))]
    recipe = Recipe(scheme, keep_slow=True)
    result = quantized(proto, tmp_path, recipe, data=data if scheme == "w8a8" else None, target=target)
    packed = "MatMulNBits" if target == "ort-cpu" else "DequantizeLinear"
    wanted = {"w8a8": "DequantizeLinear", "w8a8-dynamic": "MatMulInteger", "w4a16": packed}[scheme]
    bodies = list(graph.graphs(ir.load(result.output)))[1:]
    assert [sum(node.op_type == wanted for node in body) > 0 for body in bodies] == [True, True]
    for feed in data[:2]:
        assert error(proto, result, feed) > 15


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic", "w4a16"])
def test_v10b_bfloat16_models_are_quantized_and_run(tmp_path: Path, scheme: str) -> None:
    """V10b, quant_utils.py:1256: dynamic does nothing to bfloat16, and what static makes of it does not load."""
    proto = tiny.model("g (bfloat16[N,64] x) => (bfloat16[N,32] y) { y = MatMul(x, w) }")
    w = normal(64, 32).astype(ml_dtypes.bfloat16)
    proto.graph.initializer.append(ir.to_proto(ir.tensor(w, name="w")))
    x = [feed["x"].astype(ml_dtypes.bfloat16) for feed in samples(8, 64)]
    data = [{"x": each} for each in x] if scheme == "w8a8" else None
    result = quantized(proto, tmp_path, Recipe(scheme, keep_slow=True), data=data)
    assert [choice.method for choice in result.plan] != [Method.KEEP]
    assert onnx.load(result.output).graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
    assert result.check is not None
    assert result.check.kernels
    assert result.check.sqnr > 15


def test_v11_rules_restrict_what_is_quantized(tmp_path: Path) -> None:
    """V11, matmul_nbits_quantizer.py:1561: nodes_to_include does not restrict anything."""
    proto = tiny.model(
        "g (float[N,64] x) => (float[N,64] z) { [first] y = MatMul(x, v)  [second] z = MatMul(y, w) }",
        {"v": normal(64, 64), "w": normal(64, 64, seed=1)},
    )
    result = quantized(proto, tmp_path, Recipe("w4a16", rules=(Rule("keep"), Rule("w4a16", "second"))))
    assert {choice.node: choice.method for choice in result.plan} == {"first": Method.KEEP, "second": Method.PACKED}
    saved = ir.load(result.output)
    assert tiny.ops(saved) == ["MatMul", "MatMulNBits"]
    np.testing.assert_array_equal(saved.graph.initializers["v"].const_value.numpy(), normal(64, 64))


def test_v13_a_concat_has_one_scale(tmp_path: Path) -> None:
    """V13, registry.py:67: inputs and output of a Concat get different scales, so the small branch loses bits twice."""
    proto = tiny.model(
        "g (float[1,16,6,6] x) => (float[1,16,6,6] z) { a = Conv(x, f)  b = Conv(x, h) "
        "[joined] y = Concat<axis=1>(a, b)  z = Conv(y, k) }",
        {"f": normal(16, 16, 1, 1), "h": 9 * normal(16, 16, 1, 1, seed=1), "k": normal(16, 32, 1, 1, seed=2)},
    )
    made, feed = tiny.read(proto), samples(1, 16, 6, 6)
    saved = ir.load(quantized(proto, tmp_path, in_int8(), data=feed).output)
    concat = tiny.find(saved, "Concat")
    around = [value.producer() for value in concat.inputs if value is not None]
    around += [use.node for use in concat.outputs[0].uses()]
    scales = {float(tiny.array(node.inputs[1])) for node in around if node is not None}
    assert [node.op_type for node in around if node is not None] == ["DequantizeLinear"] * 2 + ["QuantizeLinear"]
    assert len(scales) == 1
    assert made.graph.outputs[0].name == saved.graph.outputs[0].name


def chain(count: int) -> onnx.ModelProto:
    steps = "".join(f"x{i + 1} = MatMul(x{i}, w) y{i} = Relu(x{i + 1})\n" for i in range(count // 2))
    return tiny.model(f"g (float[N,16] x0) => (float[N,16] x{count // 2}) {{ {steps} }}", {"w": normal(16, 16)})


def calls_to_quantize(proto: onnx.ModelProto) -> int:
    """How many functions are called from the float model to the rewritten one."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    made, recipe, target = tiny.read(proto), Recipe("w8a8"), targets.get("ort-cpu")
    sys.setprofile(count)
    try:
        prepare(made, opset=13)
        plan = make_plan(made, recipe, target, infer_types(made))
        ranges = Ranges("", "", "", dict.fromkeys(values_to_observe(made, plan), Range(-1, 1)))
        rewrite(made, plan, ranges, recipe, target)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.sweep
def test_v14_work_is_linear_in_nodes() -> None:
    """V14, calibrate.py:442 and quant_utils.py:917: time is quadratic, 0.1 s for 100 nodes, 4.3 s for 800."""
    calls_to_quantize(chain(4))  # what is cached on first use
    assert calls_to_quantize(chain(800)) < 2.1 * calls_to_quantize(chain(400))


def test_v17_each_reader_of_a_shared_bias_has_its_own(tmp_path: Path) -> None:
    """V17, qdq_quantizer.py:404: with unnamed nodes the wrong reader gets the copy, and falls back to float."""
    proto = tiny.model(
        "g (float[1,16,6,6] x) => (float[1,16,6,6] z) { y = Conv(x, f, b)  z = Conv(y, h, b) }",
        {"f": normal(16, 16, 1, 1), "h": 30 * normal(16, 16, 1, 1, seed=1), "b": normal(16, seed=2)},
    )
    assert not any(node.name for node in proto.graph.node)
    feeds = samples(1, 16, 6, 6)
    result = quantized(proto, tmp_path, in_int8(balance=False), data=feeds)
    assert result.check is not None
    assert result.check.kernels == {"QLinearConv": 2}
    assert error(proto, result, feeds[0]) > 30
    for conv in (node for node in graph.nodes(ir.load(result.output)) if node.op_type == "Conv"):
        x, w, bias = (value.producer() for value in conv.inputs if value is not None)
        assert x is not None and w is not None and bias is not None
        steps = tiny.array(x.inputs[1]) * tiny.array(w.inputs[1])
        np.testing.assert_allclose(tiny.array(bias.inputs[1]), steps, rtol=1e-6)
        restored = tiny.array(bias.inputs[0]) * tiny.array(bias.inputs[1])
        np.testing.assert_allclose(restored, normal(16, seed=2), atol=float(steps.max()))


def test_v18_a_users_tensor_called_like_a_scale_stays_his(tmp_path: Path) -> None:
    """V18, onnx_model.py:140: a tensor named `x_scale` is taken for the scale of x, and the run fails."""
    names = ["x_scale", "x_zero_point", "w_scale", "w_int8", "y_scale", "x_quantized", "x_dequantized"]
    steps = "".join(f"t{i + 1} = Add(t{i}, {name}) " for i, name in enumerate(names))
    constants: dict[str, NDArray] = {name: normal(16, 1, 1, seed=i) for i, name in enumerate(names)}
    proto = tiny.model(
        f"g (float[1,16,6,6] x) => (float[1,16,6,6] y, float[1,16,6,6] t{len(names)}) "
        f"{{ y = Conv(x, w)  t0 = Relu(y) {steps} }}",
        constants | {"w": normal(16, 16, 1, 1)},
    )
    feeds = samples(1, 16, 6, 6)
    result = quantized(proto, tmp_path, in_int8(), data=feeds)
    saved = ir.load(result.output)
    for name, x in constants.items():
        np.testing.assert_array_equal(tiny.array(saved.graph.initializers[name]), x)
    wanted, got = (Session(m).run(feeds[0]) for m in (ir.from_proto(proto), result.output))
    assert min(sqnr(a, b) for a, b in zip(wanted, got, strict=True)) > 30
