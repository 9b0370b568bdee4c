"""What a task is, and what a worker makes of it: bytes with their hash, or a sentence.

A task is a function and its arguments, its result bytes that follow from them alone. So it may be done anywhere, twice,
or not at all where its result is known already: its name is a hash of everything that decides the result.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from onnxq import errors
from onnxq.boundary import as_sentence
from onnxq.errors import BadRecipe, Bug, OnnxqError
from onnxq.files import faults
from onnxq.version import __version__

#: What a worker says of a task: it is done; a sentence of ours; the worker is of another version; the bytes are others.
DONE, ERROR, REFUSED = "done", "error", "refused"

_here = threading.local()


@dataclass(frozen=True)
class Task:
    """
    Attributes:
        function: of a module, called with `arguments`, and behind them what its needs gave, a tuple of bytes, if it has
            any; gives bytes that follow from these alone.
        arguments: or, where they are large, a function that makes them when the task is sent.
        name: the same for tasks of the same result (`named`).
        what: in words, for messages.
        size: how much of the progress it is.
        needs: tasks whose results it gets. They are done once for all that need them, and moved between workers.
        is_kept: whether its result may serve a later command; what was measured in time does not.
    """

    function: Callable[..., bytes]
    arguments: tuple[Any, ...] | Callable[[], tuple[Any, ...]]
    name: str
    what: str
    size: int = 1
    needs: tuple[Task, ...] = ()
    is_kept: bool = True

    def given(self) -> tuple[Any, ...]:
        """The arguments."""
        return self.arguments() if callable(self.arguments) else self.arguments


class Outcome(NamedTuple):
    """What a worker sends: plain values, so that nothing of it has to be trusted.

    Attributes:
        kind: `DONE`, `ERROR` or `REFUSED`.
        payload: the result; of an error the class's name and the sentence, of a refusal the worker's versions, as JSON.
        digest: of the payload, as the worker had it.
        seconds: that it took.
    """

    kind: str
    payload: bytes
    digest: str
    seconds: float = 0.0


def named(function: Callable[..., bytes], content: object) -> str:
    """A task's name.

    Args:
        content: whatever decides the result, as JSON values.
    """
    text = json.dumps([versions(), f"{function.__module__}.{function.__qualname__}", content], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def as_given(content: bytes) -> bytes:
    """A task of what is known already, for others to need."""
    return content


@functools.cache
def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Of everything that results depend on: workers have the same, so that it does not matter which one works."""
    packages = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu")
    python = ".".join(platform.python_version_tuple()[:2])
    return {"onnxq": __version__, "Python": python} | {name: found for name in packages if (found := _installed(name))}


def perform(function: Callable[..., bytes], arguments: tuple[Any, ...], wanted: Mapping[str, str]) -> Outcome:
    """Do a task, on the worker.

    Args:
        wanted: the versions of whoever asks.
    """
    start = time.monotonic()
    if (own := versions()) != dict(wanted):
        return _outcome(REFUSED, json.dumps(own).encode())
    try:
        faults.point("task.begin")
        payload = function(*arguments)
        faults.point("task.done")
    except Exception as error:
        sentence = error if isinstance(error, OnnxqError) else as_sentence(error)
        return _outcome(ERROR, json.dumps([type(sentence).__name__, str(sentence)]).encode())
    return _outcome(DONE, payload)._replace(seconds=time.monotonic() - start)


def _outcome(kind: str, payload: bytes) -> Outcome:
    return Outcome(kind, payload, digest_of(payload))


def digest_of(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=20).hexdigest()


def is_whole(outcome: Outcome) -> bool:
    """Whether the payload is what the worker sent."""
    return digest_of(outcome.payload) == outcome.digest


def error_of(outcome: Outcome) -> OnnxqError:
    """What went wrong, as one of `errors.py`'s."""
    try:
        name, text = (str(word) for word in json.loads(outcome.payload))
    except (ValueError, TypeError, RecursionError):
        return Bug("a worker answered in a way that is not onnxq's; please report it")
    kind = getattr(errors, name, Bug)
    return kind(text) if isinstance(kind, type) and issubclass(kind, OnnxqError) else Bug(text)


def refusal_of(outcome: Outcome, worker: str) -> BadRecipe:
    """Which versions differ."""
    try:
        found = dict(json.loads(outcome.payload))
    except (ValueError, TypeError, RecursionError):
        found = {}
    names = sorted({*versions(), *found})
    other = [f"{name} {found.get(name) or 'none'}" for name in names if found.get(name) != versions().get(name)]
    own = [f"{name} {versions().get(name) or 'none'}" for name in names if found.get(name) != versions().get(name)]
    return BadRecipe(
        f"{worker} has {', '.join(other)} and this machine {', '.join(own)}: results would differ; install the same "
        "versions on both"
    )


@contextlib.contextmanager
def reporting(advance: Callable[[int], None], threads: int = 0) -> Iterator[None]:
    """Within, tasks of this thread tell their progress to `advance`.

    Args:
        threads: that a task may use; 0: it does not say.
    """
    _here.advance, _here.threads = advance, threads
    try:
        yield
    finally:
        del _here.advance, _here.threads


def advance(done: int) -> None:
    """So much more of this task's `size` is done: for tasks to call."""
    getattr(_here, "advance", lambda done: None)(done)


def threads() -> int:
    """How many a task may use here; 0: as many as there are."""
    return int(getattr(_here, "threads", 0))
