"""What functions of the user's own do to the process that they are called in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from sweeps import swept

import onnxq

HEAD = """
import ctypes, os, sys
import numpy as np
def samples():
    for i in range(8): yield {"x": np.full((1, 64), i, np.float32)}
def f():
    yield from samples()
    BODY
    yield from samples()
"""
WORDS = ("calibrate", "model.onnx", "-s", "w8a8", "--calibration", "minmax", "--data", "fns:f", "-o", "out.ranges")


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("os.chdir('/')", 1, "fns:f changed the working folder"),
        ("os._exit(0)", 1, "fns:f ended the process, with exit code 0"),
        swept("os.close(1)", 1, "fns:f closed stdout"),
        swept("sys.stdout.close()", 0, ""),
        swept("sys.stdout = sys.stderr = None", 0, ""),
        swept("np.seterr(all='raise')", 0, ""),
        ("os.fork()", 0, ""),
        ("ctypes.string_at(0)", 70, "crashed (SIGSEGV) while fns:f was at work"),
    ],
)
def test_the_work_goes_on_or_its_end_is_told(body: str, code: int, says: str, tmp_path: Path) -> None:
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    (tmp_path / "fns.py").write_text(HEAD.replace("BODY", body))
    room = Path(onnxq.__file__).parents[1]
    script = f"import sys; sys.path.insert(0, {str(room)!r}); from onnxq.__main__ import run; run()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *WORDS], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr
    assert says in done.stderr and len(done.stderr.splitlines()) == bool(says)
    assert (tmp_path / "out.ranges").exists() == (code == 0)
    left = {path.name for path in tmp_path.iterdir()} - {"model.onnx", "fns.py", "__pycache__", "out.ranges"}
    assert not {name for name in left if code != 70 or not name.startswith(".onnxq-")}, left


def test_in_python_the_process_is_the_callers_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    (tmp_path / "deep").mkdir()

    def moving() -> list[dict[str, np.ndarray]]:
        os.chdir("deep")
        return [{"x": np.zeros((1, 64), np.float32)}]

    streams = sys.stdout, sys.stderr
    with pytest.raises(onnxq.OnnxqError, match="changed the working folder"):
        onnxq.quantize(path, tmp_path / "q.onnx", "w8a8", data=moving)
    assert Path.cwd() == tmp_path and streams == (sys.stdout, sys.stderr)
