"""Plans measured for a search, each once; what was measured is kept in a file, from which a stopped search goes on."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from onnxq.errors import CheckFailed
from onnxq.files import schemas, staging
from onnxq.plan import Plan
from onnxq.planning import int8_regions
from onnxq.progress import QUIET, Progress
from onnxq.quality import MAX_DB, Quality
from onnxq.tuning.plan_bench import PlanBench, plan_key

#: No figure is worse: sums and differences of such are finite.
WORST = 1e140
#: What outputs without a distribution add to the harm.
_BROKEN = 1e6
#: Seconds between two writings of what was measured.
SECONDS = 20.0


#: Plans that are measured elsewhere before the next ones are made: those of a large model take memory.
AT_ONCE = 256


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan is worth on the samples looked at.

    Attributes:
        harm: mean KL divergence of outputs that are scores of classes, where there are any; else noise over variation,
            summed over the outputs; `WORST` at most.
        sqnr: dB.
        kld, flips: as of `Quality`; None where nothing is decided.
    """

    harm: float
    sqnr: float
    kld: float | None = None
    flips: float | None = None

    @staticmethod
    def of(quality: Quality) -> Figures:
        """
        Raises:
            CheckFailed: nothing could be compared, so that nobody can tell one plan from another.
        """
        if not quality.outputs:
            blank = ", ".join(f"'{name}'" for name in quality.blank)
            why = f"the float model gives no finite number at {blank}" if blank else "every output is random or empty"
            raise CheckFailed(f"one plan cannot be told from another on these inputs: {why}")
        if math.isnan(quality.kld):
            flips = None if math.isnan(quality.flips) else quality.flips
            return Figures(quality.noise_ratio(), quality.sqnr, None, flips)
        # Outputs that are broken are no distributions of which a divergence would tell.
        broken = _BROKEN if any(p.mismatch for outputs in quality.labels.values() for p in outputs.values()) else 0.0
        kld = min(quality.kld, WORST)
        return Figures(min(kld + broken, WORST), quality.sqnr, kld, quality.flips)

    @property
    def are_believable(self) -> bool:
        """Whether `of` gives such numbers, of which sums and differences are finite."""
        is_divergence, is_share = 0 <= (self.kld or 0.0) <= WORST, 0 <= (self.flips or 0.0) <= 1
        is_harm = self.kld is None or self.harm in (self.kld, min(self.kld + _BROKEN, WORST))
        return 0 <= self.harm <= WORST and abs(self.sqnr) <= MAX_DB and is_divergence and is_share and is_harm


#: Figures of plans, in their order, as they come.
Elsewhere = Callable[[Sequence[Plan]], Iterator[Figures]]


class _File(msgspec.Struct):
    """How far a search came."""

    search: str
    plans: dict[str, Figures]


def is_progress(path: Path) -> bool:
    """Whether the file at `path` was written here."""
    return schemas.progress_in(path, _File) is not None


def remove(path: Path) -> None:
    """What was measured is of no use once the result is there."""
    with contextlib.suppress(OSError):
        if path.is_file() and is_progress(path):
            path.unlink()


class Meter:
    """Measures plans on a bench.

    Args:
        path: where what was measured is kept; None: nowhere.
        key: whatever decides what is measured; a file of anything else is not used.
        most: plans that may be measured, those of a file counted.
        elsewhere: measures several plans at a time, in their order, on other machines; None: the bench does, here.

    Attributes:
        count: plans that were asked for, each once.
        fresh: those of them that were really run.
    """

    def __init__(
        self,
        bench: PlanBench,
        path: Path | None,
        key: Mapping[str, object],
        most: int,
        progress: Progress = QUIET,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.bench, self.most, self._path, self._progress = bench, most, path, progress
        self._key = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
        self._known = self._load()
        self._asked: set[str] = set()
        self._told: set[str] = set()
        self._elsewhere = elsewhere
        self.fresh, self._saved = 0, time.monotonic()

    @property
    def count(self) -> int:
        return len(self._asked)

    @property
    def left(self) -> int:
        """Plans that may still be measured."""
        return max(0, self.most - self.count)

    def figures(self, plan: Plan) -> Figures:
        """Of `plan`, measured once."""
        self.measure([plan])
        name, plan = self._named(plan)
        if name not in self._known:
            with self._saving():
                self._know(name, Figures.of(self.bench.quality(plan)))
        self._asked.add(name)
        self._tell(name)
        return self._known[name]

    def measure(self, plans: Iterable[Plan]) -> None:
        """Have `plans` measured elsewhere, where that is possible, as all of them will be asked for. They count once
        they are.

        Raises:
            OnnxqError: why that cannot be done.
        """
        if self._elsewhere is None:
            return
        left = iter(plans)
        while some := list(itertools.islice(left, AT_ONCE)):
            wanted = {name: plan for name, plan in map(self._named, some) if name not in self._known}
            with self._saving():
                for name, found in zip(wanted, self._elsewhere(list(wanted.values())) if wanted else (), strict=True):
                    self._know(name, found)
                    self._tell(name)

    def _named(self, plan: Plan) -> tuple[str, Plan]:
        plan = int8_regions.prune(plan, self.bench.model)
        return hashlib.blake2b(repr(plan_key(plan)).encode(), digest_size=16).hexdigest(), plan

    def _know(self, name: str, found: Figures) -> None:
        self._known[name] = found
        self.fresh += 1
        if time.monotonic() - self._saved >= SECONDS:
            self.save()

    def _tell(self, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._progress.advance(1)

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """What was measured before is left in the file when a measurement fails or is interrupted."""
        try:
            yield
        except BaseException:
            self.save()
            raise

    def save(self) -> None:
        """Leave what was measured in the file.

        Raises:
            BadOutput: it cannot be written.
        """
        self._saved = time.monotonic()
        if self._path is not None and self.fresh:
            staging.write(self._path, msgspec.json.encode(_File(self._key, self._known)))

    def _load(self) -> dict[str, Figures]:
        """What the file holds; nothing of a damaged one, or one of another search."""
        if self._path is None or not self._path.is_file():
            return {}
        if (found := schemas.progress_in(self._path, _File)) is None:
            return {}
        is_ours = found.search == self._key and all(figures.are_believable for figures in found.plans.values())
        return dict(found.plans) if is_ours else {}
