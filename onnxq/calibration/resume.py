"""What calibration has seen so far, on disk, so that it can be killed at any time and go on later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnxq.errors import BadRecipe
from onnxq.files import faults, schemas, staging
from onnxq.summaries.summary import Summary, from_dict

#: Seconds between two checkpoints, unless told otherwise.
SECONDS = 30.0


@dataclass(frozen=True)
class Every:
    """How often a checkpoint is written: after so many samples or seconds, whichever comes first."""

    samples: int | None = None
    seconds: float | None = SECONDS


EVERY = Every()


@dataclass
class State:
    """How far calibration is.

    Attributes:
        finished: summaries over all samples, by value name.
        current: those of the pass in work, which has seen the first `done` samples.
        problems: why values could not be observed, by name.
    """

    finished: dict[str, Summary] = field(default_factory=dict)
    current: dict[str, Summary] = field(default_factory=dict)
    done: int = 0
    problems: dict[str, str] = field(default_factory=dict)


class Checkpoint:
    """A file that is replaced as a whole, and holds for one model, data and choice of values only.

    Args:
        path: None: nothing is ever written.
        key: whatever decides what is seen.
    """

    def __init__(self, path: Path | None, key: Mapping[str, object], every: Every) -> None:
        self.path, self.every = path, every
        self._key = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
        self._names = frozenset(names) if isinstance(names := key.get("names"), list) else frozenset()
        self._samples, self._since = 0, time.monotonic()

    def load(self) -> State:
        """What was saved last; nothing if there is no file, or one of something else, or a damaged one."""
        table = None if self.path is None else schemas.progress_in(self.path, schemas.ProgressFile)
        if table is None or table.key != self._key:
            return State()
        try:
            state = State(_read(table.finished), _read(table.current), table.done, table.problems)
        except (BadRecipe, ValueError):
            return State()
        return state if self._names.issuperset((*state.finished, *state.current)) else State()

    def is_due(self) -> bool:
        """To be asked after each sample."""
        self._samples += 1
        if self.path is None:
            return False
        if self.every.samples is not None and self._samples >= self.every.samples:
            return True
        return self.every.seconds is not None and time.monotonic() - self._since >= self.every.seconds

    def save(self, state: State) -> None:
        """Replace the file by `state`, which is on the disk when this returns.

        Raises:
            BadOutput: it cannot be written.
        """
        self._samples, self._since = 0, time.monotonic()
        if self.path is None:
            return
        table = {
            "key": self._key,
            "done": state.done,
            "finished": _write(state.finished),
            "current": _write(state.current),
            "problems": state.problems,
        }
        with staging.as_sentences(self.path):
            faults.point("checkpoint.save")
        staging.write(self.path, json.dumps(table).encode())


def is_progress(path: Path) -> bool:
    """Whether the file at `path` was written here."""
    return schemas.progress_in(path, schemas.ProgressFile) is not None


def parts(path: Path | None, count: int) -> list[Path | None]:
    """The files of progress of `count` processes."""
    return [path and path.with_name(f"{path.name}.{i}of{count}") for i in range(1, count + 1)]


def remove(path: Path | None) -> None:
    """Progress, and that of several processes, is of no use once what follows from it is on the disk."""
    if path is None or not path.parent.is_dir():
        return
    part = re.compile(re.escape(path.name) + r"(\.\d+of\d+)?")
    for each in sorted(path.parent.iterdir()):
        with contextlib.suppress(OSError):
            if part.fullmatch(each.name) and each.is_file() and is_progress(each):
                faults.point("checkpoint.remove")
                each.unlink()


def _write(summaries: Mapping[str, Summary]) -> dict[str, object]:
    return {name: summary.to_dict() for name, summary in summaries.items()}


def _read(table: Mapping[str, dict[str, object]]) -> dict[str, Summary]:
    return {name: from_dict(summary) for name, summary in table.items()}


def pending(names: Sequence[str], state: State) -> list[str]:
    """The names no pass has begun with."""
    return [name for name in names if name not in state.finished and name not in state.current]
