"""Outputs at which a model gives no number: what is said of them."""

from __future__ import annotations

from collections.abc import Sequence

from onnxq.quality import Quality


def blank_notes(quality: Quality, who: str = "the float model") -> list[str]:
    """What a user should know of outputs at which `who` gives no finite number, on all samples or on some."""
    why = "samples or weights hold NaN or infinity, or a layer makes them"
    notes = []
    for names, on, left_out in (
        (quality.blank, "these inputs", "not compared"),
        (quality.partly_blank, "some of these inputs", "those are left out of the comparison"),
    ):
        if names:
            notes.append(f"{who} gives no finite number at {_shown(names)} on {on}: {left_out}; {why}")
    if others := sorted(quality.appearing):
        notes.append(
            f"{who} gives NaN or infinity in places of {_shown(others)} where something else comes out now: those are "
            f"left out of the comparison; {why}"
        )
    return notes


def _shown(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
