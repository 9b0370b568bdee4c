"""What the doctor found, as a person is shown it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxq.doctor.finding import Diagnosis, Finding, Severity
from onnxq.doctor.folders import FolderDiagnosis
from onnxq.doctor.rule import rules
from onnxq.errors import amount, one_line
from onnxq.report.words import nbytes

#: Findings of one rule that are shown one by one.
_SHOWN = 4
#: What operators say of how a model was quantized, the most telling first.
_KINDS = {
    "DynamicQuantizeLinear": "activations in int8, by ranges that every run measures",
    "QLinear": "activations in int8 by fixed ranges, as operators on codes: the QOperator form",
    "DequantizeLinear": "weights in codes, unpacked before they are used",
    "QuantizeLinear": "activations in codes by fixed ranges, around operators on floats: the QDQ form",
    "MatMulNBits": "weights of few bits that the kernel reads, activations in float",
    "Recurrent": "weights of recurrent layers in int8, activations in 15 or 8 bits by the range of each row",
    "MatMulBnb4": "weights of 4 bits that the kernel reads, activations in float",
}
_STYLES = {Severity.NOTE: "", Severity.WARNING: "bold yellow", Severity.ERROR: "bold red"}


def folder_diagnosis_table(found: FolderDiagnosis) -> Group:
    """The machine, then each model under its name."""
    lines: list[RenderableType] = []
    for name, part in found.parts.items():
        lines += [] if lines else [_machine(part), Text()]
        lines += [Text(one_line(name), style="bold"), diagnosis_table(part, is_alone=False), Text()]
    return Group(*lines, *(Text(one_line(f"note: {note}")) for note in found.notes))


def diagnosis_table(found: Diagnosis, *, is_alone: bool = True) -> Group:
    """What the model is, then the findings of each rule, the worst rules first.

    Args:
        is_alone: what the machine is is said here too.
    """
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("quantized", _how(found))
    facts.add_row("constants", ", ".join(f"{nbytes(n)} {kind}" for kind, n in found.stored.items()) or "none")
    if found.kernels or found.in_float:
        facts.add_row("ran on codes", _counts(found.kernels))
        facts.add_row("ran in float", _counts(found.in_float))
        facts.add_row("on", one_line(found.inputs))
    for word, text in found.machine.items() if is_alone else ():
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


def _machine(found: Diagnosis) -> Table:
    facts = Table(box=None, pad_edge=False, show_header=False)
    for word, text in found.machine.items():
        facts.add_row(word, one_line(text))
    return facts


def _of_rule(severity: Severity, word: str, findings: list[Finding]) -> list[RenderableType]:
    rule = next(each for each in rules() if each.word == word)
    lines: list[RenderableType] = [
        Text.assemble((f"{severity.word}: {word}", _STYLES[severity]), f" — {one_line(f'{rule.what}: {rule.why}')}")
    ]
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        groups.setdefault((finding.message, finding.fix), []).append(finding.place)
    fixes = list(dict.fromkeys(fix for _, fix in groups))
    for (message, fix), places in list(groups.items())[:_SHOWN]:
        place = f"{_listed(places)}: " if places[0] else ""
        advice = f"; fix: {fix}" if len(fixes) > 1 else ""
        lines.append(Text(f"  {one_line(place + message + advice)}"))
    if (rest := sum(map(len, list(groups.values())[_SHOWN:]))) > 0:
        lines.append(Text(f"  and {rest} more (--json has all)"))
    return [*lines, *([Text(f"  fix: {one_line(fixes[0])}")] if len(fixes) == 1 else []), Text()]


def _listed(places: list[str]) -> str:
    """The first of the nodes that have the same fault, and how many others there are."""
    more = len(places) - _SHOWN
    return ", ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _how(found: Diagnosis) -> str:
    """In words, what kind of quantization the operators show; of a model without any, what its weights are."""
    if not found.quantized:
        halves = [word for word in ("float16", "bfloat16") if word in found.stored]
        return f"no: weights in {halves[0]}, none in codes" if halves else "no: nothing in it is in codes"
    kinds = [words for op, words in _KINDS.items() if op in found.quantized]
    return f"{found.quantized}{f' ({kinds[0]})' if kinds else ''}"


def _summary(found: Diagnosis) -> str:
    if not found.findings:
        return "nothing found"
    counts = [(severity, sum(f.severity is severity for f in found.findings)) for severity in reversed(Severity)]
    words = [amount(count, severity.word) for severity, count in counts if count]
    mends = sum(finding.mends for finding in found.findings)
    return f"{', '.join(words)}{f'; --fix mends {mends} of them' if mends else ''}"


def _counts(kernels: dict[str, int]) -> str:
    return ", ".join(f"{n} {op}" for op, n in kernels.items()) or "none"
