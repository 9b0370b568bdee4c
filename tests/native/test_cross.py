"""The kernel for ARM on an emulator."""

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


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="there is no compiler for aarch64 (Debian: g++-aarch64-linux-gnu)")
@pytest.mark.skipif(EMULATOR is None, reason="there is no emulator of aarch64 (Debian: qemu-user-static)")
def test_neon(tmp_path: Path) -> None:
    (tmp_path / "kernels.inc").write_text("ONNXQ_KERNEL(neon_dot)\nONNXQ_KERNEL(scalar)\n", encoding="utf-8")
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}", f"-I{tmp_path}"]
    kernel, program = tmp_path / "neon_dot.o", tmp_path / "cross"
    compile(*flags, "-march=armv8.2-a+dotprod", "-c", SOURCES / "cpu/kernels/neon_dot.cc", "-o", kernel)
    others = [SOURCES / "cpu" / name for name in ("c_abi.cc", "gather.cc", "isa.cc", "kernels/scalar.cc")]
    compile(*flags, "-static", HERE / "cross.cc", *others, kernel, "-o", program)
    ran = subprocess.run([EMULATOR, "-cpu", "max", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("neon_dot scalar\n")
    # A processor without the instructions takes the other kernel.
    old = subprocess.run([EMULATOR, "-cpu", "cortex-a53", program], capture_output=True, text=True)
    assert old.stdout.startswith("scalar\n")
