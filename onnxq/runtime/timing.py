"""How long runs take, on a machine that has other things to do.

1. Where one thread does all the work its own CPU time is counted: waiting for other processes is not. With more
   threads it is the time on the wall, as waiting for each other is part of it.
2. Of many runs the least counts: whatever else the machine does only adds.
3. Models run in turns, in several groups of turns. How far the groups disagree is how far the answer can be trusted,
   and what it cannot decide is run again, longer, a bounded number of times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: Groups of turns in a round; rounds at most, each with twice the turns of the one before; turns of a group at most.
GROUPS, ROUNDS, MOST_TURNS = 5, 3, 64
#: Nor does it go on for more than so many times the seconds of a round: slow models take longer than those at once.
LONGEST = 10
#: A turn that takes less than so many seconds is taken at least so often in a group.
QUICK_TURN, LEAST_TURNS = 0.25, 4
#: How far the answer of this share of the groups is from that of all tells how far that is to be trusted.
SHARE = 0.6
#: No ratio is known better than to this share of it.
KNOWN = 0.01
#: A ratio as near to 1 as this is taken for 1 whatever the groups say: one model, loaded twice, differs by as much.
EQUAL = 0.03


class Runnable(Protocol):
    """A session, as far as it is timed."""

    @property
    def threads(self) -> int:
        """Of one operator; 0: onnxruntime's default."""

    def run(self, feed: Any) -> Any:
        """The outputs for one sample."""


@dataclass(frozen=True)
class Race:
    """Several models, run in turns.

    Attributes:
        seconds: of one run of each, the least that was seen.
        spreads: how far the time of each, relative to the first, is to be trusted: plus or minus.
    """

    seconds: tuple[float, ...]
    spreads: tuple[float, ...]

    def ratio(self, index: int = 1) -> float:
        """Time of a model relative to the first; below 1 is faster."""
        return self.seconds[index] / self.seconds[0] if self.seconds[0] > 0 else 1.0

    def is_below(self, bound: float) -> bool | None:
        """Whether the ratio of the second model is below `bound`; None where that cannot be told."""
        return is_below(self.ratio(), self.spreads[1], bound)


def is_below(ratio: float, spread: float, bound: float) -> bool | None:
    """Whether `ratio`, known to plus or minus `spread`, is below `bound`; None where that cannot be told."""
    return None if abs(ratio - bound) <= spread else ratio < bound


def race(sessions: Sequence[Runnable], feeds: Sequence[Any], *, seconds: float, bound: float | None = None) -> Race:
    """Run the sessions in turns, each on its own one of `feeds`.

    Args:
        seconds: about what one round may take for each session; it sets the number of turns, in powers of two.
        bound: go on, for `ROUNDS` rounds and `LONGEST` at most, until it is clear whether the second session takes less
            than `bound` times as long as the first.
    """
    clock = clock_of({session.threads for session in sessions})
    runs = list(zip(sessions, feeds, strict=True))
    for session, feed in runs:
        session.run(feed)
    once = sum(_timed(clock, session, feed) for session, feed in runs)
    turns = _turns(seconds * len(runs), once)
    groups: list[list[float]] = []
    left = LONGEST * seconds * len(runs)
    while True:
        for _ in range(GROUPS):
            taken = [[_timed(clock, session, feed) for session, feed in runs] for _ in range(turns)]
            groups.append([min(times) for times in zip(*taken, strict=True)])
        found = _result(groups)
        rounds = len(groups) // GROUPS
        left -= GROUPS * turns * once
        turns *= 2
        is_over = rounds == ROUNDS or left < GROUPS * turns * once
        if bound is None or len(runs) < 2 or is_over or found.is_below(bound) is not None:
            return found


def clock_of(threads: set[int]) -> Callable[[], float]:
    """What tells the time of sessions with so many threads."""
    return time.thread_time if threads == {1} else time.perf_counter


def least_seconds(session: Runnable, feed: Any, runs: int = 2) -> float:
    """The least time of a few runs of a session that has run before."""
    clock = clock_of({session.threads})
    return min(_timed(clock, session, feed) for _ in range(runs))


def speed_in_words(ratio: float, spread: float, other: str = "float") -> str:
    """A time relative to that of `other` as how many times as fast, with what is known of it."""
    if abs(ratio - 1) < max(EQUAL, spread):
        return f"as fast as {other}"
    speed = 1 / ratio
    plus_minus = max(0.01, spread * speed**2)
    return f"{speed:.2f}× ± {plus_minus:.2f} as fast as {other}"


def _timed(clock: Callable[[], float], session: Runnable, feed: Any) -> float:
    start = clock()
    session.run(feed)
    return clock() - start


def _turns(seconds: float, once: float) -> int:
    """Turns of a group: as many as fit, rounded down to a power of two."""
    least = LEAST_TURNS if once < QUICK_TURN else 1
    fitting = max(1.0, seconds / (GROUPS * max(once, 1e-7)))
    return min(MOST_TURNS, max(least, 1 << int(math.log2(fitting))))


def _result(groups: Sequence[Sequence[float]]) -> Race:
    """The least of all groups, and how far four fifths of the answers of fewer groups are from it."""
    least = _least(groups)
    if least[0] <= 0:
        return Race(least, (0.0,) * len(least))
    n = len(groups)
    some = [_least([groups[(start + k) % n] for k in range(math.ceil(SHARE * n))]) for start in range(n)]
    spreads = []
    for index, seconds in enumerate(least):
        off = sorted(abs(each[index] / each[0] - seconds / least[0]) for each in some)
        spreads.append(max(off[math.ceil(0.8 * n) - 1], KNOWN * seconds / least[0] if index else 0.0))
    return Race(least, tuple(spreads))


def _least(groups: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(min(times) for times in zip(*groups, strict=True))
