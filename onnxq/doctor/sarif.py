"""Findings in SARIF 2.1.0 (Static Analysis Results Interchange Format, OASIS), which code hosts read."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from onnxq.doctor.finding import Diagnosis, Finding, Severity
from onnxq.doctor.rule import rules
from onnxq.version import __version__

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.NOTE: "note", Severity.WARNING: "warning", Severity.ERROR: "error"}


def to_sarif(*diagnoses: Diagnosis, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """One run of one tool, with all of its rules; of one model or several.

    Args:
        notes: what is to be said of all of them.
    """
    told = [*(note for diagnosis in diagnoses for note in diagnosis.notes), *notes]
    words = [rule.word for rule in rules()]
    driver = {"name": "onnxq doctor", "version": __version__, "rules": [_rule(word) for word in words]}
    run = {
        "tool": {"driver": driver},
        "artifacts": [{"location": {"uri": _uri(diagnosis.path)}} for diagnosis in diagnoses],
        "results": [
            _result(finding, words.index(finding.rule), diagnosis.path, index)
            for index, diagnosis in enumerate(diagnoses)
            for finding in diagnosis.findings
        ],
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [{"level": "note", "message": {"text": each}} for each in told],
            }
        ],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(word: str) -> dict[str, Any]:
    rule = next(each for each in rules() if each.word == word)
    return {
        "id": word,
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": f"{rule.what}: {rule.why}"},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int, path: str, artifact: int) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": _uri(path), "index": artifact}}}
    if finding.place:
        location["logicalLocations"] = [{"name": finding.place, "kind": "element"}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{f'{finding.place}: ' if finding.place else ''}{finding.message}. {finding.fix}"},
        "locations": [location],
    }


def _uri(path: str) -> str:
    """As it was given, below where the command ran; or of the file, where it is absolute."""
    given = Path(path)
    return given.as_uri() if given.is_absolute() else quote(given.as_posix())
