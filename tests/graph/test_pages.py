"""The pages for who carries on say what is: files that exist, layers as they are checked, every page listed once."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/README.md")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
#: Folders of the repository, as they begin a path.
TOP = ("onnxq/", "custom_ops/", "tests/", "docs/", "models/", ".ci/", ".github/")
#: What stands for any name.
PLACEHOLDER = re.compile("[*<{…]|[A-Z]{4}")
MOST_FILES, MOST_TERMS, STEPS = 10, 25, 8


def section(title: str, level: str = "##") -> str:
    """What stands below a heading of ARCHITECTURE.md, up to the next of its level or above."""
    found = re.search(rf"^{level} {title}$(.*?)(?=^#{{2,{len(level)}}} |\Z)", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def rows(table: str) -> list[str]:
    """The lines of a table behind its heading."""
    return [line for line in table.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_named_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    words = re.findall(r"`([^`\s]+)`", text)
    named = [word for word in words if word.startswith(TOP) and not PLACEHOLDER.search(word)]
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [word for word in named if not (ROOT / word.split("::")[0]).exists()]
    missing += [link for link in links if link and not ((ROOT / page).parent / link).exists()]
    assert not missing
    assert named or links


def test_layers_are_those_of_the_contract() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [each for each in pyproject["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    shown = re.search(r"^```\n(.*?)^```", section("Layers"), re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert shown[1].splitlines() == contract["layers"]


@pytest.mark.parametrize(
    "walk",
    ["A weight, from file to kernel", "A range, from sample to scale", "A choice, from planner to table"],
)
def test_walks_are_short(walk: str) -> None:
    files = set(re.findall(r"`(onnxq/[^`]+\.py)`", section(walk, "###")))
    assert 5 <= len(files) <= MOST_FILES


def test_steps_and_glossary() -> None:
    assert len(rows(section("Eight steps"))) == STEPS
    cells = [row.split("|")[1] for title in ("Nouns", "Glossary") for row in rows(section(title))]
    terms = [term.strip() for cell in cells for term in cell.split(",")]
    assert 0 < len(terms) <= MOST_TERMS
    assert len(set(terms)) == len(terms)


def test_how_tos_are_carried_out() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    carried_out = set(re.findall(r"^def (test_\w+)", (ROOT / "tests/run/test_how_to.py").read_text(), re.MULTILINE))
    assert named == carried_out


def test_every_page_is_listed_once() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+\.md)\]\(\1\) \|", index, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"({page})" in readme for page in PAGES)
