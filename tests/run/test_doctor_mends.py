"""`onnxq doctor --fix`: what it mends computes the same, wherever in the model it is."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from test_doctor import CONV, MATRIX, PRODUCT, RIGHT, examined, found
from tiny import model, normal, save

from onnxq.doctor.examine import examine
from onnxq.doctor.mend import mend
from onnxq.errors import NothingToDo
from onnxq.runtime.session import Session


def test_what_is_stored_twice_or_for_nothing_is_mended(tmp_path: Path) -> None:
    w = normal(16, 16, seed=4)
    text = "g (float[4, 16] x) => (float[4, 16] y) {\n a = MatMul (x, w)\n b = Relu (a)\n y = MatMul (b, v)\n}"
    path = save(model(text, {"w": w, "v": w, "unused": normal(8)}), tmp_path)
    diagnosis = examine(path)
    assert found(diagnosis) == {("note", "duplicated-weights"), ("note", "unused-initializers")}
    assert all(finding.mends for finding in diagnosis.findings)
    done = mend(path, tmp_path / "mended.onnx")
    assert done.rules == ("duplicated-weights", "unused-initializers") and done.check is not None
    assert done.check.sqnr == 120 and done.bytes_after < done.bytes_before - 900
    assert found(examine(done.output)) == set()
    with pytest.raises(NothingToDo, match="no fault that --fix could mend"):
        mend(done.output, tmp_path / "again.onnx")


def test_a_bias_is_given_codes_of_the_right_scale(tmp_path: Path) -> None:
    path = save(model(CONV, RIGHT | {"sb": RIGHT["sb"] * np.float32(0.1)}), tmp_path)
    done = mend(path, tmp_path / "mended.onnx")
    assert done.rules == ("bias-scale",) and done.check is not None and done.check.sqnr > 40
    assert found(examine(done.output)) == set()


def test_pairs_of_onnxruntimes_domain_are_mended(tmp_path: Path) -> None:
    """And stay in that domain, the new one too: before opset 13 ONNX's own knows no axis."""
    text = CONV.replace(" QuantizeLinear", " com.microsoft.QuantizeLinear").replace(" Deq", " com.microsoft.Deq")
    path = save(model(text, RIGHT | {"sb": RIGHT["sb"] * np.float32(0.1)}, opset=12), tmp_path)
    assert ("warning", "bias-scale") in found(examine(path))
    done = mend(path, tmp_path / "mended.onnx")
    assert done.rules == ("bias-scale",) and done.check is not None and done.check.sqnr_plain > 40
    assert found(examine(done.output)) == set()
    pairs = [node for node in onnx.load(done.output).graph.node if node.op_type.endswith("quantizeLinear")]
    assert len(pairs) == 4 and {node.domain for node in pairs} == {"com.microsoft"}


def test_scales_along_k_are_written_out(tmp_path: Path) -> None:
    """onnxruntime's fused kernel is wrong: the mended file computes what the file said."""
    proto = model(PRODUCT.replace("AXIS", "0"), MATRIX | {"sw": np.geomspace(0.001, 0.1, 32).astype(np.float32)})
    path = save(proto, tmp_path)
    x = {"x": normal(4, 32, seed=5) * 2}
    said = Session(path, optimize=False).run(x)[0]
    done = mend(path, tmp_path / "mended.onnx")
    assert done.rules == ("axis-on-k",)
    np.testing.assert_allclose(Session(done.output).run(x)[0], said, rtol=1e-4, atol=1e-5)
    assert found(examine(done.output)) == set()


def test_bodies_of_loops_and_branches_are_looked_at(tmp_path: Path) -> None:
    """And what is wrong there is mended there."""
    body = CONV.partition("{")[2].removesuffix("}").replace("(x,", "(NAME,").replace(" y = ", " NAME_y = ")
    body = body.replace("c = Conv", "[NAME_c] c = Conv")
    image = "float[1, 4, 8, 8]"
    text = f"""g ({image} x, bool go) => ({image} y, {image} z) {{
        y = Loop (twice, always, x) <body = once (int64 i, bool c_in, {image} l) => (bool c_out, {image} l_y) {{
            c_out = Identity (c_in)
            {body.replace("NAME", "l")}
        }}>
        z = If (go) <then_branch = yes () => ({image} x_y) {{ {body.replace("NAME", "x")} }},
            else_branch = no () => ({image} same) {{ same = Identity (x) }}>
    }}"""
    right = RIGHT | {"twice": np.array(2), "always": np.array(True)}
    assert found(examined(tmp_path, text, right)) == set()
    diagnosis = examined(tmp_path, text, right | {"sb": RIGHT["sb"] * np.float32(0.1)})
    assert {(each.rule, each.place) for each in diagnosis.findings if each.rule == "bias-scale"} == {
        ("bias-scale", "l_c"),
        ("bias-scale", "x_c"),
    }
    done = mend(tmp_path / "model.onnx", tmp_path / "mended.onnx")
    assert done.rules == ("bias-scale",) and found(examine(done.output)) == set()


