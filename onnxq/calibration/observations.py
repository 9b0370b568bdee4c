"""What calibration saw: a summary of each activation, from which any method's ranges follow without another run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxq import collectors
from onnxq.errors import BadRecipe
from onnxq.files import limits, schemas
from onnxq.summaries.ranges import UINT8, Grid, Range, Ranges
from onnxq.summaries.summary import Extremes, Summary, from_dict

#: Missing shards that a message names: a file may say that there are any number of them.
NAMED = 8


@dataclass(frozen=True)
class Observations:
    """`Summary` by value name of the prepared model.

    Attributes:
        model, data: hashes of what they are true for.
        samples: how many were seen.
        shard: (number, count) if only every count-th sample was seen, from the number-th on.
        unranked: names whose rank the arrays do not tell (values in subgraphs).
        problems: why a value could not be observed, by name.
        chosen: the method that was found best by measuring; empty if none was.
    """

    model: str
    data: str
    samples: int
    summaries: Mapping[str, Summary]
    shard: tuple[int, int] | None = None
    unranked: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)
    chosen: str = ""

    @property
    def has_histograms(self) -> bool:
        return all(summary.histogram is not None for summary in self.summaries.values())

    def settled(self) -> Observations:
        """Of all samples: sums, which are float64 as long as they grow, with as many digits as do not depend on the
        parts that they were made of."""
        return replace(self, summaries={name: each.settled() for name, each in self.summaries.items()})

    def ranges(self, method: str, grid: Grid = UINT8) -> Ranges:
        """What `method`, a file name of `collectors/`, makes of it.

        Raises:
            BadRecipe: there is no such method, it needs histograms and there are none, or other moving averages.
        """
        make = collectors.get(method)
        if make.needs_histogram and not self.has_histograms:
            raise BadRecipe(f"method {method} needs histograms, which were not kept: calibrate once more with it")
        if make.momentum is not None and {s.momentum for s in self.summaries.values()} - {make.momentum}:
            raise BadRecipe(
                f"the moving averages were made with another momentum than {make.momentum:g}: calibrate once more"
            )
        values: dict[str, Range] = {}
        problems = dict(self.problems)
        for name, summary in self.summaries.items():
            found = make(summary).range(grid)
            if found is not None:
                values[name] = found
            else:
                problems.setdefault(name, _why_none(summary))
        ranks = {
            name: s.most_rank
            for name, s in self.summaries.items()
            if s.least_rank == s.most_rank >= 0 and name not in self.unranked
        }
        notes = {name: note for name, s in self.summaries.items() if (note := _note(s))}
        number, count = self.shard or (1, 1)
        data = self.data if count == 1 else f"{self.data} (shard {number} of {count})"
        return Ranges(self.model, data, method, values, ranks, problems, notes, self.samples)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "samples": self.samples,
            "shard": self.shard,
            "unranked": sorted(self.unranked),
            "problems": dict(self.problems),
            "chosen": self.chosen,
            "summaries": {name: summary.to_dict() for name, summary in self.summaries.items()},
        }


def _why_none(s: Summary) -> str:
    if not s.count:
        return "never computed, or empty, on the calibration data"
    return f"not finite on the calibration data ({s.nans} NaN, {s.infinities} infinite)"


def _note(s: Summary) -> str:
    """What is odd about a value that has a range."""
    if not s.finite:
        return ""
    if s.nans or s.infinities:
        return f"{s.nans} NaN and {s.infinities} infinite of {s.count} numbers were left out"
    return f"always {s.low:g}" if s.low == s.high else ""


def to_json(ranges: Ranges, seen: Observations) -> str:
    """A file of ranges from which other methods' ranges can be had, and which can be merged with those of others."""
    return json.dumps({**ranges.to_dict(), "observations": seen.to_dict()})


def load_observations(path: str | Path) -> Observations | None:
    """What a file of ranges was found from; None if it does not say.

    Raises:
        BadRecipe: it is not a file of ranges.
    """
    return load_with_method(path)[1]


