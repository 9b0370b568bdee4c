"""Ranges that cut off what samples need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule

#: Share of the numbers outside the range. Calibration may leave out a few on purpose.
SHARE = 0.01


class ClippedRanges(Rule):
    """Told by the user's samples. What lies below a least code of zero is cut off on purpose, as by a Relu; and what is
    outside by less than half a step is rounded as well as what is inside.
    """

    severity = Severity.WARNING
    what = "more of the samples' numbers than 1 in 100 lie outside the range of their codes"
    why = "they are all rounded to the end of it"
    fix = "calibrate it again, with samples like these"

    def find(self, patient: Patient) -> Iterator[Finding]:
        for node, value, codes, summary in patient.ranges():
            if summary.histogram is None:
                continue
            centers, counts = summary.histogram.centers(), summary.histogram.counts
            outside = centers > codes.high + codes.scale / 2
            if not codes.is_least_zero:
                outside |= centers < codes.low - codes.scale / 2
            share = float(counts[outside].sum()) / max(1, int(np.sum(counts)))
            if share > SHARE:
                what = f"{share:.1%} of '{value.name}' lie outside [{codes.low:.4g}, {codes.high:.4g}]"
                samples = f"samples go from {summary.low:.4g} to {summary.high:.4g}"
                yield self.at(node.name or "", f"{what}: {samples}")
