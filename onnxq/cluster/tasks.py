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
from onnxq.errors import BadRecipe, Exit, OnnxqError
from onnxq.files import faults
from onnxq.version import __version__

#: What a worker says of a task: it is done; a sentence of ours; the worker is of another version; the bytes are others.
DONE, ERROR, REFUSED = "done", "error", "refused"
#: Types of what a worker sends: its address, and then as `Outcome` has it.
_SENT: tuple[type | tuple[type, ...], ...] = (str, str, bytes, str, (int, float))

_here = threading.local()


def as_sent(result: bytes, who: str) -> Any:
    """The result of a task that may give any bytes."""
    return result


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
        read: what is made here of the result and of who sent it; raises what `unlike` gives of bytes that `function`
            does not give.
    """

    function: Callable[..., bytes]
    arguments: tuple[Any, ...] | Callable[[], tuple[Any, ...]]
    name: str
    what: str
    size: int = 1
    needs: tuple[Task, ...] = ()
    is_kept: bool = True
    read: Callable[[bytes, str], Any] = as_sent

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
        who: did it, for messages.
    """

    kind: str
    payload: bytes
    digest: str
    seconds: float = 0.0
    who: str = "a worker"


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


def as_values(worker: str, outcome: Outcome) -> tuple:
    """What the worker at an address sends, as values that every version can read."""
    return (worker, *outcome[: len(_SENT) - 1])


def received(said: Any) -> tuple[str, Outcome]:
    """The address and the outcome that a worker sent.

    Raises:
        BadRecipe: it is something else.
    """
    values = said if isinstance(said, tuple) else ()
    worker = values[0] if values and isinstance(values[0], str) else ""
    who = f"worker {worker}" if worker else "a worker"
    are_ours = len(values) == len(_SENT) and all(map(isinstance, values, _SENT))
    if not are_ours or values[1] not in (DONE, ERROR, REFUSED):
        raise unlike("what becomes of a task", who)
    return worker, Outcome(*values[1:])._replace(who=who)


def unlike(what: str, who: str = "a worker") -> BadRecipe:
    """That `who` sent something else than `what`, which our code sends."""
    return BadRecipe(f"{who} sent something else than {what}: it does not run onnxq's own code; start it anew")


def error_of(outcome: Outcome) -> OnnxqError:
    """What went wrong, as one of `errors.py`'s; a worker's word does not make a success of it."""
    try:
        name, text = (str(word) for word in json.loads(outcome.payload))
    except (ValueError, TypeError, RecursionError):
        name = text = ""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, OnnxqError) and kind.exit_code != Exit.DONE:
        return kind(text)
    return unlike("an error of onnxq's", outcome.who)


def refusal_of(outcome: Outcome) -> BadRecipe:
    """Which versions differ."""
    try:
        found = json.loads(outcome.payload)
    except (ValueError, RecursionError):
        found = None
    found = found if isinstance(found, dict) else {}
    names = [name for name in sorted({*versions(), *found}) if found.get(name) != versions().get(name)]
    if not found or not names:
        return unlike("why it refused a task", outcome.who)
    other, own = (", ".join(f"{name} {each.get(name) or 'none'}" for name in names) for each in (found, versions()))
    return BadRecipe(
        f"{outcome.who} has {other} and this machine {own}: results would differ; install the same versions on both"
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