def load_with_method(path: str | Path) -> tuple[str, Observations | None]:
    """(The method that made the ranges of a file, `load_observations` of it).

    Raises:
        BadRecipe: it is not a file of ranges.
    """
    text = limits.read_text(path, "the ranges ", limits.RANGES_BYTES)
    try:
        file = schemas.checked(limits.parse_json(text), schemas.RangesFile)
        return file.method, None if file.observations is None else from_table(file.observations)
    except ValueError:
        raise BadRecipe(f"'{path}' is not a file of ranges written by 'onnxq calibrate'") from None


def from_table(table: Mapping[str, Any]) -> Observations:
    """What `Observations.to_dict` wrote.

    Raises:
        ValueError: it did not.
    """
    t = schemas.checked(table, schemas.ObservationsFile)
    if t.shard is not None and not 1 <= t.shard[0] <= t.shard[1]:
        raise ValueError(f"invalid shard {t.shard[0]} of {t.shard[1]}")
    if t.chosen:
        try:
            collectors.get(t.chosen)
        except BadRecipe as error:
            raise ValueError(str(error)) from None
    summaries = {name: from_dict(summary) for name, summary in t.summaries.items()}
    return Observations(t.model, t.data, t.samples, summaries, t.shard, frozenset(t.unranked), t.problems, t.chosen)


def merge(parts: Sequence[tuple[str, Observations]]) -> Observations:
    """The observations of one run over all the data, from those of its shards, in any order.

    Args:
        parts: each with the name to call it by in messages.

    Raises:
        BadRecipe: shards of different models, data or divisions, one that is missing or one that is there twice.
    """
    first_name, first = parts[0]
    found: dict[int, tuple[str, Observations]] = {}
    for name, part in parts:
        if part.shard is None:
            raise BadRecipe(f"'{name}' is not a shard: it holds ranges of all the data already")
        for what in ("model", "data"):
            if getattr(part, what) != getattr(first, what):
                other = "other data" if what == "data" else f"another {what}"
                raise BadRecipe(f"'{name}' was made with {other} than '{first_name}'")
        number, count = part.shard
        assert first.shard is not None
        if count != first.shard[1] or _kinds(part) != _kinds(first):
            raise BadRecipe(f"'{name}' was made with other options than '{first_name}': calibrate both in the same way")
        if number in found:
            raise BadRecipe(f"shard {number} of {count} is given twice: '{found[number][0]}' and '{name}'")
        found[number] = (name, part)
    count = first.shard[1] if first.shard else 1
    if len(found) < count:
        missing = (str(number) for number in range(1, count + 1) if number not in found)
        some = list(itertools.islice(missing, NAMED))
        more = ["…"] if count - len(found) > NAMED else []
        raise BadRecipe(f"shard {', '.join(some + more)} of {count} is missing")
    # In the order of their numbers, whatever that of the files: moving averages depend on it.
    ordered = [found[number][1] for number in sorted(found)]
    summaries = {name: from_dict(summary.to_dict()) for name, summary in ordered[0].summaries.items()}
    for part in ordered[1:]:
        for name, summary in part.summaries.items():
            summaries[name].merge(summary)
    for name, summary in summaries.items():
        summary.trail = None
        trails = [trail for part in ordered if (trail := part.summaries[name].trail) is not None]
        if len(trails) == count:  # earlier versions kept none
            summary.follow(_in_turns(trails))
    samples = sum(part.samples for part in ordered)
    whole = Observations(first.model, first.data, samples, summaries, None, first.unranked, first.problems)
    return whole.settled()


def _in_turns(trails: Sequence[Sequence[Extremes]]) -> list[Extremes]:
    """What every shard saw of every n-th sample, in the order of the samples."""
    longest = max(map(len, trails))
    return [trail[i] for i in range(longest) for trail in trails if i < len(trail)]


def _kinds(part: Observations) -> dict[str, float]:
    """What was observed, and by which momentum."""
    return {name: summary.momentum for name, summary in part.summaries.items()}
