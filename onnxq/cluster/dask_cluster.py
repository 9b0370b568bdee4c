"""Tasks done by the workers of a Dask cluster: Dask schedules, tries again elsewhere and moves results."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.boundary import as_sentence
from onnxq.cluster import engine, started
from onnxq.cluster.tasks import (
    DONE,
    REFUSED,
    Outcome,
    Task,
    as_given,
    as_values,
    is_whole,
    perform,
    received,
    refusal_of,
    reporting,
    versions,
)
from onnxq.errors import BadRecipe, MissingRuntime, OnnxqError, OutOfMemory, first_line
from onnxq.files.cache import Cache

#: Seconds to wait for a scheduler to answer, and for one that is gone to come back.
CONNECT, GONE = 15.0, 10.0
#: Workers that die with a task before it is given up: what killed one may kill all.
DEATHS = 3
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://\S+")
#: Held by the task that a process works on: a task uses all threads of its worker.
_alone = threading.Lock()
_NO_DASK = "--cluster needs Dask: pip install 'onnxq[cluster]'"
_LOCAL = re.compile(r"local:([1-9]\d{0,3})")


class DaskCluster:
    """An `Engine` of Dask's workers. Those of `local:4` are started once there is something to do.

    Args:
        word, begun: as `words.open_engine` takes them.

    Raises:
        BadRecipe: no such cluster, or no scheduler answers.
        MissingRuntime: Dask is not installed.
    """

    def __init__(
        self, word: str, cache: Cache | None = None, begun: Callable[[DaskCluster], object] = lambda engine: None
    ) -> None:
        self.word, self.cache, self._begun = word, cache, begun
        found = _LOCAL.fullmatch(word)
        self._started_here = int(found[1]) if found else 0
        self.is_here = found is not None
        self._closing = contextlib.ExitStack()
        self._refused: dict[str, OnnxqError] = {}
        #: By name, tasks that others need: their results stay with the workers until the end.
        self._held: dict[str, _Held] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._seen: set[tuple[str, int]] = set()
        self._gone_since: float | None = None
        self._counted = (0.0, 0)
        self._client: Any = None
        if self.is_here:
            _require_dask()
        else:
            self.begin()

    def begin(self) -> None:
        if self._client is not None:
            return
        self._distributed = _distributed()
        try:
            self._closing.enter_context(_configured())
            self._client = self._opened()
        except BaseException:
            self._closing.close()
            raise
        self._begun(self)

    @property
    def dashboard(self) -> str:
        return "" if self._client is None else self._client.dashboard_link or ""

    def _opened(self) -> Any:
        address: Any
        if workers := self._started_here:
            address, ended = started.local_cluster(self._distributed, workers, self._closing)
        elif _ADDRESS.fullmatch(self.word):
            address = self.word
        elif self.word == "dask":
            address = None
        elif re.fullmatch(r"[\w.]+:[A-Za-z_]\w*", self.word):
            address = started.made(self.word)
            self._closing.callback(started.close, self.word, address)
        else:
            raise BadRecipe(
                f"--cluster '{self.word}' is none of tcp://host:port, tls://host:port, local:4, dask, or module:Class "
                "of a Dask cluster"
            )
        try:
            client = self._connected(address)
            if workers:
                started.wait_for(client, workers, ended, 4 * CONNECT)
        except OnnxqError:
            raise
        except Exception as error:  # of Dask's, of connections, of certificates that are not configured
            raise BadRecipe(
                f"no Dask scheduler answers at '{self.word}': {first_line(error)}; start one by 'dask scheduler'"
            ) from None
        return client

    def _connected(self, address: Any) -> Any:
        """A client of the scheduler at `address`."""
        client = self._distributed.Client.__new__(self._distributed.Client)
        # Before it is begun: one that ends half-made (no certificate) is not closed by Dask but by the garbage
        # collector, which waits for ever for a lock if that is while another cluster starts.
        self._closing.callback(_close_client, client)
        client._handle_task_erred = functools.partial(_set_error, client)
        client.__init__(address, timeout=CONNECT, set_as_default=False)
        return client

    @property
    def workers(self) -> int:
        """How many there are now; asked anew every second."""
        if self._client is None:
            return self._started_here
        since, count = self._counted
        if time.monotonic() - since > 1:
            self._counted = (time.monotonic(), len(self._addresses()))
        return self._counted[1] or count

    def submit(self, task: Task, progress: Callable[[int], None]) -> Future[Outcome]:
        self.begin()
        future = _Cancelling()
        self._send(task, future)
        return future

    def check(self) -> None:
        """
        Raises:
            BadRecipe: the scheduler is gone, or no worker may work.
        """
        comm = self._client.scheduler_comm
        if self._client.status == "running" and comm is not None and not comm.comm.closed():
            self._gone_since = None
            return
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since > GONE or self._client.status == "closed":
            raise self._gone()

    def unseen(self, *paths: str | Path) -> str:
        """Asked of those that are there now, and once for each file as it is."""
        self.begin()
        sizes = {os.path.abspath(path): os.path.getsize(path) for path in paths}
        if new := {path: size for path, size in sizes.items() if (path, size) not in self._seen}:
            for worker, unseen in self._client.run(_unseen, new).items():
                if unseen:
                    return f"worker {worker} cannot read '{unseen}'"
            self._seen.update(new.items())
        return ""

    def close(self) -> None:
        self._closing.close()

    def _send(self, task: Task, future: _Cancelling, attempt: int = 0) -> None:
        """Give a task to Dask, and `future` what becomes of it."""
        allowed = [address for address in self._addresses() if address not in self._refused] if self._refused else None
        if allowed == []:
            future.give(next(iter(self._refused.values())))
            return
        known = self._held.get(task.name)
        held = known or self._sent(task, allowed, -attempt)
        if known is None:
            future.cancels = held.sent.cancel

        def done(sent: Any) -> None:
            try:
                self._settle(task, future, held, attempt)
            except Exception as error:  # which Dask would print, and `future` would never end
                self._let_go(held)
                future.give(error if isinstance(error, OnnxqError) else as_sentence(error))
            finally:
                if known is None:
                    sent.release()

        held.sent.add_done_callback(done)

    def _settle(self, task: Task, future: _Cancelling, held: _Held, attempt: int) -> None:
        """Tell `future` what became of a task, or send it to another worker.

        Raises:
            BadRecipe: it cannot be had, or is nothing that a worker of ours says.
        """
        worker, outcome = self._outcome(held.sent, task)
        if outcome.kind != DONE or not is_whole(outcome):  # perhaps that of a task that it needs
            self._let_go(held)
        if outcome.kind != REFUSED:
            future.give(outcome)
            return
        refusal = refusal_of(outcome)
        if attempt > len(self._addresses()) + DEATHS:  # more than there are: some say that they are others
            raise refusal
        with self._lock:
            self._refused[worker] = refusal
        self._send(task, future, attempt + 1)

    def _sent(self, task: Task, allowed: list[str] | None, priority: int = 0) -> _Held:
        """A task given to Dask, behind those that it needs."""
        needs = [self._holding(need, allowed) for need in task.needs]
        # Another key each time: of one that it has not quite forgotten, Dask gives the old result again.
        key = f"onnxq-{task.name}-{next(self._numbers)}"
        arguments = (task.function, task.given(), versions(), [need.sent for need in needs])
        sent = self._client.submit(_on_worker, *arguments, key=key, pure=False, workers=allowed, priority=priority)
        return _Held(task.name, sent, needs)

    def _holding(self, task: Task, allowed: list[str] | None) -> _Held:
        """A task that others need, done once for all of them."""
        with self._lock:
            if task.name not in self._held:
                known = engine.kept(self.cache, task)
                real = task if known is None else Task(as_given, known[:1], task.name, task.what)
                held = self._sent(real, allowed)
                if known is None and task.is_kept:
                    held.sent.add_done_callback(functools.partial(self._keep, task))
                self._held[task.name] = held
            return self._held[task.name]

    def _keep(self, task: Task, sent: Any) -> None:
        with contextlib.suppress(Exception):  # whoever needs it is told
            _, outcome = self._outcome(sent, task)
            if outcome.kind == DONE and is_whole(outcome):
                task.read(outcome.payload, outcome.who)
                engine.keep(self.cache, task, outcome)

    def _let_go(self, held: _Held) -> None:
        """Have this task, and what it needed, done anew the next time; not what was done anew since it was sent."""
        with self._lock:
            if self._held.get(held.name) is held:
                self._held.pop(held.name).sent.release()
        for need in held.needs:
            self._let_go(need)

    def _outcome(self, sent: Any, task: Task) -> tuple[str, Outcome]:
        """(the worker, what it says). Where the worker that had it has died since, Dask has it done again."""
        try:
            said = sent.result()
        except Exception as error:  # of the task, or between its end and its result
            why = error
        else:
            return received(said)
        if sent.status in ("cancelled", "lost"):
            raise self._gone()
        if sent.status != "error":
            raise BadRecipe(f"the result of {task.what} cannot be had: {first_line(why)}")
        if isinstance(why, self._distributed.KilledWorker):
            raise OutOfMemory(
                f"{DEATHS + 1} workers died while they did {task.what}, most often because memory ran out: give them "
                "more, or less --max-memory"
            )
        if isinstance(why, (ImportError, AttributeError, TypeError)):
            raise BadRecipe(
                f"a worker of '{self.word}' cannot load onnxq {versions()['onnxq']} ({first_line(why)}): install the "
                "same version there"
            )
        raise BadRecipe(f"Dask could not do {task.what}: {type(why).__name__}: {first_line(why)}")

    def _gone(self) -> BadRecipe:
        return BadRecipe(
            f"the scheduler of '{self.word}' is gone: start it again, and the same command goes on from what is done"
        )

    def _addresses(self) -> list[str]:
        return list(self._client.scheduler_info(n_workers=-1)["workers"])


@dataclass(frozen=True, eq=False)
class _Held:
    """A task that Dask has, as a future of Dask's, and those that it needs."""

    name: str
    sent: Any
    needs: Sequence[_Held]


