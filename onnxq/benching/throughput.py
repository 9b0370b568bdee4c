"""Samples a second: several in one run, on several threads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onnxq.benching.result import Cell
from onnxq.benching.turns import in_turns, median_of
from onnxq.errors import BadModel
from onnxq.files import limits, room
from onnxq.made_up.dims import is_free
from onnxq.runtime.session import Feed, Session

#: Samples in a run, unless told otherwise.
BATCHES = (1, 4, 16)
#: Of the memory, what inputs may take at most: what is computed of them takes a multiple.
SHARE = 8


def batched(session: Session, feed: Feed, batch: int) -> Feed | None:
    """So many samples like `feed` as one; None where the model leaves no axis free for them.

    The first axis of an input is that of samples if it is free and as long as that of the other free ones.

    Raises:
        BadModel: they take more memory than should be tried.
    """
    free = [i.name for i in session.inputs if i.shape and is_free(i.shape[0]) and feed[i.name].ndim]
    sizes = {feed[name].shape[0] for name in free}
    if len(sizes) != 1 or sizes == {0}:
        return feed if batch == 1 else None
    nbytes = batch * max(1, sum(feed[name][:1].nbytes for name in free))
    if nbytes > room.memory() // SHARE:
        raise BadModel(f"its inputs alone take {limits.in_words(nbytes)}: name fewer samples by --batch")
    return {name: np.repeat(x[:1], batch, axis=0) if name in free else x for name, x in feed.items()}


def throughput(
    models: Sequence[Path], feed: Feed, batches: Sequence[int], threads: Sequence[int], seconds: float
) -> tuple[list[list[Cell]], list[str]]:
    """A cell for each model, batch and number of threads, models in turns; and what could not be run, in sentences."""
    found: list[list[Cell]] = [[] for _ in models]
    notes: list[str] = []
    for count in threads:
        sessions = [Session(model, threads=count) for model in models]
        for batch in batches:
            try:
                feeds = [batched(session, feed, batch) for session in sessions]
                pairs = zip(sessions, feeds, strict=True)
                runs = [functools.partial(session.run, given) for session, given in pairs if given is not None]
                if len(runs) < len(models):
                    notes.append(f"batch {batch}: the model's samples are of a fixed number")
                    continue
                times = in_turns(runs, seconds)
            except BadModel as error:
                notes.append(f"batch {batch}: {error}")
                continue
            for cells, taken in zip(found, times, strict=True):
                ms = median_of(taken)
                cells.append(Cell(batch, count, ms, 1e3 * batch / ms.median))
    return found, list(dict.fromkeys(notes))
