"""For tests that run models."""

from __future__ import annotations

import functools

import pytest

from onnxq.checking import compare, models, saved
from onnxq.runtime import timing
from onnxq.tuning import plan_bench, timings


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are measured for as short as it goes: tests that use this do not depend on them."""
    monkeypatch.setattr(timings, "TIMING_SECONDS", 0.01)
    monkeypatch.setattr(plan_bench, "PROFILE_SECONDS", 0.01)
    monkeypatch.setattr(plan_bench, "PROFILE_RUNS", (2, 4))
    for name, few in (("GROUPS", 3), ("ROUNDS", 1), ("LEAST_TURNS", 2), ("MOST_TURNS", 4)):
        monkeypatch.setattr(timing, name, few)
    for module in (saved, compare):
        monkeypatch.setattr(module, "check_models", functools.partial(models.check_models, seconds=0.01))
