"""Which of a long product of parameters the default run takes, by markers; and what begins first, `slow`."""

from __future__ import annotations

import gc
import os

import pytest
from sweeps import covering, values_of

# Before numpy is imported, here and in the processes that tests start. The matrices of tests are so small that a second
# thread only waits for the first, and burns the core on which another worker runs: three times the time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.fsync = lambda file: None  # nobody pulls the plug here, and a disk takes milliseconds

import onnxruntime  # noqa: E402


class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Threads that sleep until there is work: those that spin take the other worker's core, and a third of all time."""

    def __init__(self) -> None:
        super().__init__()
        self.add_session_config_entry("session.intra_op.allow_spinning", "0")


onnxruntime.SessionOptions = Options


def pytest_configure(config: pytest.Config) -> None:
    """Tests that are named run, though they be some that others leave to the sweep."""
    if all("::" in word for word in config.args) and config.option.markexpr in config.getini("addopts"):
        config.option.markexpr = ""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    products: dict[tuple[str, int], list[pytest.Function]] = {}
    for item in items:
        for marker, size in (("each_value", 1), ("pairwise", 2)):
            if isinstance(item, pytest.Function) and item.get_closest_marker(marker) is not None:
                products.setdefault((item.nodeid.partition("[")[0], size), []).append(item)
    # Those that take longest begin first: at the end one worker would wait for the other.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for (_, size), each in products.items():
        taken = covering([values_of(item) for item in each], size)
        for i in sorted(set(range(len(each))) - taken):
            each[i].add_marker(pytest.mark.night)


def pytest_collection_finish() -> None:
    """Thousands of tests live until the end: the garbage collector is not to look through all of them each time."""
    gc.collect()
    gc.freeze()
