"""Outputs may be called anything, also as what lies beside them while they are made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import adapters
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq.cli import main
from onnxq.output import write
from onnxq.runtime.own_files.adapter_file import write_adapter_file
from onnxq.training.adapters.merge import merge_adapter

W = {"w": tiny.normal(64, 64)}
MATMUL = "g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny.save(tiny.model(MATMUL, W), tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["lock", "journal"])
def test_a_file_is_not_what_holds_its_own_folder(name: str, folder: Path) -> None:
    """Written into the lock it had nobody's permissions but its own, and the folder around it belonged to nobody."""
    for output in (name, "other"):
        result = CliRunner().invoke(main, ["plan", "model.onnx", "-s", "w8a16", "-o", output])
        assert result.exit_code == 0, result.output
    assert Path(name).read_bytes() == Path("other").read_bytes()
    assert Path(name).stat().st_mode == Path("other").stat().st_mode


@pytest.mark.parametrize("name", ["beside.onnx", "adapter.onnx"])
def test_a_merged_model_is_not_the_one_that_it_is_compared_with(name: str, tmp_path: Path) -> None:
    base, made = adapters.quantized(tmp_path, "nf4", "onnxq"), adapters.adapter()
    arrays = {f"{key}.lora_{word}": x for key, pair in made.factors.items() for word, x in zip("AB", pair, strict=True)}
    write_adapter_file(tmp_path / "a.onnx_adapter", arrays)
    found = [
        merge_adapter(base, tmp_path / "a.onnx_adapter", tmp_path / each, accuracy_level=0).output.read_bytes()
        for each in (name, "merged.onnx")
    ]
    assert found[0] == found[1]


def test_data_that_a_model_of_somebody_else_may_refer_to_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which model that is cannot be read; nothing else in the folder speaks of the data."""
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 0)
    onnxq.quantize("model.onnx", "out.onnx", "w4a16", check=False)
    (data,) = write.own_data(Path("out.onnx"))
    Path("theirs.onnx").write_bytes(Path("out.onnx").read_bytes())
    access, opened = os.access, Path.open

    def may_read(path: Any, mode: int) -> bool:
        return Path(path).name != "theirs.onnx" and access(path, mode)

    def open_mine(self: Path, *how: Any, **options: Any) -> Any:
        if self.name == "theirs.onnx":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *how, **options)

    monkeypatch.setattr(os, "access", may_read)
    monkeypatch.setattr(Path, "open", open_mine)
    onnxq.quantize("model.onnx", "out.onnx", "w8a16", check=False, force=True)
    assert data.exists()
