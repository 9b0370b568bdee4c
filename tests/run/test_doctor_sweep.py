"""The doctor finds no fault in real float models, nor in what onnxq makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared import SHARED

import onnxq
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Diagnosis, Severity
from onnxq.errors import NothingToDo

MODELS = sorted((SHARED / "models").glob("*.onnx"))
#: Larger ones are only examined in float.
MOST_BYTES = 3_000_000

pytestmark = pytest.mark.sweep


def faults(diagnosis: Diagnosis) -> list[str]:
    found = [each for each in diagnosis.findings if each.severity > Severity.NOTE]
    return [f"{each.rule} at {each.place}: {each.message}" for each in found]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_float_models(path: Path) -> None:
    assert faults(examine(path)) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("scheme", ["w4a16", "w8a8-dynamic"])
@pytest.mark.parametrize("path", [p for p in MODELS if p.stat().st_size < MOST_BYTES], ids=lambda path: path.stem)
def test_what_onnxq_makes_of_them(path: Path, scheme: str, tmp_path: Path) -> None:
    written = tmp_path / "out.onnx"
    try:
        onnxq.quantize(path, written, scheme, check=False)
    except NothingToDo:
        pytest.skip("nothing to quantize")
    assert faults(examine(written)) == []
