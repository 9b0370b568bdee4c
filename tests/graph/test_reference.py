"""The reference of the Python API: every public name is described, every example in a docstring runs, and it builds."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from looped import looped

import onnxq

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "docs" / "reference.py"))
MODULES: tuple[str, ...] = REFERENCE["MODULES"]
#: Parameters that mean the same everywhere: a quantized weight of a layout, and who is told how far it is.
KNOWN = {"self", "cls", "q", "progress"}
PACKAGE = Path(onnxq.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(["onnxq", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)


def names_of(module: ModuleType) -> Iterator[str]:
    listed = getattr(module, "__all__", None)
    for name in listed or [name for name in vars(module) if not name.startswith("_")]:
        if listed or getattr(getattr(module, name), "__module__", None) == module.__name__:
            yield name


def members() -> Iterator[tuple[str, Any]]:
    """Every public class, function, method and property, once."""
    seen: set[int] = set()
    for module in map(importlib.import_module, MODULES):
        for name in names_of(module):
            found = getattr(module, name)
            if id(found) in seen or isinstance(found, ModuleType) or not hasattr(found, "__doc__"):
                continue
            seen.add(id(found))
            if inspect.isclass(found) or callable(found):
                yield f"{module.__name__}.{name}", getattr(found, "pack", found)
            for own, member in vars(found).items() if inspect.isclass(found) else ():
                function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if not own.startswith("_") and inspect.isfunction(function):
                    yield f"{module.__name__}.{name}.{own}", function


MEMBERS = dict(members())


def test_there_is_something_to_look_at() -> None:
    assert len(MEMBERS) > 150
    assert {"onnxq.quantize", "onnxq.formats.quantize", "onnxq.layouts.from_gguf", "onnxq.Plan.those"} <= set(MEMBERS)


@looped("name", MEMBERS)
def test_a_public_name_is_described(name: str) -> None:
    """What it does, each parameter by its name, and what it raises itself."""
    found = MEMBERS[name]
    text = inspect.getdoc(found) or ""
    assert text, "no docstring"
    assert text.partition("\n\n")[0].rstrip()[-1] in ".:…", "the first paragraph is a sentence"
    if not inspect.isfunction(found):
        return
    source = inspect.getsource(found)
    if re.search(r"^\s+raise (?!NotImplementedError)", source, re.MULTILINE):
        assert "Raises:" in text
    for parameter in inspect.signature(found).parameters:
        if parameter not in KNOWN and not parameter.startswith("_"):
            assert re.search(rf"\b{parameter}\b", text), f"parameter '{parameter}' is not described"


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_run(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted and not done.failed


def test_the_examples_are_found() -> None:
    assert {"onnxq.formats", "onnxq.analysis.statistics", "onnxq.fake_quant.affine"} <= set(WITH_EXAMPLES)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:Error parsing type annotation")  # of code that pdoc does not find the source of
def test_the_reference_builds(tmp_path: Path) -> None:
    pytest.importorskip("pdoc")
    REFERENCE["write"](tmp_path)
    for name in MODULES:
        page = tmp_path.joinpath(*name.split(".")).with_suffix(".html").read_text()
        module = importlib.import_module(name)
        for public in names_of(module):
            if not isinstance(getattr(module, public), ModuleType):  # those have pages of their own
                assert f'id="{public}"' in page, f"{name}.{public}"
