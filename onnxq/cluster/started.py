"""Clusters of Dask that are started for a command: workers on this machine, and those of a class of the user's."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnxq.errors import BadRecipe, first_line
from onnxq.runtime.own_functions import call, failing, import_function, shown

#: Seconds for workers to end by themselves.
PATIENCE = 15.0


def made(word: str) -> Any:
    """The cluster that `module:Class` makes of Dask's configuration.

    Raises:
        BadRecipe: there is no such class, or it makes none.
    """
    what = f"--cluster '{word}'"
    cluster = call(import_function(word, what, BadRecipe), what, (), (), BadRecipe)
    with failing(what, BadRecipe):
        is_cluster = isinstance(getattr(cluster, "scheduler_address", None), str) and hasattr(cluster, "close")
    if not is_cluster:
        raise BadRecipe(f"{what} makes {shown(cluster)}, not a Dask cluster")
    return cluster


def close(word: str, cluster: Any) -> None:
    """End what `made` made.

    Raises:
        BadRecipe: it fails.
    """
    with failing(f"--cluster '{word}', when closed,", BadRecipe):
        cluster.close()


def local_cluster(distributed: Any, workers: int, closing: contextlib.ExitStack) -> tuple[Any, Callable[[], str]]:
    """A scheduler in this process, and so many workers of one thread each; and what they said last, once they ended.

    Workers are started by Dask's own command: its `LocalCluster` would import the caller's script once more in each.
    """
    try:
        cluster = distributed.LocalCluster(
            n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs="ERROR"
        )
    except (KeyError, ValueError, TypeError) as error:
        raise BadRecipe(f"Dask's settings are not what it takes: {first_line(error)}") from None
    closing.enter_context(contextlib.closing(cluster))
    _keep_quiet(logging.getLogger("tornado.application"), closing)  # of what strangers send to the port
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment |= {"PYTHONSAFEPATH": "1", "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    folder = closing.enter_context(_scratch())
    words = ["--nworkers", str(workers), "--nthreads", "1", "--no-dashboard", "--local-directory", folder]
    command = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", cluster.scheduler_address, *words]
    said = Path(folder) / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=file)
    closing.callback(_end, process)
    return cluster, functools.partial(_last_said, process, said)


def wait_for(client: Any, count: int, ended: Callable[[], str], seconds: float) -> None:
    """Wait until so many workers are there.

    Args:
        ended: what the workers' process said last, if it is no more.

    Raises:
        BadRecipe: it is no more.
        TimeoutError: they do not come.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            client.wait_for_workers(count, timeout=1)
            return
        except TimeoutError:
            if said := ended():
                raise BadRecipe(f"workers on this machine ended as soon as they were started: {said}") from None
            if time.monotonic() > until:
                raise


def _last_said(process: subprocess.Popen[bytes], said: Path) -> str:
    """The last line of a process that ended; "" of one that runs."""
    if process.poll() is None:
        return ""
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def _keep_quiet(logger: logging.Logger, closing: contextlib.ExitStack) -> None:
    closing.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.CRITICAL)


def _scratch() -> contextlib.AbstractContextManager[str]:
    return tempfile.TemporaryDirectory(prefix="onnxq-dask-", ignore_cleanup_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
