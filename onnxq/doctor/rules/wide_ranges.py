"""Ranges far wider than samples need."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule

#: Times. Values that share a scale with wider ones have ranges of a few times what they need.
WIDE = 16


class WideRanges(Rule):
    """Told by the user's samples: of 256 codes, not more than 16 are used."""

    severity = Severity.WARNING
    what = "the range of the codes is more than 16 times as wide as what samples need"
    why = "four of eight bits are never used: the steps are 16 times as coarse as they could be"
    fix = "calibrate it again; if one outlier made the range, with --calibration percentile, entropy or mse"

    def find(self, patient: Patient) -> Iterator[Finding]:
        for node, value, codes, summary in patient.ranges():
            if codes.type.bitwidth > 8:
                continue
            needed = max(summary.high, 0.0) - min(summary.low, 0.0)
            width = codes.high - codes.low
            if width > WIDE * needed > 0:
                what = f"the codes of '{value.name}' go from {codes.low:.4g} to {codes.high:.4g}"
                samples = f"samples from {summary.low:.4g} to {summary.high:.4g}"
                yield self.at(node.name or "", f"{what}, {samples}")
