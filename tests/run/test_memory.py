"""A model much larger than the memory it may take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llama import write_llama

MEGABYTE = 1 << 20


@pytest.mark.sweep
@pytest.mark.slow
def test_a_large_model_never_is_in_memory(tmp_path: Path) -> None:
    """1.8 GB of float32 weights become 4 bits in less than 800 MB, check of the saved file included."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free < 3000 * MEGABYTE:
        pytest.skip(f"needs 3 GB of disk, {tmp_path} has {free / 1e9:.1f} GB")
    model = write_llama(tmp_path, layers=6, width=2048, hidden=5632, vocabulary=32000)
    output, report = tmp_path / "small.onnx", tmp_path / "report.json"
    command = [sys.executable, "-m", "onnxq", "quantize", str(model), "-s", "w4a16", "-o", str(output)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the onnxq that is tested
    # By a small process: a new one counts the memory of the one that it was forked from as its own.
    program = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); "
    program += "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    small = [sys.executable, "-c", program, *command, "--report", str(report)]
    done = subprocess.run(small, capture_output=True, text=True, cwd=tmp_path, env=environment)
    code, peak = map(int, done.stdout.split())
    assert code == 0
    assert peak * 1024 < 800 * MEGABYTE
    assert json.loads(report.read_text())["check"]["sqnr"] > 15
    (data,) = tmp_path.glob(f"{output.name}.*.data")
    assert data.stat().st_size < model.with_suffix(".onnx.data").stat().st_size / 5
