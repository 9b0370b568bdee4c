"""Reading ahead: the next samples are read, and images decoded, while the model runs on the one before; and keeping
what can be read only once."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: Samples that are read, or wait, while one is in work.
AHEAD = 2
_END = object()


class Pulled(Iterable[T]):
    """What an iterator gives, which may have no end: no more is asked of it, and kept, than anybody goes through."""

    def __init__(self, rest: Iterator[T]) -> None:
        self._rest, self._lock = rest, threading.Lock()
        self._found: list[T] = []
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        for i in itertools.count():
            with self._lock:  # it is gone through in threads
                if i == len(self._found):
                    self._pull()
                if i == len(self._found):
                    return
            yield self._found[i]

    def _pull(self) -> None:
        """One more, if there is one. What failed fails again: a generator would only end."""
        if self._failure is not None:
            raise self._failure
        try:
            self._found += itertools.islice(self._rest, 1)
        except BaseException as failure:
            self._failure = failure
            raise


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
