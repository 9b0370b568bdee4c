"""nvcc compiles every kernel without spilling registers, or next to none; how many each needs is recorded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "custom_ops" / "cuda"
NVCC = os.environ.get("CUDACXX") or shutil.which("nvcc")
#: One GPU by default; ONNXQ_CUDA_ARCHS="80 86 89 90" compiles for all.
ARCHS = os.environ.get("ONNXQ_CUDA_ARCHS", "90").split()
FILES = sorted(path.name for path in SOURCES.glob("*.cu"))
PROPERTIES = re.compile(
    r"Function properties for (?P<name>\S+)\s+(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\s+ptxas info\s+: Used (?P<registers>\d+) registers"
)


#: Of a thread of the direct kernel, in which a third block on a multiprocessor is worth them (direct_blocks).
FEW_BYTES = 40


@pytest.mark.sweep
@pytest.mark.skipif(NVCC is None, reason="there is no nvcc")
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("file", FILES)
def test_no_kernel_spills(file: str, arch: str, tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    command = [NVCC, "-std=c++17", "-O3", f"-arch=sm_{arch}", "-Xptxas", "-v", "-Werror=all-warnings"]
    command += ["-Xcompiler", "-Wall,-Wextra", "-c", str(SOURCES / file), "-o", str(tmp_path / "made.o")]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels = [match.groupdict() for match in PROPERTIES.finditer(done.stderr)]
    assert bool(kernels) == (file.startswith(("tensor", "gemv", "rows")))
    for each in kernels:
        record_property(each["name"], each["registers"])
    spilt = [each for each in kernels if int(each["stores"]) > (FEW_BYTES if "direct" in each["name"] else 0)]
    assert not spilt, spilt
    threads = 256
    assert all(int(each["registers"]) * threads <= 65536 for each in kernels)
