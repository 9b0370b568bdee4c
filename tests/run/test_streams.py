"""Where what is printed goes: full disks, closed pipes and streams, and terminals that know only ASCII."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import tiny
from sweeps import swept

from onnxq.errors import Exit

W = {"w": tiny.normal(64, 64)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model("g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }", W), tmp_path)


def run(model: Path, stdout: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onnxq", "plan", str(model), "-o", str(model.parent / "plan.json")],
        stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, env=os.environ | environment,
    )  # fmt: skip


def test_a_full_disk_behind_stdout(model: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = run(model, full)
    os.close(full)
    assert done.returncode == Exit.CANNOT
    assert done.stderr == (
        "onnxq: the output could not be printed: No space left on device; files that were written stay\n"
    )
    assert (model.parent / "plan.json").exists()


def test_a_closed_pipe_behind_stdout(model: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run(model, write)
    os.close(write)
    assert done.returncode == Exit.UNREAD
    assert (
        done.stderr
        == "onnxq: the output could not be printed: nobody reads it any more; files that were written stay\n"
    )
    assert (model.parent / "plan.json").exists()


@pytest.mark.parametrize(
    ("words", "status"),
    [([], Exit.USAGE), (["nonsense"], Exit.USAGE), (["plan"], Exit.USAGE), (["plan", "none.onnx"], Exit.CANNOT)],
)
def test_a_full_disk_behind_stderr_leaves_the_status(words: list[str], status: Exit, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "onnxq", *words]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=full, timeout=120, cwd=tmp_path, env=environment
        )
    assert done.returncode == status


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-", swept("2>&-"), swept("<&-")])
def test_closed_streams_lead_nowhere(closed: str, model: Path) -> None:
    """Else what libraries print goes into the file that is being written, whose number the stream's is."""
    out = model.parent / "out.onnx"
    words = f"quantize {model} -s w8a16 -o {out} --no-check"
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m onnxq {words} {closed}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, cwd=model.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    onnx.checker.check_model(out)


def test_a_terminal_that_knows_only_ascii(model: Path) -> None:
    node = "prod\u00fcct"
    made = tiny.model("g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }", W)
    made.graph.node[0].name = node
    tiny.save(made, model.parent)
    done = subprocess.run(
        [sys.executable, "-m", "onnxq", "plan", "--nodes", str(model)],
        capture_output=True, timeout=120, env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"prod?ct" in done.stdout
