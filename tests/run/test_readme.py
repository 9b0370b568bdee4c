"""What the README shows in Python and TOML works as it stands; its commands are run before every change lands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from onnxq.recipe import SCHEMES, load_recipe
from onnxq.targets import names

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("quick")
def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    shutil.copy(ROOT / "models" / "text_transformer.onnx", tmp_path / "model.onnx")
    shutil.copy(ROOT / "models" / "text_transformer_calibration.npz", tmp_path / "samples.npz")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == [
        "model.int8.onnx",
        "model.onnx",
        "model.w4a16.onnx",
    ]


def test_recipe(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml").scheme_for("decoder/0", "MatMul") == "w4a16"


@pytest.mark.parametrize("word", [*SCHEMES, *names()])
def test_every_word_is_explained(word: str) -> None:
    assert f"`{word}`" in README
