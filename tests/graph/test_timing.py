"""Timing on a machine that other processes disturb: a made-up clock, on which runs take what a test says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from onnxq.checking.models import Check
from onnxq.runtime import timing
from onnxq.runtime.timing import (
    EQUAL,
    GROUPS,
    KNOWN,
    MOST_TURNS,
    ROUNDS,
    Race,
    is_below,
    least_seconds,
    race,
    speed_in_words,
)

SEEDS = range(12)


@dataclass
class Machine:
    """A clock, and how much longer runs take than they would alone."""

    disturbance: Iterator[float]
    now: float = 0.0


@dataclass
class Model:
    machine: Machine
    seconds: float
    threads: int = 1
    runs: int = field(default=0)

    def run(self, feed: object) -> None:
        self.runs += 1
        self.machine.now += self.seconds * next(self.machine.disturbance)


def alone() -> Iterator[float]:
    while True:
        yield 1.0


def under_load(seed: int) -> Iterator[float]:
    """Two of three runs wait for others, for up to many times their own time; all suffer from shared caches."""
    rng = np.random.default_rng(seed)
    while True:
        waits = rng.exponential(2.0) if rng.random() < 0.67 else 0.0
        yield 1 + abs(rng.normal(0, 0.02)) + waits


def raced(
    monkeypatch: pytest.MonkeyPatch, *seconds: float, load: Iterator[float], bound: float | None = None
) -> tuple[Race, list[Model]]:
    machine = Machine(load)
    models = [Model(machine, each) for each in seconds]
    monkeypatch.setattr(timing, "clock_of", lambda threads: lambda: machine.now)
    return race(models, [None] * len(models), seconds=0.5, bound=bound), models


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("seconds", [0.001, 0.02])
def test_equal_models_are_called_equal_under_load(monkeypatch: pytest.MonkeyPatch, seed: int, seconds: float) -> None:
    found, _ = raced(monkeypatch, seconds, seconds, load=under_load(seed), bound=0.9)
    assert found.is_below(0.9) is False
    assert speed_in_words(found.ratio(), found.spreads[1]) == "as fast as float"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("speed", [0.57, 1.16, 2.0, 7.46])
def test_what_is_decided_and_printed_is_the_same_under_load(
    monkeypatch: pytest.MonkeyPatch, seed: int, speed: float
) -> None:
    quiet, _ = raced(monkeypatch, 0.004, 0.004 / speed, load=alone(), bound=0.97)
    loaded, _ = raced(monkeypatch, 0.004, 0.004 / speed, load=under_load(seed), bound=0.97)
    assert quiet.ratio() == pytest.approx(1 / speed) and quiet.spreads[1] == pytest.approx(KNOWN / speed)
    assert loaded.is_below(0.97) == quiet.is_below(0.97) == (speed > 1)
    assert loaded.ratio() == pytest.approx(1 / speed, rel=0.05)
    assert abs(loaded.ratio() - 1 / speed) <= 3 * loaded.spreads[1]


def test_what_cannot_be_told_is_run_longer_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def rising(seed: int) -> Iterator[float]:
        rng = np.random.default_rng(seed)
        while True:
            yield 1 + rng.random()

    clear, models = raced(monkeypatch, 0.01, 0.002, load=rising(0), bound=0.97)
    assert clear.is_below(0.97) is True
    few = models[0].runs
    unclear, models = raced(monkeypatch, 0.01, 0.0097, load=rising(0), bound=0.97)
    assert unclear.is_below(0.97) is None
    assert few < models[0].runs <= 2 + GROUPS * MOST_TURNS * (2**ROUNDS - 1)


@pytest.mark.parametrize("bound", [None, 0.97])
def test_slow_models_run_a_few_times(monkeypatch: pytest.MonkeyPatch, bound: float | None) -> None:
    """Even where that leaves it open which of them is the faster: two models of 3 seconds took four minutes."""
    _, models = raced(monkeypatch, 3.0, 2.9, load=alone(), bound=bound)
    assert models[0].runs == models[1].runs == 2 + GROUPS


def test_models_that_are_not_quite_as_slow_run_longer_but_not_as_often_as_quick_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, models = raced(monkeypatch, 0.25, 0.2425, load=alone(), bound=0.97)
    assert models[0].runs == 2 + GROUPS * (1 + 2)


def test_one_thread_is_timed_by_its_own_processor_time() -> None:
    assert timing.clock_of({1}) is time.thread_time
    assert timing.clock_of({1, 2}) is timing.clock_of({0}) is time.perf_counter


def test_a_thread_that_waits_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is what being suspended for other processes is to a thread."""

    class Waiting:
        threads = 1

        def run(self, feed: object) -> None:
            time.sleep(0.05)

    assert least_seconds(Waiting(), None) < 0.04


def test_a_bound_within_the_spread_decides_nothing() -> None:
    assert (is_below(0.9, 0.05, 0.97), is_below(0.9, 0.1, 0.97), is_below(1.1, 0.1, 0.97)) == (True, None, False)


@pytest.mark.parametrize(
    ("ratio", "spread", "words"),
    [
        (1.0, 0.0, "as fast as float"),
        (1 - EQUAL / 2, 0.0, "as fast as float"),
        (0.8, 0.3, "as fast as float"),
        (1 / 1.16, 0.037, "1.16× ± 0.05 as fast as float"),
        (2.0, 0.2, "0.50× ± 0.05 as fast as float"),
        (0.5, 0.0, "2.00× ± 0.01 as fast as float"),
    ],
)
def test_words(ratio: float, spread: float, words: str) -> None:
    assert speed_in_words(ratio, spread) == words
    assert speed_in_words(ratio, spread, "it was") == words.replace("float", "it was")


def test_a_file_is_slower_only_where_that_is_clear() -> None:
    check = Check("", 30, 30, 30, float_ms=1.0, quantized_ms=1.2, latency_spread=0.3)
    assert not check.is_slower(1.05)
    assert Check("", 30, 30, 30, float_ms=1.0, quantized_ms=1.2, latency_spread=0.1).is_slower(1.05)
    assert not Check("", 30, 30, 30).is_slower(0.5)
