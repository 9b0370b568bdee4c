"""tests/zoo/bytes.py tells code that writes the same files from code that does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from zoo_models import load_zoo

import onnxq

SCRIPT = Path(__file__).with_name("bytes.py")


@pytest.mark.sweep
def test_another_checkout_writes_the_same_or_not(tmp_path: Path) -> None:
    if load_zoo() is None:
        pytest.skip("no shared models")
    package = Path(onnxq.__file__).parent
    shutil.copytree(package, tmp_path / "other" / "onnxq")
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    words = ["--against", tmp_path / "other", "--models", "gpt_nano_sort", "--schemes", "fp16", "nf4"]

    def run(folder: str) -> tuple[int, list[str]]:
        command = [sys.executable, SCRIPT, tmp_path / folder, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout.splitlines()

    code, said = run("same")
    assert code == 0, said
    assert said[-1] == "the same: 2 of 2"
    table = tmp_path / "other/onnxq/formats/nf4.py"
    text = table.read_text(encoding="utf-8")
    assert text.count("0.07958029955625534") == 1
    table.write_text(text.replace("0.07958029955625534", "0.08958"), encoding="utf-8")
    code, said = run("changed")
    assert code == 1
    assert said[-3:] == ["gpt_nano_sort fp16: the same", "gpt_nano_sort nf4: bytes", "the same: 1 of 2, bytes: 1 of 2"]
