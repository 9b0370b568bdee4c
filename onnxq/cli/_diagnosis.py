"""What the doctor found, as a person is shown it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxq.doctor.finding import Diagnosis, Finding, Severity
from onnxq.doctor.rule import rules
from onnxq.errors import one_line
from onnxq.report.words import nbytes

#: Findings of one rule that are shown one by one.
_SHOWN = 4
_STYLES = {Severity.NOTE: "", Severity.WARNING: "bold yellow", Severity.ERROR: "bold red"}


def diagnosis_table(found: Diagnosis) -> Group:
    """What the model is, then the findings of each rule, the worst rules first."""
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("quantized", found.quantized or "nothing shows that it is")
    facts.add_row("constants", ", ".join(f"{nbytes(n)} {kind}" for kind, n in found.stored.items()) or "none")
    if found.kernels or found.in_float:
        facts.add_row("in integers", _counts(found.kernels))
        facts.add_row("in float", f"{_counts(found.in_float)}, on {found.inputs}")
    for word, text in found.machine.items():
        facts.add_row(word, one_line(text))
    parts: list[RenderableType] = [facts, Text()]
    by_rule: dict[tuple[int, str], list[Finding]] = {}
    for finding in found.findings:
        by_rule.setdefault((-finding.severity, finding.rule), []).append(finding)
    for (minus, word), findings in sorted(by_rule.items()):
        parts += _of_rule(Severity(-minus), word, findings)
    parts.append(Text(one_line(_summary(found))))
    parts += [Text(one_line(f"note: {note}")) for note in found.notes]
    return Group(*parts)


def _of_rule(severity: Severity, word: str, findings: list[Finding]) -> list[RenderableType]:
    rule = next(each for each in rules() if each.word == word)
    lines: list[RenderableType] = [
        Text.assemble((f"{severity.word}: {word}", _STYLES[severity]), f" — {one_line(f'{rule.what}: {rule.why}')}")
    ]
    for finding in findings[:_SHOWN]:
        place = f"{finding.place}: " if finding.place else ""
        lines.append(Text(f"  {one_line(place + finding.message)}"))
    if len(findings) > _SHOWN:
        lines.append(Text(f"  and {len(findings) - _SHOWN} more (--json has all)"))
    return [*lines, Text(f"  fix: {one_line(findings[0].fix)}"), Text()]


def _summary(found: Diagnosis) -> str:
    if not found.findings:
        return "nothing found"
    counts = [(severity, sum(f.severity is severity for f in found.findings)) for severity in reversed(Severity)]
    words = [f"{count} {severity.word}{'s' * (count > 1)}" for severity, count in counts if count]
    mends = sum(finding.mends for finding in found.findings)
    return f"{', '.join(words)}{f'; --fix mends {mends} of them' if mends else ''}"


def _counts(kernels: dict[str, int]) -> str:
    return ", ".join(f"{n} {op}" for op, n in kernels.items()) or "none"
