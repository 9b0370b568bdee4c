"""What `quantize` did, for people and for machines."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from onnxq.checking.models import Check
from onnxq.checking.score import Score
from onnxq.files import mirror
from onnxq.output.signature import Signature
from onnxq.plan import Plan
from onnxq.recipe import Recipe


@dataclass(frozen=True)
class Result:
    """What `quantize` did.

    Attributes:
        bytes_before, bytes_after: of the model's files.
        was_auto: whether the scheme was chosen here.
        copied: why there was nothing to do, so that the output is a copy of the model; empty if it is not.
        signature: how it was made, as its metadata say; None of a copy.
        notes: what is not as usual, in sentences.
        score: what the user's own function found.
        is_outweighed: whether the files are larger for what describes the nodes alone.
    """

    output: Path
    plan: Plan
    check: Check | None
    recipe: Recipe
    bytes_before: int
    bytes_after: int
    was_auto: bool = False
    copied: str = ""
    signature: Signature | None = None
    notes: tuple[str, ...] = ()
    score: Score | None = None
    is_outweighed: bool = False

    def unverified(self, *, floor_given: bool = False) -> str:
        """Why nobody knows how good the file is, or that its runtime refuses or breaks it, in a sentence; empty where
        it can be used.

        Args:
            floor_given: the user named a least SQNR, which must then have been measured.
        """
        if self.copied:
            return ""
        if self.check is None:
            return "--min-sqnr was not checked, because of --no-check" if floor_given else ""
        if not self.check.is_known:
            why = self.why_unknown or "its outputs could not be compared"
            return f"{self.output} was written, but nobody knows how good it is: {why}"
        if self.check.undone:
            return f"{self.output} was written, but its runtime refuses it as it is: {'; '.join(self.check.undone)}"
        if self.check.lost_there:
            return f"{self.output} was written, but {self.check.lost_there}"
        if floor_given and not self.check.whole:
            return "--min-sqnr was not checked: the model is too large to be run whole without data; give --data"
        return ""

    @property
    def why_unknown(self) -> str:
        """The note of the check that `unverified` says; empty where outputs were compared."""
        return next(iter(self.check.notes), "") if self.check is not None and not self.check.is_known else ""

    @property
    def further_notes(self) -> tuple[str, ...]:
        """Those of the check that `unverified` does not say."""
        if self.check is None:
            return ()
        if not self.why_unknown:
            return self.check.further_notes
        return tuple(note for note in self.check.notes if note != self.why_unknown)

    def to_json(self) -> str:
        """Everything, for machines."""
        table = {
            "output": mirror.told(self.output),
            "scheme": self.plan.scheme,
            "was_auto": self.was_auto,
            "copied": self.copied,
            "target": self.plan.target,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "check": None if self.check is None else self.check.to_dict(),
            "made_by": None if self.signature is None else self.signature.to_dict(),
            "notes": self.notes,
            "score": None if self.score is None else dataclasses.asdict(self.score),
            "nodes": [choice.to_dict() for choice in self.plan],
        }
        return json.dumps(table, indent=1)
