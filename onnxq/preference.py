"""What speed, bytes and accuracy are worth to each other: `--prefer`, and how long to look: `--effort`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

#: dB of contrast above which no use of a model has been seen to notice; scores beside a threshold still flip at 50.
CLEAR = 60.0
#: dB of contrast below which decisions change, for models that read their own output, where noise accumulates; and for
#: those whose outputs are compared with a threshold, where every score near it may flip.
RECURRENT_BAR, DETECTOR_BAR = 42.0, 56.0


@dataclass(frozen=True)
class Preference:
    """Prices of one dB of contrast, which add up the further down it is, in shares of the float model's time or bytes.

    Attributes:
        bar: dB of contrast below which decisions of other models than detectors and recurrent ones change.
        lower: dB that the bars of those two are lower.
        clear: price in time of a dB below `CLEAR`.
        near: of one that is less than 6 dB above the bar, or below.
        below: of one below the bar.
        bytes_per_db: price in bytes of a dB below `CLEAR`.
        bytes_below: of one below the bar.
        weights_bar: dB of contrast that 8-bit weights must leave, or get a longer format (recurrent models: more).
    """

    bar: float
    lower: float
    clear: float
    near: float
    below: float
    bytes_per_db: float
    bytes_below: float
    weights_bar: float

    def bar_of(self, *, is_recurrent: bool, is_detector: bool) -> float:
        if is_detector:
            return DETECTOR_BAR - self.lower
        return RECURRENT_BAR - self.lower if is_recurrent else self.bar

    def price(self, contrast: float, bar: float) -> float:
        """What noise that leaves so much contrast is worth, in runs of the float model."""
        steps = ((CLEAR, self.clear), (bar + 6, self.near), (bar, self.below))
        return sum(price * max(0.0, level - contrast) for level, price in steps)

    def bytes_price(self, contrast: float, bar: float) -> float:
        """What it is worth in the float model's bytes."""
        return self.bytes_per_db * max(0.0, CLEAR - contrast) + self.bytes_below * max(0.0, bar - contrast)


#: `balanced` gives speed and bytes as long as no output falls below its bar for little; the others lean to one side.
PREFERENCES: Mapping[str, Preference] = {
    "speed": Preference(20.0, 6.0, 0.0, 0.001, 0.02, 0.0005, 0.001, 20.0),
    "balanced": Preference(24.0, 0.0, 0.0005, 0.004, 0.03, 0.0015, 0.004, 27.0),
    "accuracy": Preference(30.0, 0.0, 0.002, 0.01, 0.03, 0.004, 0.0, 27.0),
    "size": Preference(20.0, 6.0, 0.0002, 0.002, 0.02, 0.0003, 0.001, 20.0),
}


def preference_of(word: str, *, is_recurrent: bool, is_detector: bool) -> Preference:
    """What `word` means for a model: where noise accumulates or meets a threshold, `balanced` is as careful as
    `accuracy`."""
    return PREFERENCES["accuracy" if word == "balanced" and (is_recurrent or is_detector) else word]


@dataclass(frozen=True)
class Search:
    """How many plans may be measured: what fits into so many seconds, but at least and at most so many.

    Seconds are counted and not timed (`runtime/work.py`): they are the same on every machine.

    Attributes:
        calibrating: seconds that the float model may run to find ranges, on about `LEAST_SAMPLES` at least.
    """

    seconds: float
    least: int
    most: int
    calibrating: float
    compares_calibrations: bool = True

    def measurements(self, cost: float) -> int:
        """Plans that may be measured to find which nodes do harm, if one takes `cost` seconds."""
        return max(self.least, min(self.most, int(self.seconds / cost)))

    def stride(self, samples: int, cost: float) -> int:
        """Every how many-th of so many samples gives ranges, if a run of the float model takes `cost` seconds."""
        enough = max(LEAST_SAMPLES, self.calibrating / cost)
        return max(1, min(math.ceil(samples / enough), round(samples / LEAST_SAMPLES)))


#: About so many samples give ranges however long a run takes, if there are as many.
LEAST_SAMPLES = 16
#: A model under 100 MB takes seconds, less than a minute, or minutes, on two processors.
SEARCHES: Mapping[str, Search] = {
    "quick": Search(4.0, 4, 16, 2.0, compares_calibrations=False),
    "normal": Search(16.0, 8, 64, 8.0),
    "thorough": Search(60.0, 32, 256, math.inf),
}
