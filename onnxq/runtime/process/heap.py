"""Memory that was freed goes back to the system.

An allocator keeps it for later: behind a session there may be as much as its weights took, and what comes next asks for
other sizes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems, other libraries of C
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return found
    return None


def give_back() -> None:
    """Do so where the C library can be told to (glibc); milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)
