"""Outputs that cannot be compared: what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numpy.typing import NDArray

from onnxq.quality import Quality
from onnxq.quality.gaps import gaps_of

#: Said where outputs hold nothing that has an error.
NOTHING_COMPARED = "no number, truth value or text came out on these inputs: nothing was compared"


def blank_notes(
    quality: Quality, who: str = "the float model", samples: Sequence[Mapping[str, NDArray]] = ()
) -> list[str]:
    """What a user should know of outputs at which `who` gives no finite number, on all samples or on some; the first
    note says why, which is in the `samples` where they hold none either."""
    notes = []
    for names, on, left_out in (
        (quality.blank, "these inputs", "not compared"),
        (quality.partly_blank, "some of these inputs", "those are left out of the comparison"),
    ):
        if names:
            notes.append(f"{who} gives no finite number at {_shown(names)} on {on}: {left_out}")
    if others := sorted(quality.appearing):
        notes.append(
            f"{who} gives NaN or infinity in places of {_shown(others)} where something else comes out now: those are "
            "left out of the comparison"
        )
    return [f"{notes[0]}; {_why(samples)}", *notes[1:]] if notes else []


def comparison_notes(quality: Quality, samples: Sequence[Mapping[str, NDArray]] = ()) -> list[str]:
    """`blank_notes` of the float model, which outputs are random, and that nothing came out that has an error."""
    notes = blank_notes(quality, samples=samples)
    if quality.ignored:
        one = len(quality.ignored) == 1
        names = _shown(sorted(quality.ignored))
        notes.append(f"{'output' if one else 'outputs'} {names} {'is' if one else 'are'} random: not compared")
    return notes if notes or quality.outputs else [NOTHING_COMPARED]


def _why(samples: Sequence[Mapping[str, NDArray]]) -> str:
    found = [gaps_of(sample) for sample in samples]
    for what in ("NaN", "infinity"):
        names = list(dict.fromkeys(name for gaps in found for name, kinds in gaps.items() if what in kinds))
        if names:
            where = f"input{'s' * (len(names) > 1)} {_shown(names)}"
            return f"the samples hold {what} at {where}: give samples without it"
    return "weights hold NaN or infinity ('onnxq doctor' names these), or a layer makes them"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
