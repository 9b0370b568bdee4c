"""What a small file unpacks to has an end, which is a sentence, and nothing of that end is left afterwards."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tiny

from onnxq.errors import is_of_memory
from onnxq.files import room

WRITE = """
import sys, numpy as np, pyarrow as pa
from pyarrow import feather, parquet
path, count = sys.argv[1], int(sys.argv[2])
row = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.array(np.zeros(count, np.float32)))
write = parquet.write_table if path.endswith("parquet") else feather.write_feather
write(pa.table({"x": row}), path, compression="zstd")
"""
READ = """
import pathlib, sys, pyarrow
from onnxq.errors import BadData
from onnxq.files import room
from onnxq.samples.tables import table
path, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others have a gigabyte in reserve
share, least, room.SHARE, room.LEAST = room.SHARE, room.LEAST, 1 << 40, 100 << 20
try:
    next(table.batches(path))
except BadData as error:
    print(str(error)[:len(sys.argv[1]) + len("'' is not a readable table")])
room.SHARE, room.LEAST = share, least
(batch,) = table.batches(path)
assert len(batch.column("x")[0]) == count
print("read")
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="a limit that only Linux keeps to")
MB = 1 << 20
#: What OpenBLAS, onnx and the C library print by themselves where they have no memory.
OF_LIBRARIES = (
    "OpenBLAS",
    "Schema error: std::bad_alloc",
    "Fatal glibc error: ",
    "cannot allocate memory for thread-local data",
)


@linux
def test_memory_ends_within_and_not_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with room.limited(64 * MB):
        with pytest.raises(MemoryError), room.limited():  # the outer one holds
            np.zeros(1 << 30, np.uint8)
        np.zeros(MB, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    np.zeros(1 << 30, np.uint8)


def test_the_last_of_several_threads_takes_the_limit_away() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    inside, go_on = threading.Barrier(2), threading.Event()

    def other() -> None:
        with room.limited():
            inside.wait(10)
            go_on.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    with room.limited():
        inside.wait(10)
    assert resource.getrlimit(resource.RLIMIT_DATA) != before
    go_on.set()
    thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.sweep
@linux
@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_a_table_that_unpacks_to_anything_is_refused(kind: str, tmp_path: Path) -> None:
    """One row of zeros: some hundred bytes for each hundred megabytes."""
    pytest.importorskip("pyarrow")
    path, count = tmp_path / f"t.{kind}", 1 << 25
    subprocess.run([sys.executable, "-c", WRITE, path, str(count)], check=True, timeout=60)
    assert path.stat().st_size < 1 << 16
    # In processes of their own: what other tests freed, this one still has.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", READ, path, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == f"'{path}' is not a readable table\nread\n", done.stderr


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "most").write_text("1234567\n")
    (tmp_path / "none").write_text("max\n")
    whole = room.memory.__wrapped__
    monkeypatch.setattr(room, "_CONTAINER", (str(tmp_path / "none"), str(tmp_path / "not there")))
    free = whole()
    monkeypatch.setattr(room, "_CONTAINER", (str(tmp_path / "none"), str(tmp_path / "most")))
    assert whole() == 1234567 < free


class Untold(ImportError):
    """For whose text nothing is left."""

    def __str__(self) -> str:
        raise MemoryError


@pytest.mark.parametrize(
    ("error", "of_memory"),
    [
        (ImportError("array.so: cannot create shared object descriptor"), True),
        (ImportError("libffi.so.8: failed to map segment from shared object"), True),
        (OSError("/lib/libm.so.6: cannot create scope list"), True),
        (SystemError("<built-in> returned NULL without setting an exception"), True),
        (Untold(), True),
        (ImportError("libgone.so: cannot open shared object file: No such file or directory"), False),
    ],
)
def test_want_of_memory_is_told_by_its_words(error: Exception, of_memory: bool) -> None:
    assert is_of_memory(error) == of_memory
    behind = ValueError()
    behind.__cause__ = error
    assert is_of_memory(behind) == of_memory


BEGIN = """
import resource, sys
sys.path[:0] = sys.argv.pop(1).split(",")
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv.pop(1)) << 20,) * 2)
from onnxq.__main__ import run
run()
"""


@pytest.mark.sweep
@linux
@pytest.mark.parametrize("megabytes", [20, 60, 180, 220, 300])
def test_memory_that_ends_while_modules_are_read_is_told(megabytes: int, tmp_path: Path) -> None:
    """Wherever it ends; OpenBLAS and the C library say so themselves where they were at work, and end the process or
    interrupt it."""
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path)
    np.savez(tmp_path / "data.npz", x=tiny.normal(8, 1, 64))
    words = ["quantize", "model.onnx", "-s", "w8a8", "--data", "data.npz", "--no-check", "-o", "out.onnx"]
    command = [sys.executable, "-c", BEGIN, ",".join(filter(None, sys.path)), str(megabytes), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    said = done.stderr.splitlines()
    assert "Traceback" not in done.stderr and "bug in onnxq" not in done.stderr
    if done.returncode:
        assert done.returncode in (1, 70, 130, 137) and said, done  # 70: a library crashed, and the sentence says so
        assert all(line.startswith(("onnxq: ", *OF_LIBRARIES)) for line in said), said
        assert not (tmp_path / "out.onnx").exists()
