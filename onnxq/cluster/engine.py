"""Tasks handed to workers a few at a time, and their results checked and given as they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Protocol

from onnxq.cluster.tasks import DONE, ERROR, Outcome, Task, error_of, is_whole
from onnxq.errors import BadOutput, BadRecipe
from onnxq.files import mirror
from onnxq.files.cache import Cache

#: Tasks that wait, for each worker that works: so that none has to wait for its next one.
AHEAD = 2
#: A result whose bytes arrive as others is asked for again so often.
ATTEMPTS = 3
#: What is kept has taken longer to compute than reading it back would, at so many bytes a second.
KEEP_BYTES_A_SECOND = 50e6

Progress = Callable[[int], None]


class Engine(Protocol):
    """Whoever does tasks.

    Attributes:
        workers: how many work at the same time.
        cache: where results are kept for a command that goes on after an interruption; None: nowhere.
        is_here: its workers have no cores but those of this machine.
    """

    cache: Cache | None
    is_here: bool

    @property
    def dashboard(self) -> str:
        """The address of a page on what is being done; empty: there is none, or nothing was begun."""

    @property
    def workers(self) -> int: ...

    def begin(self) -> None:
        """Start workers where there are none yet.

        Raises:
            OnnxqError: none can be had.
        """

    def submit(self, task: Task, progress: Progress) -> Future[Outcome]:
        """The outcome, once there is one. A worker that dies is no outcome: the task goes to another one.

        Args:
            progress: called with parts of the task's size while it is being done, if that can be known.

        Raises, as the future's exception:
            OnnxqError: there are no workers any more, or none that could do it.
        """

    def check(self) -> None:
        """To be called from time to time while tasks are waited for.

        Raises:
            OnnxqError: nothing will come of them any more.
        """

    def unseen(self, *paths: str | Path) -> str:
        """A sentence's beginning, 'worker … cannot read …', of a file that one does not see; empty: all see all."""

    def close(self) -> None:
        """Stop what is under way."""


def require_readable(engine: Engine, *paths: str | Path) -> None:
    """
    Raises:
        BadRecipe: a worker does not see one of these files, which tasks read.
    """
    if unseen := engine.unseen(*(path for path in paths if mirror.url_of(path) is None)):
        raise BadRecipe(f"{unseen}: put it where all machines see it, in a shared folder or at s3://…")


def results(engine: Engine, tasks: Iterable[Task], progress: Progress = lambda done: None) -> Iterator[Any]:
    """What each task gives, as it reads it, in their order; not many more are under way than there are workers.

    When the caller stops, or one fails, those under way are cancelled; what was done is kept in the engine's cache.

    Raises:
        OnnxqError: what a task raised, or why it could not be done.
    """
    left = iter(tasks)
    running: list[_Running] = []
    try:
        while True:
            ahead = max(0, AHEAD * max(1, engine.workers) - len(running))  # there may be fewer workers than there were
            running += (_Running(engine, task, progress) for task in itertools.islice(left, ahead))
            if not running:
                return
            while (found := running[0].result()) is None:
                wait([each.future for each in running if each.future is not None], 1.0, FIRST_COMPLETED)
                engine.check()
                for each in running:
                    each.result()
            running.pop(0)
            yield found
    finally:
        for each in running:
            each.cancel()


def kept(cache: Cache | None, task: Task) -> tuple[bytes, Any] | None:
    """The result of a task, where it was kept, and what the task reads in it; one in which it reads nothing goes."""
    if cache is None or not task.is_kept or (known := cache.get(task.name)) is None:
        return None
    try:
        return known, task.read(known, "a worker")
    except BadRecipe:
        cache.remove(task.name)
        return None


def keep(cache: Cache | None, task: Task, outcome: Outcome) -> None:
    """Keep a result that takes longer to compute than to read."""
    if cache is not None and task.is_kept and outcome.seconds >= len(outcome.payload) / KEEP_BYTES_A_SECOND:
        cache.put(task.name, outcome.payload)


class _Running:
    """A task under way."""

    def __init__(self, engine: Engine, task: Task, progress: Progress) -> None:
        self._engine, self._task, self._progress = engine, task, progress
        self._told = self._attempts = 0
        self._found: Any = None
        self.future: Future[Outcome] | None = None
        if (known := kept(engine.cache, task)) is None:
            self.future = engine.submit(task, self._advance)
        else:
            self._found = known[1]
            self._advance(task.size)

    def result(self) -> Any:
        """What was read, if it is here and whole; else None."""
        if self.future is None or not self.future.done():
            return self._found
        outcome, self.future = self.future.result(), None
        if not is_whole(outcome):
            self._attempts += 1
            if self._attempts == ATTEMPTS:
                sentence = f"the result of {self._task.what} arrived damaged {ATTEMPTS} times: the network or a disk"
                raise BadOutput(f"{sentence} between the workers and this machine is to blame")
            self.future = self._engine.submit(self._task, self._advance)
            return None
        if outcome.kind == ERROR:
            raise error_of(outcome)
        assert outcome.kind == DONE
        self._found = self._task.read(outcome.payload, outcome.who)
        keep(self._engine.cache, self._task, outcome)
        self._advance(self._task.size - self._told)
        return self._found

    def cancel(self) -> None:
        if self.future is not None:
            self.future.cancel()

    def _advance(self, done: int) -> None:
        done = min(done, self._task.size - self._told)
        self._told += done
        if done:
            self._progress(done)
