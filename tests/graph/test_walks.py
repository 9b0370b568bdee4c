"""The walks of ARCHITECTURE.md are short, and lead through files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Python files that somebody reads to follow one thing through the package.
MOST = 10


def walks() -> dict[str, list[str]]:
    """The Python files that each walk names, by its title."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Three walks\n")[2].partition("\n## ")[0]
    parts = re.split(r"^### (.*)$", section, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"`(onnxq/[\w/]+\.py)`", steps) for title, steps in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize(
    "title", ["A weight, from file to kernel", "A range, from sample to scale", "A choice, from planner to table"]
)
def test_a_walk_is_at_most_ten_files(title: str) -> None:
    files = list(dict.fromkeys(walks()[title]))
    assert 5 < len(files) <= MOST
    assert [file for file in files if not (ROOT / file).exists()] == []
