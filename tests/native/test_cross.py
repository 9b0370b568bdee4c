"""The kernels for ARM on an emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "custom_ops"
COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def compile(*arguments: str | Path) -> None:
    assert COMPILER is not None
    done = subprocess.run([COMPILER, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A folder with what CMake would write, and the kernel for products."""
    for name, word in (("kernels", "KERNEL"), ("recurrents", "RECURRENT"), ("regions", "REGION")):
        kernels = ["neon_i8mm"] * (name == "regions") + ["neon_dot", "scalar"]
        lines = "".join(f"ONNXQ_{word}({kernel})\n" for kernel in kernels)
        (tmp_path / f"{name}.inc").write_text(lines, encoding="utf-8")
    return tmp_path


def linked(build: Path, program: str, sources: list[str], kernels: list[str]) -> Path:
    """The program of these sources, and of kernels, which alone are compiled for the instructions."""
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}", f"-I{build}"]
    objects = [build / f"{name.replace('/', '_')}.o" for name in kernels]
    for name, made in zip(kernels, objects, strict=True):
        instructions = "-march=armv8.2-a+dotprod" + ("+i8mm" if "i8mm" in name else "")
        compile(*flags, instructions, "-c", SOURCES / name, "-o", made)
    common = ("cpu/c_abi.cc", "cpu/gather.cc", "cpu/isa.cc", "cpu/kernels/scalar.cc")
    compile(
        *flags,
        *("-static", "-pthread", HERE / program),
        *(SOURCES / name for name in (*common, *sources)),
        *objects,
        *("-o", build / "cross"),
    )
    return build / "cross"


def outputs(program: Path) -> tuple[str, str]:
    """What it says on a processor that has the instructions, where all is right; and on one without."""
    assert EMULATOR is not None
    ran = subprocess.run([EMULATOR, "-cpu", "max", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    old = subprocess.run([EMULATOR, "-cpu", "cortex-a53", program], capture_output=True, text=True)
    return ran.stdout, old.stdout


pytestmark = [
    pytest.mark.slow,
    pytest.mark.sweep,
    pytest.mark.skipif(COMPILER is None, reason="there is no compiler for aarch64 (Debian: g++-aarch64-linux-gnu)"),
    pytest.mark.skipif(EMULATOR is None, reason="there is no emulator of aarch64 (Debian: qemu-user-static)"),
]


def test_neon(build: Path) -> None:
    new, old = outputs(linked(build, "cross.cc", [], ["cpu/kernels/neon_dot.cc"]))
    assert new.startswith("neon_dot scalar\n")
    assert old.startswith("scalar\n")  # a processor without the instructions takes the other kernel


@pytest.mark.sweep
def test_neon_of_recurrent_layers(build: Path) -> None:
    kernels = ["cpu/kernels/neon_dot.cc", "recurrent/kernels/neon_dot.cc"]
    sources = ["recurrent/layer.cc", "recurrent/kernels/scalar.cc"]
    new, old = outputs(linked(build, "cross_recurrent.cc", sources, kernels))
    assert new.startswith("neon_dot: neon_dot\n")
    assert old.startswith("scalar: scalar\n")


def test_neon_of_regions(build: Path) -> None:
    kernels = ["cpu/kernels/neon_dot.cc", "region/kernels/neon_i8mm.cc", "region/kernels/neon_dot.cc"]
    new, old = outputs(linked(build, "cross_region.cc", ["region/kernels/scalar.cc"], kernels))
    assert new.startswith("neon_dot with matrices\nneon_dot\nscalar\n")
    assert old.startswith("scalar\n")
