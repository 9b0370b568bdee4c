"""Files that may not grow, as on a full disk: a sentence, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import adapters
import numpy as np
import pytest
import tiny
from sweeps import swept

import onnxq
from onnxq.runtime.own_files.adapter_file import write_adapter_file

resource = pytest.importorskip("resource")
#: Bytes of the longest file: less than what onnxruntime tells of the times of kernels.
MOST = 1000


def limited(words: str, most: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command whose files may have so many bytes."""
    room = Path(onnxq.__file__).parents[1]
    script = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))\n"
        f"sys.path.insert(0, {str(room)!r}); from onnxq.__main__ import run; run()"
    )
    return subprocess.run(
        [sys.executable, "-B", "-P", "-c", script, *words.split()],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder / "temporary")},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("check model.onnx model.onnx", "could not write the times of kernels to"),
        swept("bench model.onnx --seconds 0.01 --threads 1", "could not write the times of kernels to"),
        ("quantize model.onnx -s w8a16 -o out.onnx --no-check", "'out.onnx' cannot be written: File too large"),
        swept("calibrate model.onnx -s w8a8 --data data.npz -o out.ranges", "cannot be written: File too large"),
        ("convert model.onnx --to ort -o out.ort", "'out.ort' cannot be written: File too large"),
        swept("export model.onnx -o bundle --no-check", "'bundle' cannot be written: File too large"),
    ],
)
def test_a_disk_that_is_full_is_told(words: str, says: str, tmp_path: Path) -> None:
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    np.savez(tmp_path / "data.npz", x=tiny.normal(8, 1, 64))
    (tmp_path / "temporary").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    done = limited(words, MOST, tmp_path)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert all(line.startswith("onnxq: ") for line in done.stderr.splitlines())
    assert {path.name for path in tmp_path.iterdir()} == before
    assert not [path for path in (tmp_path / "temporary").rglob("*") if path.is_file()]


def test_what_has_no_place_for_temporary_files_was_printed(tmp_path: Path) -> None:
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    done = limited("check model.onnx model.onnx", 0, tmp_path)
    assert done.returncode == 1 and "No usable temporary directory" in done.stderr
    assert "could not be printed" not in done.stderr


def test_an_adapter_of_peft_that_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    adapters.quantized(tmp_path, "int4", "ort-cpu").rename(tmp_path / "base.onnx")
    pairs = adapters.adapter().factors.items()
    arrays = {f"{name}.lora_{word}": x for name, pair in pairs for word, x in zip("AB", pair, strict=True)}
    write_adapter_file(tmp_path / "a.onnx_adapter", arrays)
    before = {path.name for path in tmp_path.iterdir()}
    done = limited("lora convert base.onnx a.onnx_adapter -o peft", 0, tmp_path)
    assert done.returncode == 1
    assert done.stderr == "onnxq: 'peft/adapter_model.safetensors' cannot be written: File too large\n"
    assert {path.name for path in tmp_path.iterdir()} == before
