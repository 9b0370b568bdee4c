"""No function is long. (That none takes more than eight parameters, ruff checks.)"""

from __future__ import annotations

import ast
from pathlib import Path

from looped import looped

PACKAGE = Path(__file__).parents[2] / "onnxq"
#: Lines of a function, those of its docstring not counted.
MOST = 60


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def long_ones(text: str) -> list[str]:
    functions = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    return [f"{each.name}: {lines_of(each)} lines" for each in functions if lines_of(each) > MOST]


@looped("path", sorted(PACKAGE.rglob("*.py")))
def test_no_function_is_long(path: Path) -> None:
    assert long_ones(path.read_text()) == []


def test_long_functions_are_found() -> None:
    body = "\n".join("    x = 1" for _ in range(MOST))
    assert long_ones(f'def f():\n    """Words."""\n{body}') == [f"f: {MOST + 1} lines"]
    assert long_ones(f'def f():\n    """Words."""\n{body[10:]}') == []
