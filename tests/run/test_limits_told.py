"""At the limits of memory and of processor time, what fails is no bug."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from onnxq import training
from onnxq.boundary import bounded
from onnxq.errors import OutOfMemory


@pytest.mark.skipif(sys.platform != "linux", reason="a limit that only Linux keeps to")
@pytest.mark.parametrize("limit", ["AS", "DATA"])
def test_at_the_limit_of_memory_nothing_is_a_bug(limit: str) -> None:
    """Python's own parser says then that fields are missing, as whose values it had no memory."""
    code = f"""
import resource
from onnxq.boundary import as_sentence
error = ValueError("field 'target' is required for AnnAssign")
print(as_sentence(error))
pages = int(open("/proc/self/statm").read().split()[{0 if limit == "AS" else 5}])
resource.setrlimit(resource.RLIMIT_{limit}, (pages * resource.getpagesize() + (8 << 20),) * 2)
print(as_sentence(error))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    before, after = done.stdout.splitlines()
    assert before.startswith("this is a bug in onnxq: ValueError") and after.startswith("there is not enough memory")


def test_torch_that_does_not_fit_into_memory_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: failed to map segment from shared object')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(OutOfMemory):
        bounded(training.require_torch)()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")
def test_the_limit_of_processor_time_is_told(tmp_path: Path) -> None:
    text = "g (float[1, 64] x) => (y) { y = MatMul(x, w) }"
    model = tiny.save(tiny.model(text, {"w": tiny.normal(64, 64)}), tmp_path)
    words = f"ulimit -S -t 1; exec {sys.executable} -c '{BUSY}' inspect {model}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGXCPU
    assert "the limit of processor time ('ulimit -t') was reached" in done.stderr


#: A command that takes long.
BUSY = """
from onnxq import __main__
def busy():
    while True:
        pass
__main__.work = busy
__main__.run()
"""
