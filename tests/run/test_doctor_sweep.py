"""The doctor finds no fault in real float models, nor in what onnxq makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared import SHARED
from sweeps import at_night

import onnxq
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Diagnosis, Severity
from onnxq.errors import NothingToDo
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import load_model

MODELS = sorted((SHARED / "models").glob("*.onnx"))
#: Larger ones are only examined in float; `night` takes those in between.
SWEPT_BYTES, MOST_BYTES = 1_500_000, 3_000_000
#: Calibrated and tuned by default.
TUNED_BYTES = 300_000
TARGETS, SCHEMES = ("ort-cpu", "onnx", "onnxq", "openvino"), ("w4a16", "w8a8-dynamic")

pytestmark = pytest.mark.sweep


def faults(diagnosis: Diagnosis) -> list[str]:
    found = [each for each in diagnosis.findings if each.severity > Severity.NOTE]
    return [f"{each.rule} at {each.place}: {each.message}" for each in found]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_float_models(path: Path) -> None:
    assert faults(examine(path)) == []


def small(most_bytes: int) -> list[Path]:
    return [path for path in MODELS if path.stat().st_size < most_bytes]


#: Each model in one of the schemes on a target, on one after the other; `night` takes the rest.
CASES = [
    taken(path, scheme, target, id=f"{path.stem}-{scheme}-{target}")
    for i, path in enumerate(small(MOST_BYTES))
    for j, scheme in enumerate(SCHEMES)
    for k, target in enumerate(TARGETS)
    for is_swept in [(i % 2, i // 2 % 4) == (j, k) and path.stat().st_size < SWEPT_BYTES]
    for taken in [pytest.param if is_swept else at_night]
]


#: Each model for one of two targets; `night` takes the other, and those that take longer.
TUNED = [
    (pytest.param if i % 2 == j and path.stat().st_size < TUNED_BYTES else at_night)(
        path, target, id=f"{path.stem}-{target}"
    )
    for i, path in enumerate(MODELS)
    for j, target in enumerate(("ort-cpu", "onnxq"))
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("path", "target"), TUNED)
def test_int8(path: Path, target: str, tmp_path: Path) -> None:
    written, model = tmp_path / "out.onnx", load_model(path)
    data = make_up(model, scout(model)).feeds[:4]
    try:
        onnxq.quantize(path, written, "w8a8", target=target, data=data, check=False)
    except NothingToDo:
        pytest.skip("nothing to quantize")
    assert faults(examine(written, target=target)) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("path", "scheme", "target"), CASES)
def test_what_onnxq_makes_of_them(path: Path, scheme: str, target: str, tmp_path: Path) -> None:
    written = tmp_path / "out.onnx"
    try:
        onnxq.quantize(path, written, scheme, target=target, check=False)
    except NothingToDo:
        pytest.skip("nothing to quantize")
    found = faults(examine(written, target=target))
    if target == "onnx":  # operators of onnxruntime's domain that the float model has stay
        found = [each for each in found if not each.startswith("missing-domain")]
    assert found == []
