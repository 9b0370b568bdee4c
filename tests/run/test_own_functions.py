"""What functions of the user's own do to the process that they are called in."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from sweeps import swept

import onnxq
from onnxq.files import staging

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


def test_in_python_the_process_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder and its streams are not put back, which other threads of it may have changed; but the call is over
    where paths mean something else now, and leaves nothing."""
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    other = io.StringIO()

    def moving() -> list[dict[str, np.ndarray]]:
        monkeypatch.chdir(tmp_path / "deep")
        monkeypatch.setattr(sys, "stdout", other)
        return [{"x": np.zeros((1, 64), np.float32)}]

    with pytest.raises(onnxq.OnnxqError, match="ran while the working folder changed"):
        onnxq.quantize("model.onnx", "q.onnx", "w8a8", data=moving)
    assert Path.cwd() == tmp_path / "deep" and sys.stdout is other
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "deep"}


class Window:
    """What takes what is printed in programs without a terminal."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


def test_in_python_any_stream_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Window())
    samples = [{"x": tiny.normal(1, 64, seed=seed)} for seed in range(4)]
    assert onnxq.quantize(path, tmp_path / "q.onnx", "w8a8", data=lambda: iter(samples)).check is not None


def test_staging_goes_though_the_working_folder_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    with staging.staging(Path("out.onnx")) as folder:
        (folder / "out.onnx").write_bytes(b"half")
        monkeypatch.chdir("deep")
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
