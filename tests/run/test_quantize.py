"""The whole story on the sample models: every scheme for every target, and what else `quantize` promises."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from sweeps import at_night
from tiny import normal

import onnxq
from onnxq import job
from onnxq.calibration import find_ranges
from onnxq.checking import verdict
from onnxq.drafts import tuned as drafts
from onnxq.errors import BadOutput, Bug, CheckFailed, NothingToDo
from onnxq.job import open_job
from onnxq.plan import FLOAT_IS_FASTER, Choice, Method, in_float
from onnxq.runtime.session import Session
from onnxq.schemes import SCHEMES, STATIC_SCHEMES

MODELS = Path(__file__).parents[2] / "models"
DIGITS, TEXT = MODELS / "digits_cnn.onnx", MODELS / "text_transformer.onnx"
#: Size against float at most, and kernels that ran in the convolutional network and in the transformer on ort-cpu.
#: Schemes in which target onnxq has operators of its own: packed products.
PACKED_PRODUCTS = ("w4a16", "w8a16", "nf4", "fp4", "bf16")
EXPECTED = {
    "w8a8": (0.33, {"QLinearConv", "QLinearAdd", "QGemm"}, {"MatMulIntegerToFloat"}),
    "w4a8": (0.33, {"QLinearConv", "QLinearAdd", "QGemm"}, {"MatMulIntegerToFloat"}),  # 8 bits on some targets
    "w8a8-dynamic": (0.30, {"DynamicQuantizeMatMul"}, {"DynamicQuantizeMatMul"}),
    "w8a16": (0.33, {"MatMulNBits"}, {"MatMulNBits", "GatherBlockQuantized"}),
    "w4a16": (0.30, {"MatMulNBits"}, {"MatMulNBits", "GatherBlockQuantized"}),
    "nf4": (0.31, {"MatMulBnb4"}, {"MatMulBnb4"}),
    "fp4": (0.31, {"MatMulBnb4"}, {"MatMulBnb4"}),
    "fp16": (0.53, set(), set()),
    "bf16": (0.53, set(), set()),
}
#: dB that the worst kind of inputs keeps where no weight gets a finer format; other schemes are held to the default.
LEAST_DB = {"nf4": 10.0, "fp4": 10.0}
pytestmark = pytest.mark.usefixtures("quick")


def data_of(model: Path, what: str = "calibration") -> Path:
    return model.with_name(f"{model.stem}_{what}.npz")


def without_metadata(path: Path) -> bytes:
    """A model but for what it says of how it was made."""
    model = onnx.load(path)
    del model.metadata_props[:]
    return model.SerializeToString(deterministic=True)


def interface(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*model.graph.input, *model.graph.output]


#: Each scheme on each target with one of the two models, now and then the transformer: the sweep takes a quarter of
#: them, `night` the rest.
SCHEMES_ON_TARGETS = [
    taken(model, scheme, target, id=f"{model.stem}-{scheme}-{target}")
    for i, scheme in enumerate(sorted(set(SCHEMES) - {"auto"}))
    for j, target in enumerate(tiny.HERE)
    for model in (DIGITS, TEXT)
    for taken in [at_night if (model == TEXT) != (i % 3 == j % 3) or (i + j) % 4 else pytest.param]
]


@pytest.mark.sweep
@pytest.mark.parametrize(("model", "scheme", "target"), SCHEMES_ON_TARGETS)
def test_schemes(tmp_path: Path, model: Path, scheme: str, target: str) -> None:
    recipe, data = (
        onnxq.Recipe(scheme, keep_slow=True, min_sqnr=LEAST_DB.get(scheme, 20.0)),
        data_of(model) if scheme in STATIC_SCHEMES else None,
    )
    result = onnxq.quantize(model, tmp_path / "q.onnx", recipe, target=target, data=data, limit=16)
    saved, check = onnx.load(result.output), result.check
    largest, *kernels = EXPECTED[scheme]
    assert check is not None
    assert result.bytes_after == result.output.stat().st_size < largest * result.bytes_before
    assert check.sqnr > LEAST_DB.get(scheme, 20.0) - 0.5
    assert interface(saved) == interface(onnx.load(model))
    assert json.loads(saved.metadata_props[0].value)["recipe"]["scheme"] == scheme
    domains = {node.domain for node in saved.graph.node}
    if target == "ort-cpu":
        assert set(check.kernels) == kernels[model == TEXT]
    elif target == "onnx":
        assert domains == {""}
    elif target == "openvino":
        assert domains <= {"", "com.microsoft"} and not saved.functions
    else:
        has_regions = scheme in ("w8a8", "w4a8") or (scheme in STATIC_SCHEMES and model == DIGITS)  # which convolves
        assert domains - {""} == ({"onnxq"} if scheme in PACKED_PRODUCTS or has_regions else set())
        assert {f.domain for f in saved.functions} == domains - {""}
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


@pytest.mark.parametrize("scheme", ["w8a8", "w4a16"])
def test_digits_are_still_recognized(tmp_path: Path, scheme: str) -> None:
    data = data_of(DIGITS) if scheme == "w8a8" else None
    result = onnxq.quantize(DIGITS, tmp_path / "q.onnx", onnxq.Recipe(scheme, keep_slow=True), data=data)
    table = dict(np.load(data_of(DIGITS, "eval")))
    images = table["image"].astype(np.float32)
    wanted, got = (Session(path).run({"image": images})[0].argmax(1) for path in (DIGITS, result.output))
    assert np.mean(wanted == got) > 0.985


@pytest.mark.parametrize(("data", "scheme"), [(data_of(DIGITS), "w8a8"), (None, "w4a16")], ids=["data", "none"])
def test_auto(tmp_path: Path, data: Path | None, scheme: str) -> None:
    result = onnxq.quantize(DIGITS, tmp_path / "q.onnx", data=data)
    assert result.was_auto
    assert (result.recipe.scheme, result.plan.scheme) == (scheme, scheme)


def test_a_plan_is_repeated_byte_by_byte(tmp_path: Path) -> None:
    first = onnxq.quantize(DIGITS, tmp_path / "a.onnx", "w8a8", data=data_of(DIGITS))
    second = onnxq.quantize(DIGITS, tmp_path / "b.onnx", "w8a8", data=data_of(DIGITS), plan=first.plan)
    assert second.plan == first.plan
    assert without_metadata(second.output) == without_metadata(first.output)


def test_slow_files_go_back_to_float_unless_a_plan_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "SLOWER", 0.0)
    plan = open_job(TEXT, "w8a8-dynamic").plan
    as_planned = onnxq.quantize(TEXT, tmp_path / "a.onnx", "w8a8-dynamic", plan=plan)
    assert as_planned.plan == plan
    monkeypatch.setattr(drafts, "tune", lambda bench, plan, *others, **options: plan)
    given_back = onnxq.quantize(TEXT, tmp_path / "b.onnx", "w8a8-dynamic")
    assert given_back.plan.those(Method.DYNAMIC) == []
    assert {c.reason for c in given_back.plan if c.op == "MatMul"} == {"the saved file was slower than float"}
    assert given_back.check is not None
    assert given_back.check.kernels == {}


def test_ranges_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing is calibrated; other data need another file."""
    recipe, ranges = onnxq.Recipe("w8a8", keep_slow=True), tmp_path / "ranges.json"
    first = onnxq.quantize(DIGITS, tmp_path / "a.onnx", recipe, data=data_of(DIGITS), ranges=ranges)
    monkeypatch.setattr(find_ranges, "observe", None)
    second = onnxq.quantize(
        DIGITS, tmp_path / "b.onnx", recipe, data=data_of(DIGITS), ranges=ranges, plan=first.plan, check=False
    )
    assert second.check is None
    assert without_metadata(second.output) == without_metadata(first.output)
    with pytest.raises(onnxq.OnnxqError, match="are of other data; delete the file"):
        onnxq.quantize(DIGITS, tmp_path / "c.onnx", recipe, data=data_of(DIGITS), limit=20, ranges=ranges)


