"""`onnxq doctor`: each rule finds the fault that is planted here, and nothing else; what it mends computes the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import model, normal, save

import onnxq
from onnxq.doctor import patient
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Diagnosis, Severity
from onnxq.doctor.mend import mend
from onnxq.doctor.rule import rules
from onnxq.doctor.rules import unpacked_in_every_run
from onnxq.samples.sampling import Sampling

CONV = """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
    xq = QuantizeLinear (x, sx, zx)
    xd = DequantizeLinear (xq, sx, zx)
    wd = DequantizeLinear <axis = 0> (w, sw, zw)
    bd = DequantizeLinear <axis = 0> (b, sb, zb)
    c = Conv <pads = [1, 1, 1, 1]> (xd, wd, bd)
    r = Relu (c)
    q = QuantizeLinear (r, sy, zy)
    y = DequantizeLinear (q, sy, zy)
}"""
#: A convolution as it should be: weights so small that no two products exceed 16 bits, a bias of the right scale.
RIGHT: dict[str, NDArray] = {
    "sx": np.array(0.02, np.float32),
    "zx": np.array(128, np.uint8),
    "w": np.random.default_rng(0).integers(-60, 60, (4, 4, 3, 3)).astype(np.int8),
    "sw": np.array([0.002, 0.003, 0.001, 0.002], np.float32),
    "zw": np.zeros(4, np.int8),
    "b": np.arange(-2, 2).astype(np.int32) * 1000,
    "sb": np.float32(0.02) * np.array([0.002, 0.003, 0.001, 0.002], np.float32),
    "zb": np.zeros(4, np.int32),
    "sy": np.array(0.01, np.float32),
    "zy": np.array(0, np.uint8),
}
PRODUCT = """g (float[4, 32] x) => (float[4, 32] y) {
    xq = QuantizeLinear (x, sx, zx)
    xd = DequantizeLinear (xq, sx, zx)
    wd = DequantizeLinear <axis = AXIS> (w, sw)
    y = MatMul (xd, wd)
}"""
MATRIX = {
    "sx": RIGHT["sx"],
    "zx": RIGHT["zx"],
    "w": np.random.default_rng(1).integers(-60, 60, (32, 32)).astype(np.int8),
    "sw": np.linspace(0.001, 0.01, 32).astype(np.float32),
}


#: Files that plant faults.
PLANTED = ("doctor", "doctor_mends", "keep_in_float")


def examined(
    folder: Path, text: str, constants: Mapping[str, NDArray], opset: int = 17, **options: object
) -> Diagnosis:
    used = {name: np.asarray(x) for name, x in constants.items() if name in text}
    return examine(save(model(text, used, opset=opset), folder), **options)  # type: ignore[arg-type]


def found(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(finding.severity.word, finding.rule) for finding in diagnosis.findings}


def test_a_model_that_is_right_has_no_findings(tmp_path: Path) -> None:
    for text, constants in ((CONV, RIGHT), (PRODUCT.replace("AXIS", "1"), MATRIX)):
        diagnosis = examined(tmp_path, text, constants)
        assert found(diagnosis) == set() and not diagnosis.notes and diagnosis.worst is None
    assert diagnosis.machine["onnxruntime"] and diagnosis.stored["int8"] == 32 * 32
    assert sum(diagnosis.kernels.values()) == 1 and not diagnosis.in_float
    assert list(diagnosis.nodes.values()) == list(diagnosis.kernels)


#: In float because of the fault, which the kernels that ran show.
IN_FLOAT = ("warning", "islands-in-float")
UNPACKED = ("note", "unpacked-in-every-run")
BLOCKS = """g (KIND[4, 32] x) => (KIND[4, 32] y) {
    wd = DequantizeLinear <axis = 0, block_size = 16> (w, s)
    y = MatMul (x, wd)
}"""
HALVES = {"w": MATRIX["w"].astype(ml_dtypes.int4), "s": np.full((2, 32), 0.01, np.float16)}
FLOATS = HALVES | {"s": np.full((2, 32), 0.01, np.float32)}


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (CONV, {"sb": RIGHT["sb"] * 10}, {("warning", "bias-scale"), IN_FLOAT}),
        (CONV, {"zy": np.array(10, np.uint8)}, {("warning", "relu-zero-point"), IN_FLOAT}),
        (CONV, {"sy": np.array(0, np.float32)}, {("error", "zero-scales")}),
        (CONV, {"sx": np.array(np.nan, np.float32)}, {("error", "zero-scales"), IN_FLOAT}),
        (
            CONV,
            {"zx": np.array(32768, np.uint16), "zy": np.array(0, np.uint16)},
            {("warning", "int16-activations"), IN_FLOAT},
        ),
        (
            CONV.replace(" QuantizeLinear", " com.microsoft.QuantizeLinear").replace(" Deq", " com.microsoft.Deq"),
            {"sb": RIGHT["sb"] * 10},
            {("warning", "bias-scale"), IN_FLOAT},
        ),
        (CONV, {"w": np.full((4, 4, 3, 3), 120, np.int8)}, {("note", "saturation")}),
        (
            CONV.replace("q = QuantizeLinear (r, sy, zy)", "").replace("DequantizeLinear (q, sy, zy)", "Identity (r)"),
            {},
            {("note", "no-output-pair")},
        ),
        (PRODUCT.replace("AXIS", "0"), MATRIX, {("error", "axis-on-k")}),
        (PRODUCT.replace("AXIS", "0").replace("(xd, wd)", "(x, wd)"), MATRIX, {("warning", "axis-on-k"), UNPACKED}),
    ],
    ids=lambda each: "+".join(sorted(rule for _, rule in each)) if isinstance(each, set) else "",
)
def test_a_planted_fault_is_found(
    tmp_path: Path, text: str, changes: Mapping[str, NDArray], expected: set[tuple[str, str]]
) -> None:
    assert found(examined(tmp_path, text, RIGHT | changes, opset=21 if "zx" in changes else 17)) == expected


def test_pairs_of_onnxruntimes_domain_are_looked_at(tmp_path: Path) -> None:
    """By which quantizers write 16 bits before opset 21."""
    text = CONV.replace(" QuantizeLinear", " com.microsoft.QuantizeLinear").replace(" Deq", " com.microsoft.Deq")
    codes = RIGHT | {"zx": np.array(32768, np.uint16), "zy": np.array(0, np.uint16)}
    diagnosis = examined(tmp_path, text, codes)
    assert found(diagnosis) == {("warning", "int16-activations"), IN_FLOAT} and not diagnosis.notes


def test_blocks_that_are_fused_to_level_4(tmp_path: Path) -> None:
    assert found(examined(tmp_path, BLOCKS.replace("KIND", "float"), FLOATS, opset=21)) == {("note", "level-4")}
    halves = examined(tmp_path, BLOCKS.replace("KIND", "float16"), HALVES, opset=21)
    assert found(halves) == {("warning", "half-level-4")}


def test_blocks_that_no_fusion_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime 1.31 fuses none with a Relu right behind that others read."""
    text = BLOCKS.replace("KIND", "float").replace(
        "y = MatMul (x, wd)", "a = MatMul (x, wd)\n r = Relu (a)\n y = Tanh (r)"
    )
    (finding,) = examined(tmp_path, text, FLOATS, opset=21).findings
    assert (finding.rule, finding.severity) == ("unpacked-in-every-run", Severity.NOTE) and "Relu" in finding.message
    done = mend(tmp_path / "model.onnx", tmp_path / "mended.onnx")
    assert done.rules == ("unpacked-in-every-run",) and done.check is not None and done.check.sqnr_plain == 120
    assert found(examine(done.output)) == {("note", "level-4")}
    monkeypatch.setattr(unpacked_in_every_run, "LARGE", 1024)
    assert examined(tmp_path, text, FLOATS, opset=21).worst is Severity.WARNING
    assert found(examined(tmp_path, text.replace("Relu", "Abs"), FLOATS, opset=21)) == {("note", "level-4")}


