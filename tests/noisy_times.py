"""Every time that is measured, times e^N(0, 1): it shows which tests depend on how busy a machine is.

`PYTHONPATH=tests NOISE=1 pytest -n 2 -p noisy_times`; `NOISE` is the seed. Only those may fail that make up the clock
themselves (`test_timing.py`, `test_busy_machine.py`). Processes that tests start measure as ever.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections.abc import Sequence

from onnxq.runtime import timing
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.session import Session
from onnxq.runtime.timing import Race

_random = random.Random(os.environ.get("NOISE", "0"))
_found, _kernels = timing._result, Session.kernels


def _noise() -> float:
    return math.exp(_random.gauss(0, 1))


def _raced(groups: Sequence[Sequence[float]]) -> Race:
    race = _found(groups)
    return dataclasses.replace(race, seconds=tuple(_noise() * seconds for seconds in race.seconds))


def _ran(session: Session) -> list[Kernel]:
    return [dataclasses.replace(kernel, seconds=_noise() * kernel.seconds) for kernel in _kernels(session)]


timing._result, Session.kernels = _raced, _ran  # type: ignore[method-assign]
