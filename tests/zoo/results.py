"""The committed table of results: `python tests/zoo/results.py [--write] [--models NAME …] [SCHEME …]`.

Scores every shared model after quantization with every scheme: the zoo's own metrics on real data, one thread, float
and quantized model timed in turns. The whole takes about an hour on two quiet cores; rows that are measured replace
those of the same model and scheme in the table.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from started import parser_for, processor, start
from tables import TableRow, read_rows
from zoo_models import judge

import onnxq
from onnxq.plan import Method

#: Each scheme, and what the same is called in the zoo's table of onnxruntime's own tools: the first that worked counts.
SCHEMES = {
    "w8a8": ("static_percentile", "static_minmax"),
    "w8a8-dynamic": ("dynamic_pc", "dynamic"),
    "w4a16": ("matmul4",),
    "nf4": ("bnb_nf4",),
    "fp16": (),
    "auto": (),
}
TABLE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
PEER = "onnxruntime's tool"
HEADER = ("model", "metric", "scheme", "float", "score", "SQNR dB", "size", "latency", "nodes", PEER, "processor")


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text. An empty score: nothing was written, and `nodes` says why."""

    model: str
    metric: str
    scheme: str
    in_float: str
    score: str
    sqnr: str
    size: str
    latency: str
    nodes: str
    peer: str = ""
    machine: str = ""

    @property
    def is_good(self) -> bool:
        return not self.score or judge(self.metric, float(self.in_float), float(self.score)).is_good


def measure(zoo: ModuleType, name: str, scheme: str, in_float: float, folder: Path) -> Row:
    """Quantizes one model and scores what comes out."""
    metric = zoo.MODELS[name].metric
    data = zoo.export_calibration(name, folder / f"{name}.npz", 64) if scheme == "w8a8" else None
    output = folder / f"{name}.onnx"
    try:
        result = onnxq.quantize(zoo.model_path(name), output, scheme, data=data, force=True)
    except onnxq.OnnxqError as error:
        return Row(name, metric, scheme, f"{in_float:.4g}", "", "", "", "", str(error))
    latency = zoo.latency([zoo.model_path(name), output], zoo.inputs(name, 1)[0])
    return Row(
        name,
        metric,
        scheme,
        f"{in_float:.4g}",
        f"{zoo.score(name, output):.4g}",
        f"{zoo.sqnr(name, output):.1f}",
        f"{zoo.file_size(output) / zoo.file_size(zoo.model_path(name)):.2f}",
        f"{latency[1] / latency[0]:.2f}",
        what_became(result),
    )


def what_became(result: onnxq.Result) -> str:
    """How many nodes became what; those without weights that stayed in float are not worth a word."""
    labels = Counter(c.label for c in result.plan if c.method is not Method.KEEP or c.elements)
    return ", ".join(f"{count} {label}" for label, count in labels.most_common())


def peers(zoo: ModuleType) -> dict[tuple[str, str], str]:
    """What onnxruntime's own tools make of (model, scheme): score · SQNR · size · latency, from the zoo's table."""
    path = Path(zoo.__file__ or "").with_name("peer_baseline.md")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    columns, *rows = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines)
    found = {}
    for row in rows:
        cells = dict(zip(columns, row, strict=False))
        for scheme, words in SCHEMES.items():
            entries = [cells[word] for word in words if word in cells]
            works = [entry for entry in entries if "·" in entry]
            found[row[0].split(" (")[0], scheme] = next(iter(works + entries), "")
    return found


def summary(rows: list[Row]) -> list[str]:
    """One line a scheme."""
    lines = [
        "| scheme | models | within limits | median size | median latency | slower than float |",
        "|---|---|---|---|---|---|",
    ]
    for scheme in SCHEMES:
        those = [row for row in rows if row.scheme == scheme and row.score]
        if those:
            latencies = [float(row.latency) for row in those]
            lines.append(
                f"| {scheme} | {len(those)} | {sum(row.is_good for row in those)} "
                f"| {statistics.median(float(row.size) for row in those):.2f} | {statistics.median(latencies):.2f} "
                f"| {sum(latency > 1.05 for latency in latencies)} |"
            )
    return lines


def render(rows: list[Row]) -> str:
    return "\n".join(
        [
            "# Results on real models",
            "",
            "Made by `python tests/zoo/results.py --write`. Score: the model's own metric on real data that it was",
            "not calibrated with. Size and latency are relative to float: below 1 is smaller and faster; latencies are",
            "medians, taken in turns on one thread, and those of the smallest models are noisy. Within limits: at most",
            "a point of accuracy, 0.02 nats or 1 dB lost, at least 25 dB against float where there is no such score",
            "(what 8-bit schemes may lose; four bits lose more).",
            f"{PEER}: what onnxruntime.quantization 1.31.1 makes of the model with the same scheme: score · SQNR ·",
            "size · latency. The last column names the processor that a row was measured on.",
            "",
            *summary(rows),
            "",
            f"| {' | '.join(HEADER)} |",
            "|---" * len(HEADER) + "|",
            *map(str, rows),
            "",
        ]
    )


def main() -> None:
    parser = parser_for(__doc__, TABLE)
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("schemes", nargs="*", default=list(SCHEMES))
    options, zoo = start(parser)
    rows = {(row.model, row.scheme): row for row in read_rows(TABLE, Row, HEADER)}
    peer = peers(zoo)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or zoo.MODELS:
            entry = zoo.MODELS[name]
            in_float = entry.float_score if entry.vs_float else zoo.score(name)
            for scheme in options.schemes:
                row = measure(zoo, name, scheme, in_float, Path(folder))
                rows[name, scheme] = replace(row, peer=peer.get((name, scheme), ""), machine=processor())
                print(rows[name, scheme], flush=True)
            ordered = [rows[name, scheme] for name in zoo.MODELS for scheme in SCHEMES if (name, scheme) in rows]
            if options.write:
                TABLE.write_text(render(ordered), encoding="utf-8")
    print("\n".join(summary(ordered)))


if __name__ == "__main__":
    main()
