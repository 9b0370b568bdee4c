"""The shared real models, their data and scores."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import dataclass
from types import ModuleType

from shared import SHARED


def load_zoo() -> ModuleType | None:
    """zoo.py of the shared folder, which feeds and scores its models; None where it is not there."""
    path = SHARED / "zoo" / "zoo.py"
    spec = importlib.util.spec_from_file_location("zoo", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = module  # where its dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Verdict:
    """A score, how much worse than float it is, and how much worse it may be, all in the metric's own unit."""

    score: float
    loss: float
    allowed: float

    @property
    def is_good(self) -> bool:
        return self.loss <= self.allowed + 1e-9


def judge(metric: str, in_float: float, score: float) -> Verdict:
    """What 8-bit schemes may lose: a point of accuracy, 0.02 nats, a dB of image quality; 25 dB must remain.

    `metric` is the zoo's own name for it. Scores "vs float" compare with the float model's outputs.
    """
    if "db" in metric.split()[0] and "vs float" in metric:
        return Verdict(score, 25.0 - score, 0.0)
    if metric.startswith("psnr_db"):
        return Verdict(score, in_float - score, 1.0)
    if metric == "perplexity":
        return Verdict(score, math.log(score / in_float), 0.02)
    if metric == "nll":
        return Verdict(score, score - in_float, 0.02)
    if metric.startswith("mean abs error"):
        return Verdict(score, score - in_float, 0.05)
    return Verdict(score, in_float - score, 0.01)
