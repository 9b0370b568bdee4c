"""A process that calls onnxq again and again, and is refused now and then, does not grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import tiny

import onnxq

#: Calls before memory is looked at, and behind that.
WARM, MORE = 10, 25
#: Bytes that may be left of all those calls together: a leak of one weight or session a call is more.
MOST = 6 << 20
SCRIPT = """
import ctypes, gc, os, sys, warnings
import numpy as np, onnxq
from onnxq import formats
warnings.simplefilter("ignore")
w = np.random.default_rng(0).standard_normal((256, 1024)).astype(np.float32)
def taken():
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # what glibc keeps for the next call is not lost
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def once():
    onnxq.quantize("model.onnx", "out.onnx", "w4a16", force=True, check=False)
    onnxq.session("out.onnx").run(None, {"x": w[:1]})
    for word in ("nf4", "q4_0"):
        formats.quantize(w, word).dequantize()
    for wrong in (lambda: onnxq.quantize("nothing.onnx"), lambda: onnxq.session("data")):
        try:
            wrong()
        except onnxq.OnnxqError:
            continue
        raise AssertionError
warm, more = map(int, sys.argv[1:])
for _ in range(warm):
    once()
before = taken()
for _ in range(more):
    once()
print(taken() - before)
"""


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked up where Linux says it")
def test_calls_leave_nothing_in_memory(tmp_path: Path) -> None:
    onnx.save(
        tiny.model("g (float[n, 1024] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(1024, 512)}),
        tmp_path / "model.onnx",
    )
    (tmp_path / "data").write_bytes(b"no model" * 999)
    room = Path(onnxq.__file__).parents[1]
    script = f"import sys; sys.path.insert(0, {str(room)!r})\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script, str(WARM), str(MORE)], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MOST
