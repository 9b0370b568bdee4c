"""What quantizing by data takes does not grow with the layers: a model several times as large as the bound."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from llama import write_llama

MEGABYTE = 1 << 20
STATUS = Path("/proc/self/status")
#: Data choose the codes of the last layer; the samples pass all others.
PROGRAM = """if True:
    import sys, onnxq
    from onnxq.calibration.find_ranges import Effort
    rules = (onnxq.Rule("w4a16+gptq", f"layers.{sys.argv[1]}/*"),)
    recipe = onnxq.Recipe("w4a16", rules=rules, algorithm="rtn", balance=False, keep_slow=True)
    how = {"data": "data.npz", "check": False, "effort": Effort(16 << 20), "shard_size": 4 << 20}
    done = onnxq.quantize("llama.onnx", "small.onnx", recipe, **how)
    print(*done.notes)"""


def peak_of(folder: Path, layers: int) -> tuple[int, int]:
    """Bytes of weights, and the most bytes of memory that were the process's own: pages of mapped files are not."""
    folder.mkdir()
    model = write_llama(folder, layers=layers, width=512, hidden=1408, vocabulary=512)
    np.savez(folder / "data.npz", ids=np.random.default_rng(0).integers(0, 512, (4, 1, 32)))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the onnxq that is tested
    with open(folder / "said", "w") as said:
        command = [sys.executable, "-c", PROGRAM, str(layers - 1)]
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder, env=environment)
        peak = 0
        while process.poll() is None:
            found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            peak = max(peak, 1024 * int(found[1]) if found else 0)
            time.sleep(0.005)
    told = (folder / "said").read_text()
    assert process.returncode == 0, told
    assert "data chose the codes of 7 weights" in told
    return model.with_suffix(".onnx.data").stat().st_size, peak


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists() or "RssAnon" not in STATUS.read_text(), reason="needs /proc of Linux")
def test_memory_grows_with_the_layer_and_not_with_the_model(tmp_path: Path) -> None:
    (few, low), (many, high) = (peak_of(tmp_path / str(layers), layers) for layers in (2, 14))
    assert many - few > 140 * MEGABYTE
    assert high - low < 50 * MEGABYTE, (low, high)
