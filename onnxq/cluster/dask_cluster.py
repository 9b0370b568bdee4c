"""Tasks done by the workers of a Dask cluster: Dask schedules, tries again elsewhere and moves results."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from onnxq.cluster.tasks import REFUSED, Outcome, Task, perform, refusal_of, reporting, versions
from onnxq.errors import BadRecipe, MissingRuntime, OnnxqError, OutOfMemory, first_line
from onnxq.files.cache import Cache
from onnxq.runtime.own_functions import call, failing, import_function, shown

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
        self._lock = threading.Lock()
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
            address = _local_cluster(self._distributed, workers, self._closing)
        elif _ADDRESS.fullmatch(self.word):
            address = self.word
        elif self.word == "dask":
            address = None
        elif re.fullmatch(r"[\w.]+:[A-Za-z_]\w*", self.word):
            address = _made(self.word)
            self._closing.callback(_close, self.word, address)
        else:
            raise BadRecipe(
                f"--cluster '{self.word}' is none of tcp://host:port, tls://host:port, local:4, dask, or module:Class "
                "of a Dask cluster"
            )
        try:
            client = self._connected(address)
            if workers:
                client.wait_for_workers(workers, timeout=4 * CONNECT)
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
            future.set_exception(next(iter(self._refused.values())))
            return
        arguments = (task.function, task.arguments, versions())
        sent = self._client.submit(
            _on_worker, *arguments, key=f"onnxq-{task.name}-{attempt}", pure=False, workers=allowed, priority=-attempt
        )
        future.cancels = sent.cancel

        def done(sent: Any) -> None:
            try:
                found = self._outcome(sent, task)
            except OnnxqError as error:
                future.give(error)
                return
            finally:
                sent.release()
            worker, outcome = found
            if outcome.kind != REFUSED:
                future.give(outcome)
                return
            with self._lock:
                self._refused[worker] = refusal_of(outcome, f"worker {worker}")
            self._send(task, future, attempt + 1)

        sent.add_done_callback(done)

    def _outcome(self, sent: Any, task: Task) -> tuple[str, Outcome]:
        """(the worker, what it says)."""
        if sent.status == "finished":
            try:
                worker, *values = sent.result()
            except Exception as error:  # between the end of a task and its result
                raise BadRecipe(f"the result of {task.what} cannot be had: {first_line(error)}") from None
            return worker, Outcome(*values)
        if sent.status != "error":
            raise self._gone()
        why = sent.exception()
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


class _Cancelling(Future):
    """A future that takes its task from the cluster when it is cancelled."""

    cancels: Callable[[], object] = staticmethod(lambda: None)

    def cancel(self) -> bool:
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            self.cancels()
        return super().cancel()

    def give(self, found: Outcome | OnnxqError) -> None:
        if self.cancelled():
            return
        if isinstance(found, OnnxqError):
            self.set_exception(found)
        else:
            self.set_result(found)


def _on_worker(function: Callable[..., bytes], arguments: tuple, wanted: dict[str, str]) -> tuple:
    """On the worker: its address and the outcome, as values that every version can read."""
    from distributed import get_worker

    worker = get_worker()
    with _alone, reporting(lambda done: None, worker.state.nthreads):
        return (worker.address, *perform(function, arguments, wanted))


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


def _made(word: str) -> Any:
    """The cluster that `module:Class` makes of Dask's configuration.

    Raises:
        BadRecipe: there is no such class, or it makes none.
    """
    what = f"--cluster '{word}'"
    made = call(import_function(word, what, BadRecipe), what, (), (), BadRecipe)
    with failing(what, BadRecipe):
        is_cluster = isinstance(getattr(made, "scheduler_address", None), str) and hasattr(made, "close")
    if not is_cluster:
        raise BadRecipe(f"{what} makes {shown(made)}, not a Dask cluster")
    return made


def _close_client(client: Any) -> None:
    with contextlib.suppress(AttributeError):  # it was not begun
        client.close(CONNECT)


def _close(word: str, cluster: Any) -> None:
    with failing(f"--cluster '{word}', when closed,", BadRecipe):
        cluster.close()


def _local_cluster(distributed: Any, workers: int, closing: contextlib.ExitStack) -> Any:
    """A scheduler in this process, and so many workers of one thread each.

    Workers are started by Dask's own command: its `LocalCluster` would import the caller's script once more in each.
    """
    cluster = distributed.LocalCluster(
        n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs="ERROR"
    )
    closing.enter_context(contextlib.closing(cluster))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment |= {"PYTHONSAFEPATH": "1", "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    folder = closing.enter_context(_scratch())
    words = ["--nworkers", str(workers), "--nthreads", "1", "--no-dashboard", "--local-directory", folder]
    command = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", cluster.scheduler_address, *words]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    closing.callback(_end, process)
    return cluster


def _scratch() -> contextlib.AbstractContextManager[str]:
    import tempfile

    return tempfile.TemporaryDirectory(prefix="onnxq-dask-", ignore_cleanup_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(CONNECT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
