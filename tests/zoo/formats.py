"""The committed table of number formats: `python tests/zoo/formats.py [--write] [WORD …]`.

Quantizes the character language model (10.8 M weights) to every format on every target that can hold it, and scores
what stock onnxruntime makes of the file, without onnxq's library: mean negative log-likelihood a character on text that
was not trained on. Nothing is given back to a finer format, whatever it costs. Takes about half an hour.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import onnx_ir as ir
from started import parser_for, start
from tables import TableRow, read_rows

import onnxq
from onnxq import formats, targets
from onnxq.output import write
from onnxq.plan import Method

MODEL = "charlm"
WIDTHS = ("uniform2", "uniform3", "uniform4", "uniform5", "uniform6")
TABLE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
HEADER = ("format", "target", "bits a weight", "NLL", "more than float", "size", "products become")


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text."""

    word: str
    target: str
    bits: str
    nll: str
    lost: str
    size: str
    became: str


def measure(zoo: ModuleType, word: str, target: str, in_float: float, folder: Path) -> Row:
    path, output = zoo.model_path(MODEL), folder / "q.onnx"
    recipe = onnxq.Recipe(word, min_sqnr=float("-inf"))
    plan = onnxq.quantize(path, output, recipe, target=target, check=False, force=True).plan
    score = zoo.score(MODEL, output)
    products = next(choice for choice in plan if choice.op == "MatMul")
    return Row(
        f"`{word}`",
        f"`{target}`",
        f"{bits_a_weight(path, output, sum(c.elements for c in plan if c.method is not Method.KEEP)):.2f}",
        f"{score:.4f}",
        f"{score - in_float:+.4f}",
        f"{output.stat().st_size / 1e6:.1f} MB",
        "packed" if products.method is Method.PACKED else "float at load",
    )


def bits_a_weight(path: Path, output: Path, elements: int) -> float:
    """Of the quantized weights, scales and all: what the constants of the file take beyond those left in float."""
    before, after = (write.nbytes_to_write(ir.load(each)) for each in (path, output))
    return 8 * (after - (before - 4 * elements)) / elements


def render(rows: list[Row], in_float: float) -> str:
    return "\n".join(
        [
            "# Number formats on a language model",
            "",
            "Made by `python tests/zoo/formats.py --write`: `onnxq quantize charlm.onnx --weights FORMAT`",
            "`--target TARGET --min-sqnr=-inf` on a character language model of 10.8 M weights, 43.2 MB and",
            f"{in_float:.4f} nats a character in float32, scored in stock onnxruntime, without onnxq's library. Bits a",
            "weight count scales and zero points. *Packed* products are computed from the packed weight, by onnxq's",
            "library or, for integers, by onnxruntime's own MatMulNBits; *float at load* is a small file that takes",
            "memory and time of float once it is loaded.",
            "",
            f"| {' | '.join(HEADER)} |",
            "|---" * len(HEADER) + "|",
            *map(str, sorted(rows, key=lambda row: (float(row.bits), row.word, row.target))),
            "",
        ]
    )


def main() -> None:
    parser = parser_for(__doc__, TABLE)
    parser.add_argument("words", nargs="*", help="only these formats")
    options, zoo = start(parser)
    in_float = zoo.MODELS[MODEL].float_score
    rows = {(row.word, row.target): row for row in read_rows(TABLE, Row, HEADER)}
    with tempfile.TemporaryDirectory() as folder:
        for target in sorted(targets.names(), key=lambda name: name != "onnxq"):
            for word in options.words or (*formats.names(), *WIDTHS):
                place = targets.get(target)
                if word in place.spelled:  # in types for which onnxruntime may have no kernels
                    continue
                if not place.refusal(word) and not place.rounds_activations(word):  # that takes data
                    row = measure(zoo, word, target, in_float, Path(folder))
                    rows[row.word, row.target] = row
                    print(row, flush=True)
                    if options.write:
                        TABLE.write_text(render(list(rows.values()), in_float), encoding="utf-8")


if __name__ == "__main__":
    main()
