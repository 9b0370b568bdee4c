"""Thresholds that the library measures: kept for the next process, measured anew where that is wrong, or pinned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kernels
import numpy as np
import pytest

from onnxq.runtime import native, thresholds

pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

INT4, BFLOAT16 = kernels.ALL.index("int4"), kernels.ALL.index("bfloat16")
CODE = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); print(*(l.onnxq_tile_rows(int(f)) for f in sys.argv[2:]))"


def asked(cache: Path, *formats: int, **environment: str) -> list[int]:
    """What a fresh process is told; -1 is no format."""
    command = [sys.executable, "-c", CODE, str(native.path()), *map(str, formats)]
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


THREADS = """if True:
    import ctypes, sys, threading
    l, start, found = ctypes.CDLL(sys.argv[1]), threading.Barrier(6), set()
    def ask():
        start.wait()
        found.add(l.onnxq_tile_rows(int(sys.argv[2])))
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for each in threads: each.start()
    for each in threads: each.join()
    print(*found)
"""


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """The file of a process that has measured. Skips where the kernels of this machine have nothing to measure."""
    if "amx" not in kernels.isas() or asked(tmp_path, INT4) == [0]:
        pytest.skip("this processor, or this build, has no tiles")
    (file,) = (tmp_path / "onnxq").iterdir()
    return file


def test_what_was_measured_is_kept(cached: Path, tmp_path: Path) -> None:
    lines = cached.read_text().splitlines()
    assert lines[0] == "onnxq kernels 2"
    (rows,) = asked(tmp_path, INT4)
    assert 2 <= rows <= 17 and lines[2:] == [f"tile_rows {INT4} {rows}"]
    for other in (2, 9, 17):
        cached.write_text("\n".join([*lines[:2], f"tile_rows {INT4} {other}", ""]))
        assert asked(tmp_path, INT4) == [other]
    asked(tmp_path, BFLOAT16)
    assert f"tile_rows {INT4} 17" in cached.read_text()  # what another process measured stays


def test_threads_that_ask_at_once_are_told_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", THREADS, str(native.path()), str(INT4)]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert [int(word) for word in done.stdout.split()] == asked(tmp_path, INT4)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0" * 100000, b"\xff\xfe" * 3000, b"onnxq kernels 2", b"onnxq kernels 1\n{about}\ntile_rows 0 5"),
        *(b"onnxq kernels 2\nanother processor\ntile_rows 0 5", b"onnxq kernels 2\n{about}\ntile_rows 0 -5"),
        *(b"onnxq kernels 2\n{about}\ntile_rows 0 1", b"onnxq kernels 2\n{about}\ntile_rows 0 99999999999999999999"),
        *(b"onnxq kernels 2\n{about}\ntile_rows -1 5", b"onnxq kernels 2\n{about}\ntile_rows 123456789 5"),
    ],
    ids=range(11),
)
def test_what_is_wrong_is_measured_anew(cached: Path, tmp_path: Path, content: bytes) -> None:
    about = cached.read_bytes().splitlines()[1]
    cached.write_bytes(content.replace(b"{about}", about))
    (rows,) = asked(tmp_path, INT4)
    assert 2 <= rows <= 17
    assert f"tile_rows {INT4} {rows}\n" in cached.read_text()


def test_without_a_place_every_process_measures(cached: Path, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    for cache in (in_the_way, Path("relative"), Path("/proc/nowhere")):
        (rows,) = asked(cache, INT4, HOME="")
        assert 2 <= rows <= 17
    cached.unlink()
    cached.mkdir()
    assert 2 <= asked(tmp_path, INT4)[0] <= 17
    assert sorted(path.name for path in cached.parent.iterdir()) == [cached.name]  # nothing half written is left


def test_pinned(tmp_path: Path) -> None:
    has_tiles = "amx" in kernels.isas() and asked(tmp_path / "a", INT4) != [0]
    assert asked(tmp_path / "b", INT4, BFLOAT16, ONNXQ_TILE_ROWS="7") == [7 * has_tiles] * 2
    assert not (tmp_path / "b").exists()


def test_numbers_of_another_machine_are_taken_until_the_end() -> None:
    here = thresholds.tile_rows()
    assert here.keys() == (set(kernels.ALL) - {"float16"} if "amx" in kernels.isas() else set())
    others = {word: 17 if rows == 3 else 3 for word, rows in here.items() if word != "nf4"}
    with thresholds.taken(others):
        assert thresholds.tile_rows() == {**here, **others}
    assert thresholds.tile_rows() == here


def test_formats_that_there_are_not(tmp_path: Path) -> None:
    assert asked(tmp_path, -1, 99) == [0, 0]


@pytest.mark.skipif("amx" not in kernels.isas(), reason="this processor has no tiles")
@pytest.mark.parametrize("format", kernels.ALL)
@pytest.mark.parametrize("rows", [*range(1, 18), 33])
def test_tiles_and_dot_products_agree(format: str, rows: int) -> None:
    """Either way of computing is right at any number of rows, whatever is measured."""
    w = kernels.weight(format, 70, 100, 32, zeros=format in ("int4", "int8") and rows % 2 == 0)
    x = np.random.default_rng(rows).standard_normal((rows, 100)).astype(np.float32)
    for threshold in (1, 2**31 - 1):
        y = kernels.matmul("amx", x, w, tile_rows=threshold, threads=2)
        assert np.all(np.abs(y - kernels.product(x, w)) <= kernels.fast_bound(x, w))