def test_a_failed_check_leaves_no_file(tmp_path: Path) -> None:
    plan = onnxq.quantize(DIGITS, tmp_path / "q.onnx", "w4a16", check=False).plan
    (tmp_path / "q.onnx").unlink()
    recipe = onnxq.Recipe("w4a16", min_sqnr=100)
    with pytest.raises(CheckFailed, match=r"less than the 100 dB asked for: keep more nodes in float"):
        onnxq.quantize(DIGITS, tmp_path / "q.onnx", recipe, plan=plan)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sweep
def test_weights_go_back_to_float_until_the_floor_is_reached(tmp_path: Path) -> None:
    result = onnxq.quantize(TEXT, tmp_path / "q.onnx", onnxq.Recipe("w4a16", min_sqnr=72))
    assert result.check is not None and result.check.sqnr >= 71.5
    assert {"float16", None} >= {choice.format for choice in result.plan}
    assert any(choice.method is Method.KEEP and choice.elements and choice.reason for choice in result.plan)


def test_a_floor_that_only_float_reaches_leaves_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(onnxq.OnnxqError, match="nothing could be quantized") as refusal:
        onnxq.quantize(DIGITS, tmp_path / "q.onnx", onnxq.Recipe("w4a16", min_sqnr=150), strict=True)
    assert refusal.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_too_coarse_weights_get_a_longer_format(tmp_path: Path) -> None:
    result = onnxq.quantize(TEXT, tmp_path / "q.onnx", onnxq.Recipe("w4a16", min_sqnr=30))
    assert result.check is not None
    assert result.check.sqnr > 29.5
    assert {"uint4", "int8"} >= {choice.format for choice in result.plan if choice.method is Method.PACKED}
    assert any(choice.reason for choice in result.plan if choice.format == "int8")


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    output.write_text("mine")
    with pytest.raises(BadOutput, match="exists; give --force to replace it"):
        onnxq.quantize(DIGITS, output, "w4a16")
    assert output.read_text() == "mine"
    onnxq.quantize(DIGITS, output, "w4a16", force=True)
    assert onnx.load(output).producer_name == "onnxq"


