"""Which of a long product of parameters the default run takes, marker `pairwise`; and what begins first, `slow`."""

from __future__ import annotations

import gc
import os

import pytest
from sweeps import covering, values_of

# Before numpy is imported, here and in the processes that tests start. The matrices of tests are so small that a second
# thread only waits for the first, and burns the core on which another worker runs: three times the time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.fsync = lambda file: None  # nobody pulls the plug here, and a disk takes milliseconds


def pytest_configure(config: pytest.Config) -> None:
    """Tests that are named run, though they be some that others leave to the sweep."""
    if all("::" in word for word in config.args) and config.option.markexpr in config.getini("addopts"):
        config.option.markexpr = ""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairwise") is not None:
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    # Those that take longest begin first: at the end one worker would wait for the other.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for each in products.values():
        taken = covering([values_of(item) for item in each])
        for i in sorted(set(range(len(each))) - taken):
            each[i].add_marker(pytest.mark.night)


def pytest_collection_finish() -> None:
    """Thousands of tests live until the end: the garbage collector is not to look through all of them each time."""
    gc.collect()
    gc.freeze()
