"""Models that end onnxruntime's process: the user gets a sentence and the documented exit code, and no file.

Seen in onnxruntime 1.31: Div and Mod of the least integer by −1 and Attention with no heads (SIGFPE), and
BatchNormalization in training form whose statistics nobody reads (SIGSEGV).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from sweeps import swept

import onnxq
from onnxq.files import data_files, staging

#: The integers are made of the input, so that no optimizer computes them when the model is opened.
TEXT = """g (float[n, 64] x) => (float[n, 64] y) {
    c = Cast<to = 7>(x)  zero = Sub(c, c)
    least = Constant<value_ints = [-9223372036854775808]>()  minus = Constant<value_ints = [-1]>()
    a = Add(zero, least)  b = Add(zero, minus)  d = Div(a, b)  f = Cast<to = 1>(d)
    h = MatMul(x, w)  y = Add(h, f) }"""
MATMUL = "g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }"
#: What the working folder may hold: modules that onnxq and its processes import, but not from there.
STRANGERS = ("onnxruntime", "numpy", "onnx_ir", "msgspec")


def onnxq_in(folder: Path, *words: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """As the installed command does it: Python does not look for modules in the working folder."""
    room = Path(onnxq.__file__).parents[1]
    script = f"import sys; sys.path.insert(0, {str(room)!r}); {before}; from onnxq.__main__ import run; run()"
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *words], cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("words", "doing"),
    [
        ("quantize model.onnx -s w8a16 -o out.onnx", "onnxruntime opened or ran"),
        swept("check model.onnx model.onnx", "onnxruntime opened or ran"),
        swept("profile model.onnx -o out.json", "onnxruntime opened or ran"),
        swept("calibrate model.onnx -s w8a8 --data data.npz -o out.ranges --jobs 2", "several processes calibrated"),
    ],
)
def test_a_crash_of_onnxruntime_is_told(words: str, doing: str, tmp_path: Path) -> None:
    tiny.save(tiny.model(TEXT, {"w": tiny.normal(64, 64)}), tmp_path)
    np.savez(tmp_path / "data.npz", x=tiny.normal(8, 1, 64))
    for name in STRANGERS:
        (tmp_path / f"{name}.py").write_text("open('stranger', 'w'); raise SystemExit('of a stranger')\n")
    before = {path.name for path in tmp_path.iterdir()}
    done = onnxq_in(tmp_path, *words.split())
    assert done.returncode == 70, done.stderr
    assert f"crashed (SIGFPE) while {doing}" in done.stderr
    assert "'onnxq doctor MODEL' tells whether onnxruntime crashes on the model alone" in done.stderr
    assert all(line.startswith("onnxq: ") for line in done.stderr.splitlines())
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".onnxq-")} - before
    assert not left, "staging folders of a dead process are swept by the next run, all else is not there"


@pytest.mark.sweep
def test_a_process_that_measures_reads_no_modules_of_the_working_folder(tmp_path: Path) -> None:
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    for name in STRANGERS:
        (tmp_path / f"{name}.py").write_text("open('stranger', 'w'); raise SystemExit('of a stranger')\n")
    done = onnxq_in(tmp_path, *["bench", "model.onnx", "--seconds", "0.1"])
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "stranger").exists()


@pytest.mark.parametrize(
    ("begun", "fails"),
    [
        ("threading.Thread(target=time.sleep, args=[99]).start()", False),
        swept("threading.Thread(target=time.sleep, args=[99]).start()", True),
        swept("multiprocessing.get_context('fork').Process(target=time.sleep, args=[99]).start()", False),
        swept("atexit.register(time.sleep, 99)", False),
    ],
)
def test_what_a_function_leaves_running_is_not_waited_for(begun: str, fails: bool, tmp_path: Path) -> None:
    """Python would wait for it when all is done."""
    tiny.save(
        tiny.model("g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path
    )
    head = "import atexit, multiprocessing, threading, time, numpy as np\n"
    last = "raise ValueError('end')" if fails else "return [{'x': np.ones((1, 64), np.float32)}] * 4"
    (tmp_path / "fns.py").write_text(f"{head}def f():\n {begun}\n {last}\n")
    words = ["calibrate", "model.onnx", "-s", "w8a8", "--data", "fns:f", "-o", "out.ranges"]
    done = onnxq_in(tmp_path, *words, before="from onnxq.runtime.process import endings; endings.GRACE = 0.3")
    said = "onnxq: what a function of yours began still runs, and is not waited for\n"
    assert done.returncode == fails and done.stderr.endswith(said), done.stderr
    assert (tmp_path / "out.ranges").exists() != fails


@pytest.mark.parametrize("journal", ["pipe", "deep", "names", "names and numbers", "pairs", "long"])
def test_a_folder_that_only_looks_like_one_of_ours_does_no_harm(journal: str, tmp_path: Path) -> None:
    """It came with somebody's archive: what it names is not removed, and nothing waits for it."""
    outside = tmp_path / "model.onnx.0123456789abcdef.data"
    outside.write_text("precious")
    place = tmp_path / "unpacked"
    beside = [place / "mine.data", place / "mine.0123456789abcdef.data"]
    staged = place / f".onnxq-{'-'.join(staging._machine())}-x"
    staged.mkdir(parents=True)
    for file in beside:
        file.write_text("precious")
    if journal == "pipe":
        os.mkfifo(staged / data_files.JOURNAL)
    else:
        names = [f"../{outside.name}", str(outside), "a\0b.0123456789abcdef.data", "../model.onnx.data", ".."]
        listed = [*names, *(file.name for file in beside)]
        guessed = {name: [1, 2, len("precious")] for name in listed}
        data = guessed if "numbers" in journal else [[1, 2]] if journal == "pairs" else listed
        told = json.dumps({"model": "mine", "data": data})
        (staged / data_files.JOURNAL).write_text("[" * 100_000 if journal == "deep" else told)
    if journal == "long":
        os.truncate(staged / data_files.JOURNAL, 1 << 40)
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), place)
    onnxq.quantize(place / "model.onnx", place / "q.onnx", "w8a16", check=False)
    assert outside.read_text() == "precious"
    assert sorted(each.name for each in place.iterdir()) == sorted(
        ["model.onnx", "q.onnx", *(each.name for each in beside)]
    )
