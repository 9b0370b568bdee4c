"""What a quantized model is judged by: the user's samples, and made-up ones for what these do not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onnxq.calibration.lengths import with_other_lengths
from onnxq.errors import amount
from onnxq.job import Job
from onnxq.made_up import make_up, make_up_missing
from onnxq.made_up.scout import scout
from onnxq.runtime.session import Feed
from onnxq.samples.sampling import HELD_BACK
from onnxq.samples.source import hash_of
from onnxq.samples.trials import Trials


def trials_for(job: Job, seen: Sequence[Feed], held_back: int = HELD_BACK) -> Trials:
    """The samples held back, also at other lengths if all of `seen` have one, and made-up ones for branches that these
    never take; without data, made-up ones only."""
    model, session = job.model, scout(job.model, job.path)
    if job.data is None:
        return make_up(model, session)
    samples, rest = job.data.split(held_back)
    feeds = list(rest)
    words = amount(len(feeds), f"{'held-back' if rest is not samples else 'calibration'} sample")
    given = with_other_lengths(job, session, Trials.given(feeds, words, job.data.note), seen)
    others = make_up_missing(model, session, given.feeds)
    doubts = [] if rest is samples or job.data.gaps.is_all else _doubts(feeds, seen)
    return given.joined(others.samples, [*doubts, *others.notes])


def _doubts(held_back: Sequence[Feed], seen: Sequence[Feed]) -> list[str]:
    """That all which is held back was looked at too, as copies."""
    times = Counter(map(hash_of, seen))
    if not all(times[hash_of(feed)] > 1 for feed in held_back):
        return []
    return [
        "what was held back of the data is among the rest of them, number for number: ranges and codes fit it, and how "
        "good they are on anything else is not shown; give samples that differ"
    ]
