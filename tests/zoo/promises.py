"""The committed table of promises: `python tests/zoo/promises.py [--write] [--models NAME …] [SCHEME …]`.

What made-up inputs say of a model that was quantized without data, and what real data say of the same file. Each line
that is measured replaces the one of the same model and scheme.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from started import parser_for, start
from tables import TableRow, read_rows
from zoo_models import judge

import onnxq

SCHEMES = ("w8a8-dynamic", "w4a16")
TABLE = Path(__file__).resolve().parents[2] / "docs" / "promises.md"
HEADER = (
    "model",
    "scheme",
    "promised dB",
    "worst kind of made-up inputs",
    "real dB",
    "metric",
    "float",
    "score",
    "kept",
)
#: dB by which a promise may be too high before it counts as broken.
BROKEN = 3.0


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text. `kept`: whether the score is within the limits of 8-bit schemes."""

    model: str
    scheme: str
    promised: str
    worst: str
    real: str
    metric: str
    in_float: str
    score: str
    kept: str


def measure(zoo: ModuleType, name: str, scheme: str, folder: Path) -> Row:
    """Quantizes one model without data, and scores what comes out with data."""
    entry, output = zoo.MODELS[name], folder / f"{name}.onnx"
    in_float = entry.float_score
    try:
        result = onnxq.quantize(zoo.model_path(name), output, scheme, force=True)
    except onnxq.OnnxqError as error:
        why = str(error).replace("|", "/").replace(f"{zoo.model_path(name)}: ", "")
        return Row(name, scheme, "", why, "", entry.metric, f"{in_float:.4g}", "", "")
    if result.check is None:  # nothing was worth it, and the model was copied
        why = (result.copied or "not checked").replace("|", "/").replace(f"{zoo.model_path(name)}: ", "")
        return Row(name, scheme, "", why, "", entry.metric, f"{in_float:.4g}", "", "")
    check, score = result.check, zoo.score(name, output)
    worst = min(check.kinds, key=lambda kind: check.kinds[kind], default="the only kind")
    kept = "yes" if judge(entry.metric, in_float, score).is_good else "no"
    real = f"{zoo.sqnr(name, output):.1f}"
    metric, before, after = entry.metric, f"{in_float:.4g}", f"{score:.4g}"
    return Row(name, scheme, f"{check.sqnr:.1f}", worst, real, metric, before, after, kept)


def render(rows: list[Row], names: list[str]) -> str:
    measured = [row for row in rows if row.promised]
    broken = [row for row in measured if float(row.real) < float(row.promised) - BROKEN]
    missing = [f"{name} {scheme}" for name in names for scheme in SCHEMES]
    missing = [each for each in missing if each not in {f"{row.model} {row.scheme}" for row in rows}]
    order = {(name, scheme): i for i, (name, scheme) in enumerate((n, s) for n in names for s in SCHEMES)}
    return "\n".join(
        [
            "# What made-up inputs promise, and what real data say",
            "",
            "Made by `python tests/zoo/promises.py --write`: each model is quantized without data. *Promised* is the",
            "SQNR of the worst output on the worst kind of made-up inputs, as `onnxq quantize` judges it; *real* is",
            "that of all outputs together on real samples, and the score is the model's own metric on real data.",
            "*Kept*: within what 8-bit schemes may lose (docs/results.md). Made-up inputs prove nothing; this is how",
            "often they were wrong.",
            "",
            f"Of {len(measured)} promises {len(broken)} were more than {BROKEN:g} dB too high"
            + (": " + ", ".join(f"{row.model} {row.scheme}" for row in broken) if broken else "")
            + f"; {sum(row.kept == 'yes' for row in measured)} files keep their score.",
            f"Not run: {', '.join(missing) or 'nothing'}.",
            "",
            f"| {' | '.join(HEADER)} |",
            "|---" * len(HEADER) + "|",
            *map(str, sorted(rows, key=lambda row: order.get((row.model, row.scheme), len(order)))),
            "",
        ]
    )


def main() -> None:
    parser = parser_for(__doc__, TABLE)
    parser.add_argument("--models", nargs="*", help="only these; by default all, small ones first")
    parser.add_argument("schemes", nargs="*", default=SCHEMES)
    options, zoo = start(parser)
    names = sorted(zoo.MODELS, key=lambda name: zoo.file_size(zoo.model_path(name)))
    rows = {(row.model, row.scheme): row for row in read_rows(TABLE, Row, HEADER)}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or names:
            for scheme in options.schemes:
                rows[name, scheme] = row = measure(zoo, name, scheme, Path(folder))
                print(row, flush=True)
                if options.write:
                    TABLE.write_text(render(list(rows.values()), names), encoding="utf-8")


if __name__ == "__main__":
    main()
