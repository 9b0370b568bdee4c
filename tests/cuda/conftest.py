"""The GPU half as a processor runs it: built once from the same sources by the C++ compiler at hand."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import abi
import pytest

SOURCES = Path(__file__).parents[2] / "custom_ops" / "cuda"


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None or not SOURCES.exists():
        pytest.skip("needs a C++ compiler and the sources")
    library = tmp_path_factory.mktemp("emulated") / "libonnxq_cuda_emulated.so"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(SOURCES / "emulated.cc"), "-o", str(library)], check=True)
    return abi.load(str(library))
