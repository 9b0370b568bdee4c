"""Every command of docs/search.md, on a tiny classifier."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tiny
from click.testing import CliRunner

from onnxq.checking.metrics import WORDS
from onnxq.cli import main
from onnxq.schemes import INTEGER_SCHEMES
from onnxq.searching import options, space
from onnxq.searching.budget import QUANTITIES

pytest.importorskip("highspy")
PAGE = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")
COMMANDS = [
    *re.findall(r"^\| .* \| `onnxq ((?:quantize|search) .*)` \|$", PAGE, re.MULTILINE),
    *re.findall(r"^onnxq (.*)$", PAGE, re.MULTILINE),
]
TEXT = "m (float[n, 64] x) => (float[n, 8] y) { h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page")
    w, v = tiny.normal(64, 256), 4 * tiny.normal(256, 8, seed=1)
    tiny.save(tiny.model(TEXT, {"w": w, "v": v}), made)
    x = np.random.default_rng(0).standard_normal((48, 1, 64)).astype(np.float32)
    np.savez(made / "samples.npz", x=x)
    np.savez(made / "labeled.npz", x=x, y=(np.maximum(x[:, 0] @ w, 0) @ v).argmax(axis=1))
    (made / "my_score.py").write_text("def score(session):\n    return 1.0\n")
    return made


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 12


# One test: a command of the page reads what those above it wrote, and the tests of a file may run in any order.
@pytest.mark.sweep
@pytest.mark.usefixtures("quick")
def test_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(space.RUNS, "normal", (0.0, 10, 10))
    for command in COMMANDS:
        words = shlex.split(command)
        done = CliRunner().invoke(main, [*words, *(["--force"] if words[0] != "check" else [])])
        # Whether anything is as fast as that, this machine knows.
        is_refused = done.exit_code == 1 and "no plan keeps --budget latency=0.9: " in done.output
        assert done.exit_code == 0 or is_refused, f"onnxq {command}\n{done.output}"


@pytest.mark.parametrize("word", [*WORDS, *options.WORDS, *INTEGER_SCHEMES])
def test_every_word_is_explained(word: str) -> None:
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize("word", QUANTITIES)
def test_every_bound_is_explained(word: str) -> None:
    assert f"`{word}=" in PAGE
