"""Which samples hold NaN or infinity, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnxq.errors import amount, listed
from onnxq.quality.gaps import KINDS, Gaps

#: Samples and inputs that a sentence names at most.
NAMED = 4


def in_words(gaps: Gaps, count: int, mended: Mapping[str, Collection[str]] | None = None) -> str:
    """Which of the samples hold what that is not finite, at which inputs; empty where none does.

    Args:
        count: how many samples there are.
        mended: by input, what the model itself puts something else for.
    """
    known = mended or {}
    left = {
        number: {name: [kind for kind in kinds if kind not in known.get(name, ())] for name, kinds in found.items()}
        for number, found in gaps.found.items()
    }
    found = {number: held for number, inputs in left.items() if (held := {n: k for n, k in inputs.items() if k})}
    if not found:
        return ""
    met = {kind for inputs in found.values() for kinds in inputs.values() for kind in kinds}
    names = list(dict.fromkeys(f"'{name}'" for inputs in found.values() for name in inputs))
    hold, which = ("holds", "sample") if len(found) == 1 else ("hold", "samples")
    what = " and ".join(kind for kind in KINDS if kind in met)
    where = f"input{'s' * (len(names) > 1)} {listed(names, NAMED)}"
    numbers = listed([str(number) for number in sorted(found)], NAMED)
    some = len(gaps.looked_at)
    of = amount(some, "sample") if some >= count else f"the {amount(some, 'sample')} that were read here"
    return f"{len(found)} of {of} {hold} {what} at {where} ({which} {numbers})"
