"""How much memory there is, and an end to it while files are read whose size on disk says nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

#: What may be taken while a file is read: this share of the memory, and so much where there is little (allocators
#: reserve more than they use).
SHARE, LEAST = 2, 4 << 30
#: Where Linux says what a container may take, in its two ways.
_CONTAINER = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_PAGE = os.sysconf("SC_PAGE_SIZE")

_lock = threading.Lock()
_inside = 0
_before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@functools.cache
def memory() -> int:
    """Bytes of memory: the machine's, or what this container may take of it."""
    found = [_PAGE * os.sysconf("SC_PHYS_PAGES")]
    for name in _CONTAINER:
        with contextlib.suppress(OSError, ValueError):  # other systems; no limit is a word
            found.append(int(Path(name).read_text(encoding="ascii")))
    return min(found)


@contextlib.contextmanager
def limited(most: int | None = None) -> Iterator[None]:
    """Memory ends within as if the machine had no more: a table of 600 bytes unpacks to as many gigabytes as it likes.

    Args:
        most: bytes that the process may take in addition. All its threads share them.
    """
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = resource.getrlimit(resource.RLIMIT_DATA)
            _set(_taken() + (max(memory() // SHARE, LEAST) if most is None else most))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _set(_before[0])


def _set(most: int) -> None:
    soft, hard = _before
    if soft == resource.RLIM_INFINITY or most <= soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _taken() -> int:
    """Bytes of memory that this process writes to; none on systems that do not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
