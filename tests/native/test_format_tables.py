"""A format that is added without its table does not compile: no kernel multiplies by zeros, or by a guess."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "custom_ops"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


def errors(folder: Path, header: str, *flags: str) -> str:
    """What the compiler says of a file that includes `header` from the sources in `folder`."""
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-fsyntax-only", *flags, "-x", "c++", "-"]
    source = f'#include "{folder / header}"\n'
    return subprocess.run(command, input=source, capture_output=True, text=True).stderr


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOURCES, tmp_path / "custom_ops", ignore=shutil.ignore_patterns("cuda", "*.py")))


def with_a_fifth_table(sources: Path, levels: str) -> None:
    header = sources / "base" / "format.h"
    text = header.read_text(encoding="utf-8")
    text = text.replace("kFormats = 5", "kNew = 5, kFormats = 6")
    text = text.replace("-3.0f, -4.0f, -6.0f},\n};", f"-3.0f, -4.0f, -6.0f}},\n{levels}}};")
    header.write_text(text, encoding="utf-8")


def test_levels(sources: Path) -> None:
    assert errors(sources, "base/format.h") == ""
    with_a_fifth_table(sources, "")
    assert "has one in kLevels" in errors(sources, "base/format.h")


def test_steps_of_byte_levels(sources: Path) -> None:
    flags = ("-mavx2", "-mfma", "-mf16c")
    if "unrecognized" in errors(sources, "base/format.h", *flags):
        pytest.skip("the compiler does not know AVX2")
    assert "error" not in errors(sources, "cpu/kernels/quantize.h", *flags)
    with_a_fifth_table(sources, "{0.25f, 1.0f},\n")
    assert errors(sources, "base/format.h") == ""
    assert "has steps of its own in kSteps" in errors(sources, "cpu/kernels/quantize.h", *flags)


def test_names(sources: Path) -> None:
    assert "error" not in errors(sources, "abi/weight.cc")
    with_a_fifth_table(sources, "{0.25f, 1.0f},\n")
    assert "every format has a name" in errors(sources, "abi/weight.cc")