def test_blocks_before_their_opset(tmp_path: Path) -> None:
    old = examined(tmp_path, BLOCKS.replace("KIND", "float"), FLOATS, opset=20)
    assert ("error", "old-blocked-forms") in found(old) and found(old) <= {
        ("error", "old-blocked-forms"),
        ("error", "does-not-open"),
        ("note", "level-4"),
    }
    codes = np.random.default_rng(2).integers(-8, 8, (64, 32)).astype(np.int8)
    text = """g (float[4, 64] x) => (float[4, 32] y) {
        f = Cast <to = 1> (w)
        m = Mul (f, s)
        r = Reshape (m, shape)
        t = Transpose <perm = [1, 0]> (r)
        y = MatMul (x, t)
    }"""
    constants = {"w": codes, "s": np.full((64, 1), 0.01, np.float32), "shape": np.array([32, 64])}
    assert found(examined(tmp_path, text, constants)) == {("note", "old-blocked-forms")}


@pytest.mark.parametrize(
    ("sizes", "body", "why", "mends"),
    [
        (
            "4",
            "c = Gemm <alpha = 2.0> (xd, wd)  q = QuantizeLinear (c, sy, zy)  y = DequantizeLinear (q, sy, zy)",
            "alpha",
            False,
        ),
        ("2, 4", "c = MatMul (xd, wd)  y = Add (c, v)", "all sizes", False),
        ("4", "c = Gemm (xd, wd)  r = Relu (c)  y = Tanh (r)", "the Relu behind it", True),
        ("4", "c = Gemm <alpha = 2.0> (xd, wd)  r = Relu (c)  y = Tanh (r)", "its alpha is not 1", False),
    ],
)
def test_a_product_that_is_not_fused_says_why(tmp_path: Path, sizes: str, body: str, why: str, mends: bool) -> None:
    text = f"""g (float[{sizes}, 32] x) => (float[{sizes}, 32] y) {{ xq = QuantizeLinear (x, sx, zx)
        xd = DequantizeLinear (xq, sx, zx)  wd = DequantizeLinear <axis = 1> (w, sw)  {body} }}"""
    (finding,) = examined(tmp_path, text, RIGHT | MATRIX | {"v": np.ones(32, np.float32)}).findings
    assert finding.rule == "islands-in-float" and finding.severity is Severity.WARNING
    assert why in finding.message and finding.mends == mends


