"""What `--cluster` and `--jobs` say, as an engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from onnxq.cluster.engine import Engine
from onnxq.cluster.processes import Processes
from onnxq.errors import BadRecipe
from onnxq.files import cache


@contextlib.contextmanager
def open_engine(
    word: str | None, jobs: int = 1, doing: str = "worked", begun: Callable[[Engine], object] = lambda engine: None
) -> Iterator[Engine | None]:
    """The engine that these words name, until the block ends; None: everything is done in this process.

    Args:
        word: `tcp://host:port` or `tls://…` of a Dask scheduler, `local:4` for so many workers here, `dask` for what
            Dask's own configuration says, `module:Class` for a cluster of `dask-jobqueue` and the like.
        jobs: processes on this machine, in the place of a cluster.
        doing: what is done, for messages.
        begun: called with a cluster once it has workers: those of `local:4` are started when there is something to do.

    Raises:
        BadRecipe: no such cluster, or there is none.
        MissingRuntime: Dask is not installed.
    """
    if word is not None and jobs > 1:
        raise BadRecipe("--jobs are processes here and --cluster is somewhere else: give one of them")
    if word is None:
        engine: Engine | None = Processes(jobs, doing) if jobs > 1 else None
    else:
        from onnxq.cluster.dask_cluster import DaskCluster

        engine = DaskCluster(word, cache.usual(), begun)
    try:
        yield engine
    finally:
        if engine is not None:
            engine.close()
