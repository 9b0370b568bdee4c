"""What a rule found."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Severity(IntEnum):
    """How bad it is.

    1. A note: worth knowing; it may be meant so.
    2. A warning: slower, larger or less accurate than the same model could be, or wrong elsewhere than here.
    3. An error: it does not run, or gives wrong results.
    """

    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Finding(msgspec.Struct, frozen=True):
    """One fault in one place.

    Attributes:
        rule: the file name in `rules/`, with dashes.
        severity: see `Severity`.
        place: the node or value, by the model's own name; "" is the model as a whole.
        message: what is wrong there, one sentence.
        fix: what to do about it.
        mends: whether `--fix` does that.
    """

    rule: str
    severity: Severity
    place: str
    message: str
    fix: str
    mends: bool = False

    def to_dict(self) -> dict[str, object]:
        return msgspec.to_builtins(self) | {"severity": self.severity.word}


class Diagnosis(msgspec.Struct, frozen=True):
    """What was found in a model, and on what machine.

    Attributes:
        path: of the model.
        quantized: what shows that it is quantized, in words; "" where nothing does.
        stored: bytes of its constants, by type.
        kernels: how many kernels of each operator ran, those on integers or packed weights; and those in float that
            multiply. Empty where the model was not run.
        in_float: see `kernels`.
        nodes: by node, the kernel that it became, of both kinds.
        machine: processor, instructions, onnxruntime and its providers, the compiled library.
        inputs: what the model was run on, in words; "" where it was not run.
        findings: the worst first.
        notes: what could not be looked at, a sentence each.
    """

    path: str
    quantized: str
    stored: dict[str, int]
    kernels: dict[str, int]
    in_float: dict[str, int]
    nodes: dict[str, str]
    machine: dict[str, str]
    inputs: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), default=None)

    def to_dict(self) -> dict[str, object]:
        """Everything, for JSON."""
        worst = self.worst
        return {
            "onnxq_doctor": 1,
            **msgspec.to_builtins(self),
            "findings": [finding.to_dict() for finding in self.findings],
            "worst": None if worst is None else worst.word,
        }
