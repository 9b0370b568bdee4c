"""What does not fit into memory at once is observed in groups, each in a pass of its own over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import onnx_ir as ir

from onnxq.output import write
from onnxq.runtime.session import MappedSession, Session

T = TypeVar("T")

#: Bytes to spend on observing, unless told otherwise.
GROUP_BYTES = 1 << 29


def whole_session(model: ir.Model, threads: int) -> Session:
    """A session on a whole model to observe, of whose weights there are no copies where they are large.

    Whether they are does not depend on the memory given, so that no number does.
    """
    return (MappedSession if write.nbytes_to_write(model) > GROUP_BYTES else Session)(model, threads=threads)


def bytes_for(memory: int | None) -> int:
    """What observing may take: `memory`, or 512 MiB."""
    return GROUP_BYTES if memory is None else memory


def in_groups(items: Iterable[T], nbytes: Callable[[T], int], memory: int | None) -> list[list[T]]:
    """`items`, in order, in groups that take at most the memory given each, or are of one.

    Args:
        nbytes: what an item takes.
        memory: bytes; None: 512 MiB.
    """
    limit = bytes_for(memory)
    groups: list[list[T]] = []
    total = 0
    for item in items:
        if not groups or total + nbytes(item) > limit:
            groups.append([])
            total = 0
        groups[-1].append(item)
        total += nbytes(item)
    return groups
