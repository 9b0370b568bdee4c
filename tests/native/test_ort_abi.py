"""The slots of onnxruntime's C ABI are where its own headers say, and the library shows nothing but C names."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from onnxq.runtime import native

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "custom_ops"
PLACES = [os.environ.get("ONNXQ_ORT_HEADERS", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
HEADERS = next((place for place in PLACES if place and Path(place, "onnxruntime_c_api.h").exists()), None)
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


def compile(source: str) -> subprocess.CompletedProcess[str]:
    assert COMPILER is not None and HEADERS is not None
    command = [COMPILER, "-std=c++17", "-fsyntax-only", f"-I{SOURCES}", f"-I{HEADERS}", "-x", "c++", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True)


@pytest.mark.skipif(HEADERS is None, reason="onnxruntime's headers are not installed (Debian: libonnxruntime-dev)")
@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_slots_lie_where_the_official_headers_have_them() -> None:
    source = (HERE / "ort_abi.cc").read_text(encoding="utf-8")
    done = compile(source)
    assert done.returncode == 0, done.stderr
    # And the comparison can fail: one slot further on, and one parameter fewer.
    moved = source.replace("offsetof(::OrtApi, name)", "offsetof(::OrtApi, name) + 8")
    assert "lies elsewhere" in compile(moved).stderr
    other = source.replace("decltype(::OrtApi::name){}", "decltype(::OrtApi::GetErrorCode){}")
    assert "called otherwise" in compile(other).stderr


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_the_library_shows_c_names_only() -> None:
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(native.path())], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in shown.stdout.splitlines()}
    assert "RegisterCustomOps" in names
    assert all(name == "RegisterCustomOps" or name.startswith("onnxq_") for name in names), names
