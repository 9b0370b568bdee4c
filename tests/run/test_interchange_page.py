"""Every cell of the table in docs/interchange.md: what is the same, and what becomes of the rest."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest
import tiny

from onnxq import quantize
from onnxq.conversion.convert import convert
from onnxq.conversion.export_folder import KINDS, export_folder
from onnxq.conversion.export_weights import export_weights
from onnxq.recipe import Recipe
from onnxq.targets import names

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.sweep]
PAGE = Path(__file__).parents[2] / "docs" / "interchange.md"
TEXT = """g (int64[n] ids) => (float[n, 64] y) {
    x = Gather (table, ids)  h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v)
}"""
CONSTANTS = {"table": tiny.normal(64, 512, seed=4), "w": tiny.normal(512, 256), "v": tiny.normal(256, 64, seed=2)}


@functools.cache
def table() -> dict[str, dict[str, str]]:
    """Cells by format and column."""
    lines = PAGE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| from → to |"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    columns = [re.findall(r"`([^`]+)`", cell)[0] for cell in rows[0][1:]]
    found = {}
    for (words, *cells), line in zip(rows[2:], lines[start + 2 :], strict=True):
        if not line.startswith("|"):
            break
        found |= {word.strip(): dict(zip(columns, cells, strict=True)) for word in words.split(",")}
    return found


@pytest.mark.parametrize("word", table())
def test_a_row(word: str, tmp_path: Path) -> None:
    tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    small = tmp_path / "small.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True)
    quantize(tmp_path / "model.onnx", small, recipe, target="onnxq", check=False)
    count = 2 if word == "bfloat16" else 3  # whose tables are floats of 16 bits in the graph itself
    for column, cell in table()[word].items():
        if column in names():
            done = convert(small, column, tmp_path / f"{column}.onnx", check=False)
            assert cell.startswith("same") == (len(done.kept) == count and not done.again), (word, column)
            is_int8 = all(choice.format == "int8" for choice in done.plan)
            assert ("int8" in cell) == (is_int8 and word != "int8" and word != "int8_dq"), (word, column)
            continue
        if column in KINDS:
            rows = export_folder(small, column, tmp_path / column).rows
        else:
            rows = export_weights(small, tmp_path / f"w{column}").rows
        rows = [row for row in rows if row.shape != (64, 512)] if word == "bfloat16" else rows
        formats = {row.format for row in rows}
        if cell.startswith("float16"):
            assert formats == {None}, (word, column)
            near = [np.inf if row.sqnr is None else row.sqnr for row in rows]
            assert min(near) == np.inf if "same" in cell else 70 < min(near) < np.inf, (word, column)
        elif cell.startswith("scales rounded"):
            assert None not in formats and all(row.sqnr is not None and row.sqnr > 70 for row in rows), (word, column)
        elif cell == "float32":
            assert formats == {None} and all(row.sqnr is None for row in rows), (word, column)
        else:
            kind, stored = cell.partition(", ")[::2]
            assert kind == "same" and None not in formats and all(row.sqnr is None for row in rows), (word, column)
            assert not stored or {str(f).upper() for f in formats} in ({stored}, {"BFLOAT16"}), (word, column, formats)
