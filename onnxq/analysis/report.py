"""Analyses and benchmarks as tables for a person."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from onnxq.analysis.benchmarks.results import Benchmark, Degradation, Lead
from onnxq.analysis.layers import Form, FormError, Layer, ModelAnalysis
from onnxq.errors import amount
from onnxq.quality import MAX_DB

#: Columns that the names of nodes take at most.
WIDEST_NAME = 32


def analysis_tables(analysis: ModelAnalysis, top: int | None = None, width: int = 110) -> list[Table]:
    """A line for each layer, worst first, with its SQNR in dB in each form; then all weights together.

    The forms are ordered by bits per weight, and spread over several tables where one would be wider than `width`.
    With data each figure is followed by those at the layer's and the model's output.
    """
    totals = sorted(analysis.totals, key=lambda found: (found.stats.bits_per_weight, found.form.label))
    column = 20 if analysis.samples else 9
    count = max(1, (width - WIDEST_NAME - 24) // column)
    return [_analysis_table(analysis, totals[i : i + count], top) for i in range(0, len(totals), count)]


def _analysis_table(analysis: ModelAnalysis, totals: Sequence[FormError], top: int | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", overflow="fold", max_width=WIDEST_NAME)
    table.add_column("operator")
    table.add_column("weights", justify="right")
    for found in totals:
        table.add_column(_header(found.form), justify="right", no_wrap=True)
    for layer in analysis.layers[:top]:
        figures = [_figures(layer[found.form], analysis.samples > 0) for found in totals]
        table.add_row(_name(layer), layer.op, "×".join(map(str, layer.shape)), *figures)
    sqnr = [_decibel(found.stats.sqnr) for found in totals]
    table.add_row("all weights", "", str(sum(layer.elements for layer in analysis.layers)), *sqnr, style="bold")
    table.add_row("bits per weight", "", "", *[f"{found.stats.bits_per_weight:.2f}" for found in totals])
    return table


def notes(analysis: ModelAnalysis) -> list[str]:
    """What the table cannot show: what its figures mean, and why some are missing."""
    found = ["SQNR of the weights in dB, the most harmful layer first"]
    if analysis.samples:
        found = [
            f"SQNR in dB of the weight / at the layer's output / at the model's worst output, one weight quantized "
            f"at a time, on {amount(analysis.samples, 'sample')}; the most harmful layer first",
            *([f"note: {analysis.note}"] if analysis.note else []),
        ]
    for layer in analysis.layers:
        found += [f"{label}: {problem}" for label, problem in layer.problems.items()]
    return found


def benchmark_table(rows: Sequence[Degradation]) -> Table:
    """A line for each form, best SQNR first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("format")
    runs = any(row.output_sqnr is not None for row in rows)
    for column in ("bits", "SQNR", "cosine", "max error", *(["output SQNR", "retention"] if runs else [])):
        table.add_column(column, justify="right")
    for row in rows:
        if row.stats is None:
            table.add_row(row.form.label, "", "–")
            continue
        figures = [f"{row.stats.bits_per_weight:.2f}", f"{_decibel(row.stats.sqnr)} dB", f"{row.stats.cosine:.6f}"]
        figures.append(f"{row.stats.max_abs:.2g}")
        if runs:
            figures.append("–" if row.output_sqnr is None else f"{_decibel(row.output_sqnr)} dB")
            figures.append("–" if row.retention is None else f"{row.retention:.2f} %")
        table.add_row(row.form.label, *figures)
    return table


def lead_lines(benchmark: Benchmark) -> list[str]:
    """Who beats whom by how much, a sentence each, the largest lead first."""
    return [
        f"{lead.format} {_against(lead)} on Gaussian weights, both {_words(lead.granularity)} "
        f"({lead.bits_per_weight:.2f} and {lead.other_bits_per_weight:.2f} bits per weight)"
        for lead in sorted(benchmark.leads, key=lambda lead: -lead.decibel)
    ]


def _against(lead: Lead) -> str:
    if abs(lead.decibel) < 0.005:
        return f"does as well as {lead.other}"
    return f"{'beats' if lead.decibel > 0 else 'is beaten by'} {lead.other} by {abs(lead.decibel):.2f} dB"


def problem_lines(benchmark: Benchmark) -> list[str]:
    """Why some formats have no figures, a sentence each."""
    return [f"{row.form.label}: {row.problem}" for rows in benchmark.tables.values() for row in rows if row.problem]


def _words(granularity: str) -> str:
    return (
        f"in blocks of {granularity.removeprefix('block')}" if granularity.startswith("block") else f"a {granularity}"
    )


def _header(form: Form) -> Text:
    return Text(form.label.replace(" ", "\n").replace("block", "b"))


def _name(layer: Layer) -> str:
    return layer.node or layer.weight


def _figures(found: FormError | None, with_outputs: bool) -> str:
    if found is None:
        return "–"
    if not with_outputs:
        return _decibel(found.stats.sqnr)
    outputs = ["–" if x is None else _decibel(x) for x in (found.layer_sqnr, found.model_sqnr)]
    return " / ".join([_decibel(found.stats.sqnr), *outputs])


def _decibel(x: float) -> str:
    return "∞" if x >= MAX_DB else f"{x:.1f}"