class _Cancelling(Future):
    """A future that takes its task from the cluster when it is cancelled."""

    cancels: Callable[[], object] = staticmethod(lambda: None)

    def cancel(self) -> bool:
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            self.cancels()
        return super().cancel()

    def give(self, found: Outcome | OnnxqError) -> None:
        with contextlib.suppress(InvalidStateError):  # it was cancelled
            if isinstance(found, OnnxqError):
                self.set_exception(found)
            else:
                self.set_result(found)


def _on_worker(
    function: Callable[..., bytes], arguments: tuple, wanted: dict[str, str], needed: Sequence[tuple] = ()
) -> tuple:
    """On the worker: its address and the outcome, as values that every version can read.

    Args:
        needed: the same of the tasks that this one needs; one that was not done is what becomes of this one, too.
    """
    from distributed import get_worker

    worker, payloads = get_worker(), []
    for said in needed:
        try:
            _, outcome = received(said)
        except OnnxqError:  # whoever asked finds that, too
            return said
        if outcome.kind != DONE or not is_whole(outcome):
            return said
        payloads.append(outcome.payload)
    if payloads:
        arguments = (*arguments, tuple(payloads))
    with _alone, reporting(lambda done: None, worker.state.nthreads):
        return as_values(worker.address, perform(function, arguments, wanted))


