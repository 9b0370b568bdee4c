"""nvfp4 as TensorRT reads it: FLOAT4E2M1 whose scales are FLOAT8E4M3FN codes that share one float."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from tiny import normal

from onnxq import OnnxqError, Recipe, check, layouts, quantize
from onnxq.checking.rules import check_rules
from onnxq.conversion.dequantize import dequantize
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Severity
from onnxq.pipeline import Result
from onnxq.targets.rules import findings

pytestmark = pytest.mark.usefixtures("quick")
#: Two matrices that lie either way, one whose columns are no whole blocks, one whose rows are none, and a convolution.
TEXT = """g (float[n, 128] x, float[n, 8, 6, 6] p) => (float[n, 64] y, float[n, 8, 6, 6] c) {
    h = MatMul (x, a)  r = Relu (h)  m = Gemm <transB = 1, alpha = 0.5> (r, b, bias)  s = MatMul (m, d)
    y = MatMul (s, e)  c = Conv <pads = [1, 1, 1, 1]> (p, k)
}"""
WEIGHTS = {
    "a": normal(128, 96),
    "b": normal(64, 96, seed=1),
    "bias": normal(64, seed=2),
    "d": normal(64, 40, seed=3),
    "e": normal(40, 64, seed=4),
    "k": normal(8, 8, 3, 3, seed=5),
}
FEED = {"x": normal(3, 128, seed=6), "p": normal(3, 8, 6, 6, seed=7)}


def made(folder: Path, dtype: type = np.float32) -> Result:
    text = TEXT.replace("float[", "float16[") if dtype is np.float16 else TEXT
    model = tiny.save(tiny.model(text, {name: array.astype(dtype) for name, array in WEIGHTS.items()}), folder)
    return quantize(model, folder / "q.onnx", Recipe("nvfp4", min_sqnr=-np.inf), target="tensorrt", force=True)


def weight_of(model: onnx.ModelProto, node: onnx.NodeProto) -> tuple[onnx.NodeProto, onnx.NodeProto, list[str]]:
    """The two DequantizeLinear behind which a weight is, and the operators between them and its reader."""
    by = {name: each for each in model.graph.node for name in each.output}
    found, between = by[node.input[1]], []
    while found.op_type != "DequantizeLinear":
        between.append(found.op_type)
        found = by[found.input[0]]
    return found, by[found.input[1]], between


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_two_levels_are_what_the_codes_say(tmp_path: Path, dtype: type) -> None:
    """By plain numpy and by ONNX's reference implementation."""
    done = made(tmp_path, dtype)
    labels = {choice.node: (choice.label, choice.reason.partition(":")[0]) for choice in done.plan}
    assert labels["h"] == labels["m"] == ("nvfp4 b16 stored", "")
    assert labels["s"] == labels["y"] == ("int8 stored", "TensorRT reads float4 in rows and columns of whole 16s")
    assert labels["c"][0].startswith(("int8", "float16"))
    assert check_rules(done.output, "tensorrt") == []
    model = onnx.load(done.output)
    assert model.opset_import[0].version == 23 and model.ir_version >= 11
    onnx.checker.check_model(model, full_check=True)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = {node.name: node for node in model.graph.node}
    cast = [] if dtype is np.float32 else ["Cast"]
    decoded = {}
    for name, source, between in (("h", WEIGHTS["a"], ["Transpose", *cast]), ("m", WEIGHTS["b"].T, cast)):
        weight, scales, behind = weight_of(model, nodes[name])
        assert behind == between
        attributes = {a.name: a.i for a in weight.attribute}
        assert attributes == {"axis": 1, "block_size": 16} and not scales.attribute
        assert len(weight.input) == len(scales.input) == 2
        codes, steps, factor = tensors[weight.input[0]], tensors[scales.input[0]], tensors[scales.input[1]]
        assert codes.data_type == TensorProto.FLOAT4E2M1 and steps.data_type == TensorProto.FLOAT8E4M3FN
        assert factor.data_type == TensorProto.FLOAT and not factor.dims
        q = numpy_helper.to_array(codes).astype(np.float32)  # [outputs, inputs]
        s = numpy_helper.to_array(steps).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        assert 224 < s.max() <= 448 and q.shape == source.shape[::-1] and s.shape == (len(q), q.shape[1] // 16)
        expected = q * np.repeat(s * numpy_helper.to_array(factor), 16, axis=1)
        assert tiny.sqnr(source.T, expected) > 18
        decoded[weight.output[0]] = expected
    for name in decoded:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    feed = {name: array.astype(dtype) for name, array in FEED.items()}
    in_float = tiny.evaluate(tiny.model(TEXT, WEIGHTS), **FEED)
    *found, w, v = ReferenceEvaluator(model).run(None, feed)
    for got, expected in zip((w, v), decoded.values(), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert all(tiny.sqnr(a, b.astype(np.float32)) > 14 for a, b in zip(in_float, found, strict=True))
    assert done.check is not None and done.check.sqnr > 14
    assert any("has no kernels for float4e2m1" in note for note in done.check.notes)
    assert "rules only: not run in TensorrtExecutionProvider, which is not installed here" in done.check.notes


def test_what_the_file_stands_for_is_compared_with_what_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factor of the scales that is not theirs: the reference implementation reads other weights."""
    honest = layouts.scale_factor
    monkeypatch.setattr(layouts, "scale_factor", layouts.Layout(lambda q: honest(q) * np.float32(2), honest.form))
    with pytest.raises(OnnxqError, match="reads other weights in the types of the saved model than were run"):
        made(tmp_path)
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("target", ["tensorrt", "onnx-25"])
def test_products_in_branches_are_compared_too(target: str, tmp_path: Path) -> None:
    text = """g (float[n, 128] x, bool yes) => (float[n, 64] y) {
        h = MatMul (x, a)  y = If (yes) <
            then_branch = t () => (float[n, 64] t) { t = MatMul (h, u) },
            else_branch = e () => (float[n, 64] e) { e = Gemm <transB = 1> (h, v) } >
    }"""
    weights = {"a": normal(128, 96), "u": normal(96, 64), "v": normal(64, 96, seed=2)}
    model = tiny.save(tiny.model(text, weights), tmp_path)
    data = [{"x": normal(16, 128, seed=i), "yes": np.array(bool(i % 2))} for i in range(8)]
    done = quantize(model, tmp_path / "q.onnx", Recipe("nvfp4", min_sqnr=-np.inf), target=target, data=data)
    assert {choice.label for choice in done.plan} == {"nvfp4 b16 stored"}
    assert done.check is not None and done.check.sqnr > 14
    assert target != "tensorrt" or check_rules(done.output, target) == []
    for yes in (True, False):
        feed = {"x": data[0]["x"], "yes": np.array(yes)}
        wanted = tiny.evaluate(tiny.model(text, weights), **feed)
        assert tiny.sqnr(wanted[0], ReferenceEvaluator(onnx.load(done.output)).run(None, feed)[0]) > 14


def test_the_doctor_knows_that_the_file_is_for_others(tmp_path: Path) -> None:
    path = made(tmp_path).output
    (note,) = examine(path, target="tensorrt").findings
    assert (note.rule, note.severity) == ("does-not-open", Severity.NOTE) and "float4e2m1 here" in note.message
    (error,) = examine(path).findings
    assert (error.rule, error.severity) == ("does-not-open", Severity.ERROR) and "--target" in error.fix


def test_it_is_compared_once_it_is_in_floats(tmp_path: Path) -> None:
    path = made(tmp_path).output
    with pytest.raises(OnnxqError, match=r"cannot be compared: onnxruntime [\d.]+ has no kernels for float4e2m1; "):
        check(tmp_path / "model.onnx", path)
    dequantize(path, tmp_path / "d.onnx")
    assert check(tmp_path / "model.onnx", tmp_path / "d.onnx").sqnr > 14


def float4(shape: tuple[int, ...], axis: int, block: int = 16) -> onnx.ModelProto:
    """A product by float4 weights in blocks along an axis."""
    text = f"""g (float[2, {shape[-2]}] x) => (y) {{
        s = DequantizeLinear (e, f)  w = DequantizeLinear <axis = {axis}, block_size = {block}> (c, s)
        y = MatMul (x, w)
    }}"""
    sizes = list(shape)
    sizes[axis] = -(-sizes[axis] // block)
    factor: dict[str, NDArray] = {"f": np.asarray(0.1, np.float32)}
    model = tiny.model(text, factor, opset=23, ir_version=11)
    for name, type_, dims in (("c", TensorProto.FLOAT4E2M1, shape), ("e", TensorProto.FLOAT8E4M3FN, tuple(sizes))):
        model.graph.initializer.append(onnx.helper.make_tensor(name, type_, dims, [1.0] * int(np.prod(dims))))
    return model


@pytest.mark.parametrize(
    ("shape", "axis", "block", "says"),
    [
        ((32, 16), 0, 16, ""),
        ((32, 16), 1, 16, ""),
        ((32, 16), -2, 16, ""),
        ((3, 32, 16), 1, 16, ""),
        ((32, 16), 0, 32, "in blocks of 16, not of 32"),
        ((40, 16), 0, 16, "in whole blocks: its dimensions are no multiples of 16"),
        ((32, 4), 0, 16, "in whole blocks: its dimensions are no multiples of 16"),
        ((16, 32, 16), 0, 16, "along one of the last two dimensions"),
    ],
)
def test_rules_of_float4(shape: tuple[int, ...], axis: int, block: int, says: str) -> None:
    found = findings(tiny.read(float4(shape, axis, block)), "tensorrt")
    assert [each.rule for each in found] == (["blocks_of_weights"] if says else [])
    assert all(each.refuses and says in each.says for each in found)
