"""Libraries below read settings of their own: files where a command is at work, and the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from onnxq.errors import Exit

TEXT = "g (float[n, 64] x) => (float[n, 8] y) { y = MatMul(x, w) }"


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-P", "-m", "onnxq", *words],
        cwd=folder, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": path} | environment,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.save(tiny.model(TEXT, {"w": tiny.normal(64, 8)}), tmp_path)
    np.save(tmp_path / "x.npy", tiny.normal(8, 64))
    return tmp_path


@pytest.mark.parametrize("kind", ["program", "bytes", "pipe"])
def test_a_plot_is_drawn_by_no_settings_of_the_working_folder(kind: str, folder: Path) -> None:
    """They may say that texts are set by TeX, which is run."""
    pytest.importorskip("matplotlib")
    settings, tool = folder / "matplotlibrc", folder / "bin" / "latex"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ntouch {folder / 'ran'}\nexit 1\n")
    tool.chmod(0o755)
    if kind == "pipe":
        os.mkfifo(settings)
    else:
        settings.write_bytes(b"text.usetex: True\n" if kind == "program" else b"\xff\xfe\x00")
    words = ("benchmark", "--make", "gaussian", "--size", "8x64", "-w", "int4", "--plot", "p.svg")
    done = run(folder, *words, PATH=f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "p.svg").exists() and not (folder / "ran").exists()


def test_settings_by_which_matplotlib_cannot_be_loaded_are_said(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("benchmark", "--make", "gaussian", "--size", "8x64", "-w", "int4", "--plot", "p.svg")
    done = run(folder, *words, MPLBACKEND="nosuch")
    assert done.returncode == Exit.CANNOT
    assert done.stderr.startswith("onnxq: matplotlib cannot be loaded: ") and done.stderr.count("\n") == 1


@pytest.mark.sweep
def test_equal_figures_are_equal_plots(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("p.svg", "q.svg"):
        assert run(folder, "benchmark", "--make", "gaussian", "-w", "int4", "--plot", name).returncode == 0
    assert (folder / "p.svg").read_bytes() == (folder / "q.svg").read_bytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{[", "whose settings cannot be read"),
        ('{"http": 5}', "whose settings cannot be read"),
        ('{"http": {"client_kwargs": 5}}', "fsspec's settings for http are not what it takes"),
    ],
)
def test_settings_of_fsspec(settings: str, words: str, folder: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    (folder / "settings").mkdir()
    (folder / "settings" / "conf.json").write_text(settings)
    command = ("quantize", "http://127.0.0.1:9/model.onnx", "-s", "w4a16", "-o", "out.onnx")
    done = run(folder, *command, FSSPEC_CONFIG_DIR=str(folder / "settings"))
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (Exit.CANNOT, True, 1), done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DASK_CONFIG", "bad.yaml", "Dask cannot be loaded with its settings"),
        ("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "abc", "Dask's settings are not what it takes: 'Invalid time"),
        pytest.param(
            *("DASK_DISTRIBUTED__WORKER__MEMORY__TARGET", "abc", "workers on this machine ended as soon as they were"),
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_settings_of_dask(name: str, value: str, words: str, folder: Path) -> None:
    pytest.importorskip("distributed")
    (folder / "bad.yaml").write_text("{[")
    command = ("calibrate", "model.onnx", "--data", "x.npy", "-s", "w8a8", "-o", "r.ranges", "--cluster", "local:1")
    done = run(folder, *command, XDG_CACHE_HOME=str(folder / "cache"), **{name: value})
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (Exit.CANNOT, True, 1), done.stderr
    assert not (folder / "r.ranges").exists()
