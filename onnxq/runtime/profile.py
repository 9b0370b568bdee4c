"""A machine profile: the times that decide between float and quantized kernels, measured on one machine, as a file.

Everything the tuner decides by a time it looks up here. A new profile is filled while a plan is tuned, each entry once;
one that was read from a file is closed: nothing is measured. So a run that is given the profile of another decides the
same, on whatever machine it runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from onnxq.boundary import bounded
from onnxq.errors import BadRecipe
from onnxq.files import limits, schemas
from onnxq.runtime import thresholds
from onnxq.runtime.machine import Machine, this_machine, threads_in_words
from onnxq.runtime.session import THREADS

#: Of the file's form.
VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True)
class PlanTime:
    """Time of a quantized model relative to the float one, and how far that is to be trusted, plus or minus."""

    ratio: float
    spread: float


@dataclass
class MachineProfile:
    """Times of kernels, models and plans on one machine. An entry, once made, is never changed.

    Attributes:
        machine: on which they were measured.
        threads: of one operator; 0: onnxruntime's default.
        kernels: seconds, by what the kernel computes: operator, types, shapes, attributes, and the form it has.
        models: seconds of one run of the float model, by a hash of all its kernels.
        plans: by that hash, and one of what becomes of each node.
        tile_rows: by format, from how many rows on onnxq's own kernels multiply in tiles (`thresholds`).
        source: the file it came from; empty: it is new.
        is_closed: nothing is measured any more.
        used: entries that were looked up, as text.
        computes: the machine's thresholds were taken, so that errors are those that it would see.
    """

    machine: Machine
    threads: int = THREADS
    kernels: dict[str, float] = field(default_factory=dict)
    models: dict[str, float] = field(default_factory=dict)
    plans: dict[str, PlanTime] = field(default_factory=dict)
    tile_rows: dict[str, int] = field(default_factory=dict)
    source: str = ""
    is_closed: bool = False
    used: dict[str, object] = field(default_factory=dict)
    computes: bool = False

    def as_there(self) -> contextlib.AbstractContextManager[None]:
        """Until the end, onnxq's own kernels compute as on the profile's machine; a new profile learns how that is."""
        if not self.is_closed and not self.tile_rows:
            self.tile_rows.update(thresholds.tile_rows())
        self.computes = True
        return thresholds.taken(self.tile_rows)

    def kernel(self, key: str) -> float | None:
        return self._looked_up("kernel", self.kernels, key)

    def model(self, key: str) -> float | None:
        return self._looked_up("model", self.models, key)

    def plan(self, key: str) -> PlanTime | None:
        return self._looked_up("plan", self.plans, key)

    def _looked_up(self, kind: str, table: dict[str, T], key: str) -> T | None:
        found = table.get(key)
        if found is not None:
            self.used[f"{kind} {key}"] = found
        return found

    @property
    def hash(self) -> str:
        """Of the machine and of what was looked up so far; empty where nothing was. What else the file holds does not
        count."""
        if not self.used:
            return ""
        entries = sorted((key, repr(found)) for key, found in self.used.items())
        if self.computes:
            entries += sorted((f"tile_rows {word}", repr(rows)) for word, rows in self.tile_rows.items())
        return hashlib.blake2b(repr((self.machine, self.threads, entries)).encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        return f"{self.machine}, {threads_in_words(self.threads)}"

    def to_json(self) -> str:
        table = {
            "onnxq_profile": VERSION,
            "machine": dataclasses.asdict(self.machine),
            "threads": self.threads,
            "kernels": dict(sorted(self.kernels.items())),
            "models": dict(sorted(self.models.items())),
            "plans": {key: dataclasses.asdict(found) for key, found in sorted(self.plans.items())},
            "tile_rows": dict(sorted(self.tile_rows.items())),
        }
        return json.dumps(table, indent=1)


def new_profile(threads: int = THREADS) -> MachineProfile:
    """One of this machine, in which nothing is known yet."""
    return MachineProfile(this_machine(), threads)


@bounded
def load_profile(path: str | Path, threads: int | None = None) -> MachineProfile:
    """A file written by `MachineProfile.to_json`.

    Args:
        threads: that times are wanted for; None: those of the file.

    Raises:
        BadRecipe: it is no such file, of another version, or of another number of threads.
    """
    text = limits.read_text(path, "the profile ")
    try:
        table = limits.parse_json(text, strict=True)
        version = table.get("onnxq_profile") if isinstance(table, dict) else None
        if version is None:
            raise ValueError("it has no 'onnxq_profile'")
        if version != VERSION:
            raise BadRecipe(f"the profile '{path}' is of version {version}, not {VERSION}: measure it again")
        found = schemas.checked(table, schemas.ProfileFile)
    except ValueError as error:
        raise BadRecipe(f"'{path}' is not a profile written by 'onnxq profile': {error}") from None
    if threads is not None and found.threads != threads:
        raise BadRecipe(
            f"the profile '{path}' was measured on {found.threads} threads, not {threads}: give --threads "
            f"{found.threads}"
        )
    return MachineProfile(
        Machine(**msgspec.structs.asdict(found.machine)),
        found.threads,
        dict(found.kernels),
        dict(found.models),
        {key: PlanTime(each.ratio, each.spread) for key, each in found.plans.items()},
        dict(found.tile_rows),
        str(path),
        is_closed=True,
    )


def opened(path: str | Path, threads: int = THREADS) -> MachineProfile:
    """The profile at `path`, to be added to on the machine that it was measured on.

    Raises:
        BadRecipe: as `load_profile`; or it is of another machine.
    """
    found = load_profile(path, threads)
    here = this_machine()
    if not found.machine.is_like(here):
        raise BadRecipe(f"the profile '{path}' is of another machine ({found.machine}) than this one ({here})")
    found.is_closed = False
    return found