def test_convolutions_whose_ranges_are_measured_are_slow(tmp_path: Path) -> None:
    text = """g (float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) {
        q, s, z = DynamicQuantizeLinear (x)
        c = ConvInteger (q, w, z)
        y = Cast <to = 1> (c)
    }"""
    assert found(examined(tmp_path, text, RIGHT)) == {("warning", "slow-convolutions")}


def test_operators_of_a_domain_that_the_target_lacks(tmp_path: Path) -> None:
    text = "g (float[4, 8] x) => (float[4, 8] y) {\n y = com.microsoft.Gelu (x)\n}"
    assert found(examined(tmp_path, text, {})) == set()
    assert found(examined(tmp_path, text, {}, target="onnx")) == {("error", "missing-domain")}
    refused = examined(tmp_path, text.replace("Gelu", "NoSuchThing"), {})
    assert found(refused) == {("error", "does-not-open")} and "NoSuchThing" in refused.findings[0].message


def test_saturation_is_proven_from_pairs_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 + 64 do not exceed 128.5, 65 + 64 do; where processors add in 32 bits it is a note."""
    w = np.zeros((32, 32), np.int8)
    w[0, 0], w[1, 0] = 64, 64
    text = PRODUCT.replace("AXIS", "1")
    assert found(examined(tmp_path, text, MATRIX | {"w": w})) == set()
    w[0, 0] = 65
    assert found(examined(tmp_path, text, MATRIX | {"w": w})) == {("note", "saturation")}
    w[1, 0], w[2, 0] = 0, 127  # not neighbours of one pair
    assert found(examined(tmp_path, text, MATRIX | {"w": w})) == set()
    w[1, 0] = -64  # of other signs
    assert found(examined(tmp_path, text, MATRIX | {"w": w})) == set()
    w[0, 0] = -70
    here = dataclasses.replace(patient.this_machine(), isa="x86_64 avx2 fma")
    monkeypatch.setattr(patient, "this_machine", lambda: here)
    (finding,) = examined(tmp_path, text, MATRIX | {"w": w}).findings
    assert finding.severity is Severity.WARNING and "34170" in finding.message and "here" in finding.message


def test_ranges_are_judged_by_samples(tmp_path: Path) -> None:
    def with_samples(scale: float) -> set[tuple[str, str]]:
        x = np.random.default_rng(3).uniform(-2.5, 2.5, (4, 1, 4, 8, 8)).astype(np.float32) * np.float32(scale)
        np.savez(tmp_path / "x.npz", x=x)
        return found(examined(tmp_path, CONV, RIGHT, sampling=Sampling(str(tmp_path / "x.npz"))))

    assert with_samples(1) <= {("warning", "clipped-ranges")} and ("warning", "wide-ranges") not in with_samples(1)
    assert ("warning", "clipped-ranges") in with_samples(10)
    assert ("warning", "wide-ranges") in with_samples(0.01)
    # A quarter of the numbers is outside [-2.56, 2.54], all of them by less than half a step.
    beside = np.where(np.arange(4 * 256) % 4 == 0, -2.569, 1.0).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=beside.reshape(4, 1, 4, 8, 8))
    assert found(examined(tmp_path, CONV, RIGHT, sampling=Sampling(str(tmp_path / "x.npz")))) == set()


def test_a_range_that_cuts_off_what_does_not_matter_is_no_fault(tmp_path: Path) -> None:
    """Nothing beyond 1 reaches the output of the first; all of it that of the second."""
    x = np.random.default_rng(3).uniform(-3, 3, (4, 1, 4, 32)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    for most, expected in ((1.0, set()), (9.0, {("warning", "clipped-ranges")})):
        text = f"""g (float[1, 4, 32] x) => (float[1, 4, 32] y) {{
            q = QuantizeLinear (x, sx, zx)  d = DequantizeLinear (q, sx, zx)
            least = Constant <value = float {{-{most}}}> ()  most = Constant <value = float {{{most}}}> ()
            y = Clip (d, least, most)
        }}"""
        constants = {"sx": np.array(1 / 64, np.float32), "zx": np.array(128, np.uint8)}
        assert found(examined(tmp_path, text, constants, sampling=Sampling(str(tmp_path / "x.npz")))) == expected


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_that_are_no_numbers(tmp_path: Path, wrong: float, dtype: type) -> None:
    """In a product and in its bias; a mask of -inf that is added is none."""
    kind = "float" if dtype is np.float32 else "float16"
    w, b, mask = normal(16, 16, dtype=dtype), normal(16, dtype=dtype), np.full((4, 16), -np.inf, dtype)
    text = f"g ({kind}[4, 16] x) => ({kind}[4, 16] y) {{\n a = Gemm (x, w, b)\n m = Add (a, mask)\n y = Softmax (m)\n}}"
    mask[:, :8] = 0
    assert found(examined(tmp_path, text, {"w": w, "b": b, "mask": mask})) == set()
    w[3, 4] = b[2] = wrong
    first, second = examined(tmp_path, text, {"w": w, "b": b, "mask": mask}).findings
    assert (first.rule, first.severity) == ("not-finite", Severity.ERROR) == (second.rule, second.severity)
    assert "1 of 256 numbers of 'w'" in first.message and "1 of 16 numbers of 'b'" in second.message


def test_float_weights_left_behind(tmp_path: Path) -> None:
    text = PRODUCT.replace("AXIS", "1").replace(
        "y = MatMul (xd, wd)", "a = MatMul (xd, wd)\n b = MatMul (a, large)\n y = MatMul (b, back)"
    )
    more = {"large": normal(32, 256), "back": normal(256, 32, seed=7)}
    diagnosis = examined(tmp_path, text, MATRIX | more)
    assert found(diagnosis) == {("note", "float-weights-left")} and len(diagnosis.findings) == 2


def test_every_rule_is_documented_and_planted_here() -> None:
    source = "".join((Path(__file__).parent / f"test_{word}.py").read_text() for word in PLANTED)
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    for rule in rules():
        assert f'"{rule.word}"' in source, f"no test plants {rule.word}"
        assert f"| `{rule.word}` |" in page, f"docs/doctor.md does not list {rule.word}"
        assert rule.what and rule.why and rule.fix
        assert rule.mends == (type(rule).mend is not type(rule).__mro__[1].mend)  # type: ignore[attr-defined]


def test_a_model_too_large_to_be_run_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient, "WHOLE_MODEL_BYTES", 100)
    diagnosis = examined(tmp_path, CONV, RIGHT | {"sb": RIGHT["sb"] * 10})
    assert found(diagnosis) == {("warning", "bias-scale")} and "too large" in diagnosis.notes[0]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("scheme", ["w8a8", "w4a16"])
def test_what_onnxq_writes_has_no_faults(tmp_path: Path, scheme: str) -> None:
    text = """g (float[1, 8, 12, 12] x) => (float[1, 16] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, f, b)
        r = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (r, h)
        s = Add (c, r)
        p = GlobalAveragePool (s)
        l = Flatten (p)
        y = MatMul (l, w)
    }"""
    constants = {
        "f": normal(64, 8, 3, 3),
        "b": normal(64),
        "h": normal(64, 64, 3, 3, seed=1),
        "w": normal(64, 16, seed=2),
    }
    path = save(model(text, constants), tmp_path)
    data = [{"x": x} for x in normal(8, 1, 8, 12, 12, seed=3) * 4]
    written = tmp_path / "out.onnx"
    onnxq.quantize(path, written, scheme, data=data if scheme == "w8a8" else None)
    worst = examine(written).worst
    assert worst is None or worst is Severity.NOTE


def test_operators_with_a_body_in_the_file_run_everywhere(tmp_path: Path) -> None:
    body = '<domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add (a, a) }'
    proto = model("g (float[4, 8] x) => (float[4, 8] y) {\n y = local.twice (x)\n}", functions=body)
    assert found(examine(save(proto, tmp_path), target="onnx")) == set()