def _unseen(sizes: dict[str, int]) -> str:
    """On the worker: the first of these files that is not there, or not as long."""
    return next((path for path, size in sizes.items() if not _is_there(path, size)), "")


def _is_there(path: str, size: int) -> bool:
    try:
        return os.path.getsize(path) == size
    except OSError:
        return False


def _require_dask() -> None:
    """
    Raises:
        MissingRuntime: it is not installed.
    """
    with contextlib.suppress(ValueError):  # a module that is none
        if importlib.util.find_spec("distributed") is not None:
            return
    raise MissingRuntime(_NO_DASK)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise MissingRuntime(_NO_DASK) from None
    except Exception as error:  # it reads its settings
        raise MissingRuntime(f"Dask cannot be loaded with its settings: {first_line(error)}") from None
    return distributed


def _configured() -> contextlib.AbstractContextManager[Any]:
    """What Dask is told while it works for us: tasks carry numbers, and a death is told after `DEATHS` others."""
    import dask

    return dask.config.set(
        {
            "distributed.admin.large-graph-warning-threshold": "1TiB",
            "distributed.scheduler.allowed-failures": DEATHS,
        }
    )


def _set_error(client: Any, key: Any = None, exception: Any = None, traceback: object = None) -> None:
    """As Dask does when a task fails, but without the traceback: of one that could not be pickled it gets a text, stops
    at that, and the task never ends."""
    if (state := client.futures.get(key)) is not None:
        try:
            state.set_error(exception, None)
        except Exception:  # of what arrives in the place of an exception
            state.set_error("its error cannot be read", None)


def _close_client(client: Any) -> None:
    with contextlib.suppress(AttributeError):  # it was not begun
        client.close(CONNECT)
