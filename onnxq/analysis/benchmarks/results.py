"""What a benchmark finds: figures by kind of weights and form, as JSON and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxq.analysis.layers import Form
from onnxq.analysis.statistics import ErrorStats


@dataclass(frozen=True)
class Degradation:
    """What one form keeps.

    Attributes:
        retention: percent of the float model's decisions that stay; None where nothing is decided or run.
        output_sqnr: dB at the outputs of the layer or model; None where it was not run.
        problem: why there are no figures.
    """

    form: Form
    stats: ErrorStats | None
    retention: float | None = None
    output_sqnr: float | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, object]:
        """All figures side by side."""
        stats = {} if self.stats is None else self.stats.to_dict()
        figures = {"retention": self.retention, "output_sqnr": self.output_sqnr, "problem": self.problem}
        return dataclasses.asdict(self.form) | stats | figures


@dataclass(frozen=True)
class Lead:
    """By how many dB one format beats another on Gaussian weights, both with this granularity.

    Zero points and scales of different size make their bits per weight differ.
    """

    format: str
    other: str
    granularity: str
    decibel: float
    bits_per_weight: float
    other_bits_per_weight: float


@dataclass(frozen=True)
class Benchmark:
    """The suite's result: one table for each kind of weights, best SQNR first.

    Attributes:
        tables: by maker of synthetic weights, by the name of an array, or by the model's path.
        leads: nf4 against the other 4-bit formats.
        inputs: what the model was run on, in words; empty without a model.
        note: what a user should know of which samples these are.
    """

    tables: dict[str, tuple[Degradation, ...]]
    leads: tuple[Lead, ...] = ()
    inputs: str = ""
    note: str = ""

    def to_json(self) -> str:
        """Everything, for machines."""
        tables = {name: [row.to_dict() for row in rows] for name, rows in self.tables.items()}
        leads = [dataclasses.asdict(lead) for lead in self.leads]
        return json.dumps({"inputs": self.inputs, "note": self.note, "tables": tables, "leads": leads}, indent=1)

    def to_csv(self) -> str:
        """The tables with a header, a line for each form of each kind of weights; what was not measured is empty."""
        rows = [{"weights": name} | row.to_dict() for name, found in self.tables.items() for row in found]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: "" if x is None else x for key, x in row.items()} for row in rows)
        return text.getvalue()


def ranked(rows: Sequence[Degradation]) -> tuple[Degradation, ...]:
    """Best SQNR first; those without figures last."""
    return tuple(sorted(rows, key=lambda row: -math.inf if row.stats is None else row.stats.sqnr, reverse=True))
