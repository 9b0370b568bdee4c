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
CODE = """if True:
    import ctypes, sys
    l = ctypes.CDLL(sys.argv[1])
    print(*(l.onnxq_tile_rows(int(f), int(sys.argv[2])) for f in sys.argv[3:]))
"""
#: Of what is measured by itself, the first number of rows and the last.
RANGES = ((2, 16), (17, 24))


def asked(cache: Path, *formats: int, near: int = 2, **environment: str) -> list[int]:
    """What a fresh process is told of numbers of rows like `near`; -1 is no format."""
    command = [sys.executable, "-c", CODE, str(native.path()), str(near), *map(str, formats)]
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


THREADS = """if True:
    import ctypes, sys, threading
    l, start, found = ctypes.CDLL(sys.argv[1]), threading.Barrier(6), set()
    def ask():
        start.wait()
        found.add(l.onnxq_tile_rows(int(sys.argv[2]), 2))
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


def test_a_profile_of_one_number_a_format_means_tiles_above_16(cached: Path) -> None:
    with thresholds.taken({"int4": 5}):
        assert thresholds.tile_rows() | {"int4": 5, "int4 above 16": 17} == thresholds.tile_rows()


def test_what_was_measured_is_kept(cached: Path, tmp_path: Path) -> None:
    lines = cached.read_text().splitlines()
    assert lines[0] == "onnxq kernels 3"
    (rows,) = asked(tmp_path, INT4)
    assert 2 <= rows <= 17 and lines[2:] == [f"tile_rows {INT4} 2 {rows}"]
    for first, last in RANGES:
        for other in (first, first + 2, last + 1):
            cached.write_text("\n".join([*lines[:2], f"tile_rows {INT4} {first} {other}", ""]))
            assert asked(tmp_path, INT4, near=last) == [other]
    asked(tmp_path, BFLOAT16)
    assert f"tile_rows {INT4} 17 25" in cached.read_text()  # what another process measured stays


@pytest.mark.parametrize(("first", "last"), RANGES)
def test_what_is_measured_lies_where_it_was_asked_for(cached: Path, tmp_path: Path, first: int, last: int) -> None:
    assert first <= asked(tmp_path, INT4, near=first)[0] <= last + 1
    assert asked(tmp_path, INT4, near=last) == asked(tmp_path, INT4, near=first)


def test_threads_that_ask_at_once_are_told_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", THREADS, str(native.path()), str(INT4)]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert [int(word) for word in done.stdout.split()] == asked(tmp_path, INT4)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0" * 100000, b"\xff\xfe" * 3000, b"onnxq kernels 3", b"onnxq kernels 2\n{about}\ntile_rows 0 5"),
        *(b"onnxq kernels 3\nanother processor\ntile_rows 0 2 5", b"onnxq kernels 3\n{about}\ntile_rows 0 2 -5"),
        *(
            b"onnxq kernels 3\n{about}\ntile_rows 0 2 1",
            b"onnxq kernels 3\n{about}\ntile_rows 0 2 99999999999999999999",
        ),
        *(b"onnxq kernels 3\n{about}\ntile_rows -1 2 5", b"onnxq kernels 3\n{about}\ntile_rows 123456789 2 5"),
        *(b"onnxq kernels 3\n{about}\ntile_rows 0 3 5", b"onnxq kernels 3\n{about}\ntile_rows 0 17 5"),
    ],
    ids=range(13),
)
def test_what_is_wrong_is_measured_anew(cached: Path, tmp_path: Path, content: bytes) -> None:
    about = cached.read_bytes().splitlines()[1]
    cached.write_bytes(content.replace(b"{about}", about))
    (rows,) = asked(tmp_path, INT4)
    assert 2 <= rows <= 17
    assert f"tile_rows {INT4} 2 {rows}\n" in cached.read_text()


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
    words = set(kernels.ALL) - {"float16"} if "amx" in kernels.isas() else set()
    assert here.keys() == words | {f"{word} above 16" for word in words}
    others = {word: 17 if rows == 20 else 20 for word, rows in here.items() if word != "nf4"}
    with thresholds.taken(others):
        assert thresholds.tile_rows() == {**here, **others}
    assert thresholds.tile_rows() == here


def test_formats_that_there_are_not(tmp_path: Path) -> None:
    assert asked(tmp_path, -1, 99) == [0, 0]


@pytest.mark.skipif("amx" not in kernels.isas(), reason="this processor has no tiles")
@pytest.mark.parametrize("format", kernels.ALL)
@pytest.mark.parametrize("rows", [*range(1, 26), 33])
def test_tiles_and_dot_products_agree(format: str, rows: int) -> None:
    """Either way of computing is right at any number of rows, whatever is measured."""
    w = kernels.weight(format, 70, 100, 32, zeros=format in ("int4", "int8") and rows % 2 == 0)
    x = np.random.default_rng(rows).standard_normal((rows, 100)).astype(np.float32)
    for threshold in (1, 2**31 - 1):
        y = kernels.matmul("amx", x, w, tile_rows=threshold, threads=2)
        assert np.all(np.abs(y - kernels.product(x, w)) <= kernels.fast_bound(x, w))
