"""Arrays that end where a page begins that nobody may touch: reading or writing behind one kills the process."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform != "win32" else None


def guarded(array: NDArray) -> NDArray:
    """A copy of `array` whose last byte lies before an unreadable page."""
    if _libc is None:
        pytest.skip("guard pages need mprotect")
    array = np.ascontiguousarray(array)
    size = -(-max(1, array.nbytes) // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    made = np.frombuffer(memory, np.uint8, array.nbytes, size - array.nbytes).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made
