"""For tests that run models."""

from __future__ import annotations

import functools

import pytest

from onnxq import check, measure, pipeline, tune
from onnxq.cli import check as check_command


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are measured for as short as it goes: tests that use this do not depend on them."""
    monkeypatch.setattr(tune, "TIMING_SECONDS", 0.01)
    monkeypatch.setattr(measure, "PROFILE_SECONDS", 0.01)
    for module in (pipeline, check_command):
        monkeypatch.setattr(module, "check_models", functools.partial(check.check_models, seconds=0.01))