def test_blocks_are_parted_from_what_keeps_them_from_being_fused(tmp_path: Path) -> None:
    """Two products with the same scales, the first with a bias in two dimensions and a Relu that others read."""
    text = """g (float[4, 32] x) => (float[4, 32] y) {
        vd = DequantizeLinear <axis = 0, block_size = 16> (v, s)
        wd = DequantizeLinear <axis = 0, block_size = 16> (w, s)
        a = MatMul (x, vd)
        b = Add (a, row)
        r = Relu (b)
        c = MatMul (r, wd)
        h = Relu (c)
        y = Tanh (h)
    }"""
    rng = np.random.default_rng(3)
    codes = {name: rng.integers(-8, 8, (32, 32)).astype(ml_dtypes.int4) for name in "vw"}
    constants = codes | {"s": np.full((2, 32), 0.01, np.float32), "row": normal(1, 32, seed=4)}
    path = save(model(text, constants, opset=21), tmp_path)
    before = [each for each in examine(path).findings if each.rule == "unpacked-in-every-run"]
    assert ["Add" in before[0].message, "Relu" in before[1].message, len(before)] == [True, True, 2]
    done = mend(path, tmp_path / "mended.onnx")
    assert done.rules == ("unpacked-in-every-run",) and done.check is not None and done.check.sqnr_plain == 120
    after = examine(done.output)
    assert after.kernels == {"MatMulNBits": 2} and found(after) == {("note", "level-4")}


def test_codes_that_several_nodes_read_are_not_mended(tmp_path: Path) -> None:
    text = """g (float[4, 32] x) => (float[4, 32] y) {
        vd = DequantizeLinear <axis = 0, block_size = 16> (w, s)
        wd = DequantizeLinear <axis = 0, block_size = 16> (w, s)
        a = MatMul (x, vd)
        t = Tanh (a)
        y = MatMul (t, wd)
    }"""
    codes = np.random.default_rng(3).integers(-8, 8, (32, 32)).astype(ml_dtypes.int4)
    path = save(model(text, {"w": codes, "s": np.full((2, 32), 0.01, np.float32)}, opset=21), tmp_path)
    unpacked = [each for each in examine(path).findings if each.rule == "unpacked-in-every-run"]
    assert len(unpacked) == 2 and not any(each.mends for each in unpacked)
    assert all("several nodes read these codes" in each.message for each in unpacked)
    with pytest.raises(NothingToDo):
        mend(path, tmp_path / "mended.onnx")


@pytest.mark.parametrize("clip", ["Relu (c)", "Clip (c, half)", "Clip (c)"])
def test_a_relu_that_is_not_rounded_leaves_its_gemm_alone(tmp_path: Path, clip: str) -> None:
    text = f"""g (float[4, 32] x) => (float[4, 32] y) {{
        xq = QuantizeLinear (x, sx, zx)
        xd = DequantizeLinear (xq, sx, zx)
        wd = DequantizeLinear <axis = 1> (w, sw, zw)
        c = Gemm (xd, wd)
        r = {clip}
        y = Tanh (r)
    }}"""
    diagnosis = examined(tmp_path, text, MATRIX | {"half": np.array(0.5, np.float32), "zw": np.zeros(32, np.int8)})
    (finding,) = diagnosis.findings
    assert finding.rule == "islands-in-float" and finding.mends
    done = mend(tmp_path / "model.onnx", tmp_path / "mended.onnx")
    assert done.rules == ("islands-in-float",) and done.check is not None and done.check.sqnr_plain == 120
    after = examine(done.output)
    assert after.kernels == {"QGemm": 1} and found(after) == set()
