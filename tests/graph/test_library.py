"""docs/library.md: what users of five libraries look for, and its equal here, each held against the formula itself.

`python tests/graph/test_library.py --write` writes the page. The rows are in `library/`, a file for each of the five.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from library import bitsandbytes, packed_layer, science, torchao, training
from library.rows import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
HEAD = """# What other libraries call it

People come from five kinds of libraries; this is where each of their functions is here. The page is made by
`python tests/graph/test_library.py --write`, and each row with an equal by a test that calls it and holds it against a
transcription of the formula.
"""
#: In the order of the page.
LIBRARIES = (bitsandbytes, torchao, science, training, packed_layer)


def page() -> str:
    parts = [HEAD]
    for group in (each.GROUP for each in LIBRARIES):
        lines = [f"| {theirs} | {ours} |" for of, theirs, ours, _ in ROWS if of == group]
        parts.append(f"\n## {group[0].upper()}{group[1:]}\n\n| theirs | here |\n|---|---|\n" + "\n".join(lines) + "\n")
    return "".join(parts)


@pytest.mark.parametrize("check", [row[-1] for row in ROWS], ids=[f"{group}: {theirs}" for group, theirs, *_ in ROWS])
def test_a_row_is_the_formula(check: Callable[[], None]) -> None:
    check()


def test_the_page_is_made_of_the_rows() -> None:
    assert PAGE.read_text() == page()


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page())
