"""What takes seconds to make and is the same for all: made by one worker, for the others too."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, which `make` filled in this run of the tests: in this process, or in another worker of it."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = base / name, base / f"{name}.done"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed: the other waits here for what it would make itself
        if not done.exists():
            folder.mkdir(exist_ok=True)  # another may have been ended on the way
            make(folder)
            done.touch()
    return folder
