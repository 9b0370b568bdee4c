"""The examples of docs/analysis.md print what they say they print; those of docs/layers.md run."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from onnxq.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "analysis.md"
CONSOLE = re.findall(r"^```console\n\$ onnxq (.*)\n([\s\S]*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def same(shown: str, printed: str) -> bool:
    """Whether both are the same word, or numbers that other processors' order of adding up may have made different."""
    try:
        return float(shown) == pytest.approx(float(printed), rel=0.01, abs=0.15)
    except ValueError:
        return shown == printed


@pytest.mark.parametrize(("command", "shown"), CONSOLE, ids=[command.split(" ")[0] for command, _ in CONSOLE])
def test_commands(command: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "110")
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 0, result.output
    for wanted, got in zip(shown.splitlines(), result.stdout.rstrip().splitlines(), strict=True):
        words = zip(wanted.split(), got.split(), strict=True)
        assert all(same(*pair) for pair in words), f"{wanted}\n{got}"


def test_python() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, report=False)
    assert tried > 20
    assert failed == 0


def test_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n([\s\S]*?)^```", text, re.MULTILINE)
    for block in blocks:
        exec(compile(block, "docs/layers.md", "exec"), {})
    made, _ = re.findall(r"^onnxq (import-weights .*)$", text, re.MULTILINE)
    assert len(blocks) == 2 and CliRunner().invoke(main, shlex.split(made)).exit_code == 0
