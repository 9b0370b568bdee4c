"""Reading ahead: the next samples are read, and images decoded, while the model runs on the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: Samples that are read, or wait, while one is in work.
AHEAD = 2
_END = object()


def prefetch(samples: Iterable[T], ahead: int = AHEAD) -> Generator[T]:
    """The same samples in the same order, read in a thread of their own.

    What reading raises is raised here, in its place. The thread ends with the iterator.
    """
    rest = iter(samples)
    with ThreadPoolExecutor(1, thread_name_prefix="onnxq-reader") as reader:
        waiting = deque(reader.submit(next, rest, _END) for _ in range(ahead))
        try:
            while (sample := waiting.popleft().result()) is not _END:
                waiting.append(reader.submit(next, rest, _END))
                yield sample  # type: ignore[misc]
        finally:
            reader.shutdown(cancel_futures=True)
