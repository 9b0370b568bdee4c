"""Files that keep progress take the place of progress only: nobody named them, and --force is about outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from click.testing import CliRunner

from onnxq.cli import main

W8A8 = ("-s", "w8a8", "--data")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "g (float[N, 64] x) => (float[N, 64] y) { a = MatMul(x, w)  y = MatMul(a, v) }"
    weights = {"w": tiny.normal(64, 64), "v": tiny.normal(64, 64, seed=1)}
    tiny.save(tiny.model(text, weights), tmp_path, "in.onnx")
    np.savez("data.npz", x=tiny.normal(12, 1, 64))


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("content", ["precious", ""])
@pytest.mark.parametrize("force", [[], ["-f"]], ids=["", "force"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r.partial", [*W8A8, "data.npz", "-o", "r"]),
        ("e.npz.partial.1of1", ["--data", "data.npz", "--evidence", "e.npz"]),
    ],
)
def test_a_foreign_file_called_like_progress_stays(name: str, words: list[str], force: list[str], content: str) -> None:
    """--force is about outputs; nobody named this one."""
    Path(name).write_text(content)
    said = run("calibrate", "in.onnx", *words, *force, code=1)
    assert f"'{name}' is where progress is kept, and something else is there" in said
    assert Path(name).read_text() == content


@pytest.mark.parametrize("force", [[], ["-f"]], ids=["", "force"])
@pytest.mark.parametrize(
    ("name", "begin", "words"),
    [
        ("r.partial", '{"key": "', ["calibrate", "in.onnx", *W8A8, "data.npz", "-o", "r"]),
        ("e.npz.partial.1of1", "", ["calibrate", "in.onnx", "--data", "data.npz", "--evidence", "e.npz"]),
        ("out.onnx.search", '{"search":"', ["quantize", "in.onnx", "--budget", "bits=5", "-o", "out.onnx"]),
    ],
)
def test_progress_is_not_kept_through_a_link(name: str, begin: str, words: list[str], force: list[str]) -> None:
    """Not even where what it leads to looks like progress: that is another command's, under a name of its own."""
    Path("another").write_text(begin)
    Path(name).symlink_to("another")
    said = run(*words, *force, code=1)
    assert f"'{name}' is a link, and progress is not kept through one; move it away, or choose another name" in said
    assert Path(name).is_symlink() and Path("another").read_text() == begin
