"""Two devices: a GPU, where there is one, and the same sources as a processor runs them (custom_ops/cuda/emulate.h)."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from device import Device
from once import once

import onnxq

SOURCES, LIBRARY = Path(__file__).parents[2] / "custom_ops", "libonnxq_cuda_emulated.so"


@pytest.fixture(scope="session")
def emulated_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of the GPU half, and its operators for the processor's provider, built by the C++ compiler at hand."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None or not SOURCES.exists():
        pytest.skip("needs a C++ compiler and the sources")
    flags = [
        "-std=c++17",
        "-DONNXQ_CUDA",
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unknown-pragmas",
    ]
    launcher = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "").split()  # a cache
    extra = os.environ.get("ONNXQ_EMULATION_FLAGS", "").split()  # of a sanitizer
    sources = [
        *(SOURCES / "cuda" / name for name in ("emulated.cc", "nodes.cc")),
        *(SOURCES / "abi" / name for name in ("infer.cc", "nodes.cc", "weight.cc")),
        Path(__file__).with_name("register_emulated.cc"),
    ]

    def build(folder: Path) -> None:
        objects = [folder / f"{source.parent.name}_{source.stem}.o" for source in sources]
        for source, made in zip(sources, objects, strict=True):
            command = [*launcher, compiler, *flags, *extra, f"-I{SOURCES}", "-c", str(source), "-o", str(made)]
            subprocess.run(command, check=True)
        subprocess.run([compiler, "-shared", *extra, *map(str, objects), "-o", str(folder / LIBRARY)], check=True)

    return once(tmp_path_factory, "emulated", build) / LIBRARY


@pytest.fixture(scope="session")
def emulated(emulated_library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(emulated_library))


@pytest.fixture(scope="session")
def gpu() -> Device:
    """The GPU, through the library that was built for it."""
    path = next(Path(onnxq.__file__).parent.glob("*onnxq_cuda*"), None)
    if path is None:
        pytest.skip("libonnxq_cuda was not built: no CUDA compiler")
    device = Device(ctypes.CDLL(str(path)))
    if device.library.onnxq_cuda_devices() == 0:
        pytest.skip("there is no NVIDIA GPU")
    return device


@pytest.fixture(params=["emulated", "gpu"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "gpu":
        return request.getfixturevalue("gpu")
    made = Device(request.getfixturevalue("emulated"))
    made.schedule()
    return made
