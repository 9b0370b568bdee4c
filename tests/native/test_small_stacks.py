"""Threads belong to others, and their stacks may be small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onnxq.runtime import native

pytest.importorskip("onnxruntime")
pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

#: A process whose threads have stacks of so many bytes: onnxruntime's own take what the limit says.
STACK = 256 << 10
CODE = """if True:
    import resource, sys
    resource.setrlimit(resource.RLIMIT_STACK, (int(sys.argv[1]),) * 2)
    import onnxruntime
    import kernels, nodes, onnxq
    from nodes import activations
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    for format in kernels.ALL:
        w = kernels.weight(format, 256, 1100, 32)
        x = activations((513, 1100))
        make = nodes.dense if format in kernels.DENSE else nodes.matmul
        y = onnxq.session(make(w).SerializeToString(), options).run(None, {"x": x})[0]
        error = abs(y - kernels.product(x, w)).max() / abs(y).max()
        print(format, error)
        assert error < 0.02
"""


def test_products_of_many_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(STACK)], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
