"""Outputs at which a model gives no number: what is said of them."""

from __future__ import annotations

from onnxq.quality import HUGE, Quality


def blank_notes(quality: Quality, who: str = "the float model") -> list[str]:
    """What a user should know of outputs at which `who` gives no finite number, on all samples or on some."""
    why = f"samples or weights hold NaN or infinity, or a layer makes them, or numbers beyond {HUGE:g}"
    notes = []
    for names, on, left_out in (
        (quality.blank, "these inputs", "not compared"),
        (quality.partly_blank, "some of these inputs", "those are left out of the comparison"),
    ):
        if names:
            shown = ", ".join(f"'{name}'" for name in names)
            notes.append(f"{who} gives no finite number at {shown} on {on}: {left_out}; {why}")
    return notes
