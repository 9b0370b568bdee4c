"""Reading ahead changes nothing but when samples are read."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.runtime.session import Input
from onnxq.samples.prefetch import AHEAD, prefetch
from onnxq.samples.source import DataSource, open_data


def readers() -> int:
    return sum(thread.name.startswith("onnxq-reader") for thread in threading.enumerate())


@pytest.mark.parametrize("count", [0, 1, AHEAD, 50])
def test_samples_come_in_order_and_all(count: int) -> None:
    assert list(prefetch(iter(range(count)))) == list(range(count))
    assert readers() == 0


def test_what_reading_raises_comes_in_its_place() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("three is broken")

    rest = prefetch(failing())
    assert [next(rest), next(rest)] == [1, 2]
    with pytest.raises(ValueError, match="three is broken"):
        next(rest)
    assert readers() == 0


def test_few_samples_are_read_ahead() -> None:
    read: list[int] = []

    def samples() -> Iterator[int]:
        for i in range(50):
            read.append(i)
            yield i

    rest = prefetch(samples())
    assert next(rest) == 0
    time.sleep(0.2)
    assert len(read) <= AHEAD + 2
    rest.close()
    assert readers() == 0


def test_reading_and_taking_overlap() -> None:
    """The next sample is read while the one before is in use: each waits for the other, which no single thread can."""
    in_use, read = threading.Event(), threading.Event()

    def samples() -> Iterator[int]:
        yield 0
        assert in_use.wait(10)
        read.set()
        yield 1

    for sample in prefetch(samples()):
        if sample == 0:
            in_use.set()
            assert read.wait(10)


def fills_one_buffer() -> Iterator[dict[str, NDArray]]:
    buffer = np.empty((1, 3), np.float32)
    for i in range(3):
        buffer[:] = i
        yield {"x": buffer}
        buffer[:] = np.nan


@pytest.mark.parametrize("source", [fills_one_buffer, fills_one_buffer()], ids=["function", "generator"])
def test_samples_stay_what_they_are_when_the_caller_goes_on(source: DataSource) -> None:
    """The next ones are read while the model runs on one, and some are held back to the end."""
    with contextlib.closing(prefetch(open_data(source, (Input("x", np.dtype(np.float32), (None, 3)),)))) as found:
        assert [sample["x"][0, 0] for sample in list(found)] == [0, 1, 2]
