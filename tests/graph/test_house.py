"""The folders of the package: what they say, how much lies in them, and that nobody reads what is another's alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxq

PACKAGE = Path(onnxq.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
#: Files that a stranger can take in at a glance. A folder that is a list (one format, or one command, a file) may be
#: longer.
MOST = 14
LISTS = {"formats", "cli", "doctor/rules"}


def room(parts: tuple[str, ...]) -> str:
    """The folder or file right below the package that a module belongs to."""
    return parts[1] if len(parts) > 1 else ""


def module_of(path: Path) -> tuple[str, ...]:
    parts = ("onnxq", *path.relative_to(PACKAGE).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def foreign_private(path: Path, text: str) -> Iterator[str]:
    """What the source `text` of a file reads of another room that begins with an underscore."""
    own = room(module_of(path))
    tree = ast.parse(text)
    rooms: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "onnxq":
            for alias in node.names:
                found = (*node.module.split("."), alias.name)
                rooms[alias.asname or alias.name] = found
                if room(found) != own and any(map(is_private, found)):
                    yield f"{path.name}:{node.lineno} imports {'.'.join(found)}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found = tuple(alias.name.split("."))
                if found[0] == "onnxq" and room(found) != own and any(map(is_private, found)):
                    yield f"{path.name}:{node.lineno} imports {alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and is_private(node.attr):
            found = rooms.get(node.value.id, ())
            if found and room(found) != own:
                yield f"{path.name}:{node.lineno} reads {'.'.join((*found, node.attr))}"


def test_nothing_private_crosses_a_folder() -> None:
    assert [found for path in FILES for found in foreign_private(path, path.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "from onnxq.own_ops._nested import lines",
        "from onnxq.own_ops import _nested",
        "import onnxq.own_ops._nested",
        "from onnxq import own_ops\nown_ops._FILES",
    ],
)
def test_that_test_finds_what_crosses(text: str) -> None:
    assert len(list(foreign_private(PACKAGE / "passes" / "some.py", text))) == 1
    assert not list(foreign_private(PACKAGE / "own_ops" / "some.py", text))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_folder_says_what_it_is_and_can_be_taken_in(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert said, folder
    here = [path for path in folder.glob("*.py") if path.stem != "__main__"]
    if str(folder.relative_to(PACKAGE)) not in LISTS:
        assert len(here) <= MOST, sorted(path.name for path in here)
