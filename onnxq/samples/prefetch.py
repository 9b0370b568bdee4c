"""Reading ahead: the next samples are read, and images decoded, while the model runs on the one before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

#: Samples that wait at most; with the one in work and the one being read there are two more in memory.
AHEAD = 2
#: Seconds after which a reader whose samples nobody takes looks whether it is still wanted.
PATIENCE = 0.1


def prefetch(samples: Iterable[T], ahead: int = AHEAD) -> Generator[T]:
    """The same samples in the same order, read in a thread of their own.

    What reading raises is raised here, in its place. The thread ends with the iterator.
    """
    waiting: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(ahead)
    is_over = threading.Event()

    def put(sample: T | None, error: BaseException | None, last: bool) -> bool:
        while not is_over.is_set():
            try:
                waiting.put((sample, error, last), timeout=PATIENCE)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for sample in samples:
                if not put(sample, None, False):
                    return
        except BaseException as error:  # whatever it is, it belongs to whoever takes the samples
            put(None, error, True)
        else:
            put(None, None, True)

    reader = threading.Thread(target=read, name="onnxq-reader", daemon=True)
    reader.start()
    try:
        while True:
            sample, error, is_last = waiting.get()
            if error is not None:
                raise error
            if is_last:
                return
            yield sample  # type: ignore[misc]
    finally:
        is_over.set()
        reader.join()
