"""What every file of `rules/` defines: one class, named like the file in camel case, derived from `Rule`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.errors import BadRecipe


class Rule:
    """One kind of fault.

    Attributes:
        severity: as a rule; a finding may be of a lower one.
        what, why: of the fault, in a sentence each.
        fix: what to do about it, unless a finding knows better.
        mends: whether `mend` does something.
    """

    severity: Severity
    what: str
    why: str
    fix: str
    mends = False

    @property
    def word(self) -> str:
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    def find(self, patient: Patient) -> Iterator[Finding]:
        """Every place where the fault is."""
        raise NotImplementedError

    def mend(self, model: ir.Model) -> bool:
        """Rewrite `model` without the fault, in place, to compute the same; whether anything was rewritten."""
        return False

    def at(
        self, place: str, message: str, fix: str = "", severity: Severity | None = None, *, mends: bool = True
    ) -> Finding:
        """A finding; with `mends` False it is one of those that `mend` does nothing for."""
        return Finding(self.word, severity or self.severity, place, message, fix or self.fix, self.mends and mends)


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All of them, from the folder's file names."""
    found = []
    for path in sorted((Path(__file__).parent / "rules").glob("[!_]*.py")):
        name = "".join(part.capitalize() for part in path.stem.split("_"))
        rule: Rule = getattr(importlib.import_module(f"onnxq.doctor.rules.{path.stem}"), name)()
        found.append(rule)
    return tuple(found)


def without(ignored: tuple[str, ...]) -> tuple[Rule, ...]:
    """
    Raises:
        BadRecipe: one of these words is no rule.
    """
    words = [rule.word for rule in rules()]
    for word in ignored:
        if word not in words:
            raise BadRecipe(f"unknown rule '{word}'; rules are {', '.join(words)}")
    return tuple(rule for rule in rules() if rule.word not in ignored)
