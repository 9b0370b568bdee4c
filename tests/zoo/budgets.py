"""The committed table of budget search: `python tests/zoo/budgets.py [--write] [MODEL …]`.

Quantizes shared models uniformly, and by a search that may take no more bytes; both choose codes by the same data. What
comes out is scored on data that neither of them saw.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from started import parser_for, start
from tables import TableRow, read_rows

import onnxq
from onnxq.job import open_job

TABLE = Path(__file__).resolve().parents[2] / "docs" / "budgets.md"
HEADER = ("model", "metric", "float", "plan", "score", "SQNR dB", "size", "seconds")
#: (model, target, uniform formats or bounds): each format is followed by a search within its size.
CASES = (
    ("charlm", "onnxq", ("bits=2.5",)),
    ("mlperf_ad_autoencoder", "onnxq", ("int3",)),
    ("gpt_nano_sort", "onnxq", ("int3",)),
    ("tiny-random-gpt2-fp32_past", "onnxq", ("int3",)),
    ("stories260k_llama", "onnxq", ("int3",)),
    ("mlperf_ic_resnet8", "ort-cpu", ("uint4",)),
)
SAMPLES = {"charlm": 192}
#: Small ones, for which `--effort quick` measures as much as others get.
QUICK = tuple(name for name, _, _ in CASES if name != "charlm")


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text."""

    model: str
    metric: str
    in_float: str
    plan: str
    score: str
    sqnr: str
    size: str
    seconds: str


def uniform(zoo: ModuleType, name: str, target: str, word: str, output: Path) -> None:
    """Every weight in one format, as far as the target has it."""
    data = zoo.calibration(name, SAMPLES.get(name, 64))
    recipe = onnxq.Recipe(word, min_sqnr=float("-inf"), accuracy_level=0)
    plan = open_job(zoo.model_path(name), recipe, target, data).plan
    onnxq.quantize(
        *(zoo.model_path(name), output, recipe),
        target=target,
        data=data,
        limit=None,
        plan=plan,
        check=False,
        force=True,
    )


def searched(zoo: ModuleType, name: str, target: str, bound: str, output: Path) -> None:
    onnxq.quantize(
        *(zoo.model_path(name), output, onnxq.Recipe(accuracy_level=0, effort="quick" if name in QUICK else "normal")),
        target=target,
        data=zoo.calibration(name, SAMPLES.get(name, 64)),
        limit=None,
        budget=bound,
        force=True,
    )


def measure(zoo: ModuleType, name: str, target: str, word: str, folder: Path) -> Iterator[Row]:
    output = folder / "q.onnx"
    if "=" in word:
        start = time.perf_counter()
        searched(zoo, name, target, word, output)
        yield _row(zoo, name, f"search, {word}", output, start)
        return
    start = time.perf_counter()
    uniform(zoo, name, target, word, output)
    yield _row(zoo, name, f"`{word}` throughout", output, start)
    share = zoo.file_size(output) / zoo.file_size(zoo.model_path(name))
    start = time.perf_counter()
    searched(zoo, name, target, f"size={share:.9f}", output)
    yield _row(zoo, name, f"search, in the size of `{word}`", output, start)


def _row(zoo: ModuleType, name: str, plan: str, output: Path, start: float) -> Row:
    seconds, entry = time.perf_counter() - start, zoo.MODELS[name]
    size = zoo.file_size(output) / zoo.file_size(zoo.model_path(name))
    score, sqnr = zoo.score(name, output), zoo.sqnr(name, output)
    figures = (f"{score:.4f}", f"{sqnr:.1f}", f"{size:.4f}", f"{seconds:.0f}")
    return Row(name, entry.metric, f"{entry.float_score:.4f}", plan, *figures)


def render(rows: list[Row]) -> str:
    return "\n".join(
        [
            "# What a search finds in a budget",
            "",
            "Made by `python tests/zoo/budgets.py --write`. *throughout*: every weight in one format in blocks of 32,",
            "as far as the target has it; *search*: `--budget`, which may take no more bytes than that file, or so",
            "many bits a weight. Codes are chosen by the same calibration data (64 samples, charlm 192), of which the",
            "search holds some back to measure on. Scores and SQNR are of data that neither saw. Seconds are of the",
            "whole process, on two cores that did other things at the same time. All but charlm with `--effort quick`.",
            "How a search works: [search.md](search.md).",
            "",
            f"| {' | '.join(HEADER)} |",
            "|---" * len(HEADER) + "|",
            *map(str, rows),
            "",
        ]
    )


def main() -> None:
    parser = parser_for(__doc__, TABLE)
    parser.add_argument("models", nargs="*", help="only these models")
    options, zoo = start(parser)
    rows = {(row.model, row.plan): row for row in read_rows(TABLE, Row, HEADER)} if TABLE.exists() else {}
    order = [name for name, _, _ in CASES]
    with tempfile.TemporaryDirectory() as folder:
        for name, target, words in CASES:
            for word in words if name in (options.models or order) else ():
                for row in measure(zoo, name, target, word, Path(folder)):
                    rows[row.model, row.plan] = row
                    print(row, flush=True)
                    if options.write:
                        known = sorted(rows.values(), key=lambda row: order.index(row.model))
                        TABLE.write_text(render(known), encoding="utf-8")


if __name__ == "__main__":
    main()
