"""What the README shows in Python and TOML works as it stands; its commands are run before every change lands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from onnxq import collectors, formats
from onnxq.cli import main
from onnxq.recipe import load_recipe
from onnxq.schemes import SCHEMES
from onnxq.targets import names

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.sweep
@pytest.mark.usefixtures("quick")
def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    shutil.copy(ROOT / "models" / "text_transformer.onnx", tmp_path / "model.onnx")
    shutil.copy(ROOT / "models" / "text_transformer_calibration.npz", tmp_path / "samples.npz")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == [
        "model.int8.onnx",
        "model.nf4.onnx",
        "model.onnx",
        "model.w4a16.onnx",
    ]


def test_recipe(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml").scheme_for("decoder/0", "MatMul") == "w4a16"


@pytest.mark.parametrize("word", [*SCHEMES, *names(), *collectors.names(), *formats.names()])
def test_every_word_is_explained(word: str) -> None:
    assert f"`{word}`" in README


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_is_named(command: str) -> None:
    assert f"`onnxq {command} " in README or f"onnxq {command} " in "".join(blocks("sh"))


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / page.parent / link).exists(), link


def test_every_page_is_linked() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    texts = README + "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert pages == {page for page in pages if f"{page})" in texts}


def test_figures_of_formats_are_those_of_the_page() -> None:
    """The table of formats repeats docs/formats.md, which a script writes."""
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| `(\w+)` \| `onnxq` \| ([\d.]+ \| [\d.]+) \|", page, re.MULTILINE))
    section = README.split("## Number formats")[1].split("## ")[0]
    rows = re.findall(r"^\| (\*?`.*?) \| ([\d., ]+) \| ([\d., ]+) \|", section, re.MULTILINE)
    seen = set()
    for words, *figures in rows:
        bits, losses = (cell.split(", ") for cell in figures)
        for i, word in enumerate(re.findall(r"`(\w+)`", words)):
            wanted = f"{bits[min(i, len(bits) - 1)]} | {losses[min(i, len(losses) - 1)]}"
            assert found[word] == wanted, word
            seen.add(word)
    assert seen == set(formats.names())