def test_a_trace_has_the_graph_after_every_step(tmp_path: Path) -> None:
    onnxq.quantize(DIGITS, tmp_path / "q.onnx", "w4a16", trace=tmp_path / "trace")
    texts = {path.name: path.read_text() for path in (tmp_path / "trace").iterdir()}
    assert set(texts) == {"1-prepared.onnxtxt", "2-rewritten.onnxtxt"}
    assert "MatMulNBits" in texts["2-rewritten.onnxtxt"]
    assert "MatMulNBits" not in texts["1-prepared.onnxtxt"]


def test_a_file_where_the_trace_was_to_be_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("mine")
    with pytest.raises(onnxq.OnnxqError, match=r"--trace '.*trace' is a file; name a folder"):
        onnxq.quantize(DIGITS, tmp_path / "q.onnx", "w4a16", trace=tmp_path / "trace")
    assert (tmp_path / "trace").read_text() == "mine" and not (tmp_path / "q.onnx").exists()


def test_models_without_weights_have_nothing_to_quantize(tmp_path: Path) -> None:
    path = tiny.save(tiny.model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path)
    with pytest.raises(NothingToDo, match="holds no floating-point weights"):
        onnxq.quantize(path, tmp_path / "q.onnx", strict=True)
    assert [found.name for found in tmp_path.iterdir()] == ["model.onnx"]


def test_quantized_models_are_refused_unless_asked_for(tmp_path: Path) -> None:
    text = "g (float[4,64] x) => (float[4,32] z) { y = MatMul(x, v)  z = MatMul(y, w) }"
    path = tiny.save(tiny.model(text, {"v": normal(64, 64), "w": normal(64, 32)}), tmp_path)
    half = onnxq.Recipe("w8a8-dynamic", (onnxq.Rule("keep", "z"),), keep_slow=True)
    first = onnxq.quantize(path, tmp_path / "a.onnx", half).output
    with pytest.raises(onnxq.OnnxqError, match=r"is quantized already \(.*MatMulInteger.*\): start from the float"):
        onnxq.quantize(first, tmp_path / "b.onnx", "w8a8-dynamic")
    full = onnxq.Recipe("w8a8-dynamic", keep_slow=True, requantize=True)
    second = onnxq.quantize(first, tmp_path / "b.onnx", full)
    assert [node.op_type for node in onnx.load(second.output).graph.node].count("MatMulInteger") == 2
    assert second.check is not None
    assert second.check.sqnr > 30


SPOILT = "g (float[n, 64] x) => (float[n, 64] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, w) }"
RANDOM = "g (float[n, 64] x) => (float[n, 64] y) { r = RandomNormalLike(x)  y = MatMul(r, w) }"


def test_what_is_another_model_before_it_is_quantized_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told from what few bits cost."""
    path, prepare = tiny.save(tiny.model(SPOILT, {"w": tiny.normal(64, 64)}), tmp_path), job.prepare

    def spoilt(model: ir.Model, **how: Any) -> str:
        refusal = prepare(model, **how)
        tiny.find(model, "Relu").op_type = "Neg"
        return refusal

    monkeypatch.setattr(job, "prepare", spoilt)
    with pytest.raises(Bug, match=r"this is a bug in onnxq: what it made of '.*' before .* is another model \(-?\d"):
        onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a16", keep_slow=True))
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_that_draws_numbers_is_never_the_same(tmp_path: Path) -> None:
    path = tiny.save(tiny.model(RANDOM, {"w": tiny.normal(64, 64)}), tmp_path)
    data = [{"x": tiny.normal(2, 64, seed=i)} for i in range(4)]
    result = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a16", keep_slow=True), data=data)
    assert result.check is not None and not result.check.sqnr > 5 and result.output.exists()


def test_what_only_stores_weights_and_is_slower_is_told() -> None:
    assert "every kernel is one of float" in verdict.why_slow(onnxq.Plan("auto", "ort-cpu"))


def test_who_gets_little_from_one_target_is_told_of_the_other() -> None:
    fast, slow = (Choice(word, "Conv", Method.STATIC, "int8", elements=9) for word in ("fast", "slow"))
    slow = dataclasses.replace(in_float(slow, FLOAT_IS_FASTER), node="slow")
    plain = Choice("sum", "Add", Method.KEEP, reason=FLOAT_IS_FASTER)
    told = verdict.with_library(onnxq.Plan("w8a8", "ort-cpu", {"slow": slow, "sum": plain}), "onnxq")
    assert "for 1 node with weights" in told and "-t onnxq" in told
    assert not verdict.with_library(onnxq.Plan("w8a8", "ort-cpu", {"fast": fast, "slow": slow, "sum": plain}), "onnxq")
