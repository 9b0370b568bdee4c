"""Schedulers of Dask with workers in this process. Without Dask, tests that import this are skipped."""

from __future__ import annotations

from typing import Any

import pytest

distributed = pytest.importorskip("distributed")
#: What a cluster that ends in the process of the tests leaves to the garbage collector.
QUIET = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def in_this_process(workers: int) -> Any:
    """A `LocalCluster`: its workers are threads of this process, and listen on the loopback device."""
    options = {"processes": False, "protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    return distributed.LocalCluster(n_workers=workers, threads_per_worker=1, silence_logs="CRITICAL", **options)
