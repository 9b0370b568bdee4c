"""How much of what hypothesis can draw is drawn: little by default, ONNXQ_EXAMPLES times as much at night."""

from __future__ import annotations

import os

from hypothesis import settings


def drawn(examples: int) -> settings:
    """So many examples, the same in every run; more of them where ONNXQ_EXAMPLES says how many times as many."""
    times = float(os.environ.get("ONNXQ_EXAMPLES", "1"))
    return settings(max_examples=max(1, round(times * examples)), deadline=None, derandomize=True)
