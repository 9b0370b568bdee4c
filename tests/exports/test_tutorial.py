"""docs/tutorial.md, from its first line to its last, as a reader would go through it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onnxq.cli import main

for package in ("sklearn", "skl2onnx", "torch", "onnxscript", "plotly"):
    pytest.importorskip(package)
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of exporters, for their own sake
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r"^```(python|)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = []
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            continue
        for line in text.splitlines():
            if not line.startswith("onnxq "):
                assert line.startswith("pip install ")
                continue
            found = CliRunner().invoke(main, shlex.split(line)[1:])
            assert found.exit_code == 0, f"{line}\n{found.output}"
            printed.append(found.stdout)
    assert len(printed) == 7 and "pictures" in PAGE.read_text()
    scores = [re.search(r"top1 +([\d.]+) → ([\d.]+)", text) for text in printed]
    told = [(float(found[1]), float(found[2])) for found in scores if found is not None]
    assert len(told) == 2 and all(before > 0.93 and after > before - 0.01 for before, after in told)
    assert names["right"] == pytest.approx(told[1][1], abs=1e-4)
    assert (tmp_path / "digits_torch.html").stat().st_size < 3_000_000
