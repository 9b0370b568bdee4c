"""What a small file unpacks to has an end, which is a sentence, and nothing of that end is left afterwards."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from onnxq.errors import BadData
from onnxq.files import room
from onnxq.samples import columns

WRITE = """
import sys, numpy as np, pyarrow as pa
from pyarrow import feather, parquet
path, count = sys.argv[1], int(sys.argv[2])
row = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.array(np.zeros(count, np.float32)))
write = parquet.write_table if path.endswith("parquet") else feather.write_feather
write(pa.table({"x": row}), path, compression="zstd")
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="a limit that only Linux keeps to")
MB = 1 << 20


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


@linux
@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_a_table_that_unpacks_to_anything_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of zeros: some hundred bytes for each hundred megabytes."""
    arrow = pytest.importorskip("pyarrow")
    path, count = tmp_path / f"t.{kind}", 1 << 25
    # In a process of its own: what it frees, this one would still have.
    subprocess.run([sys.executable, "-c", WRITE, path, str(count)], check=True, timeout=60)
    assert path.stat().st_size < 1 << 16
    monkeypatch.setattr(room, "SHARE", 1 << 40)
    monkeypatch.setattr(room, "LEAST", 100 * MB)
    pool = arrow.default_memory_pool()
    arrow.set_memory_pool(arrow.system_memory_pool())  # others have a gigabyte in reserve
    with pytest.raises(BadData, match=f"t.{kind}' is not a readable table"):
        next(columns.batches(path))
    arrow.set_memory_pool(pool)
    monkeypatch.undo()
    (batch,) = columns.batches(path)
    assert len(batch.column("x")[0]) == count


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "most").write_text("1234567\n")
    (tmp_path / "none").write_text("max\n")
    whole = room.memory.__wrapped__
    monkeypatch.setattr(room, "_CONTAINER", (str(tmp_path / "none"), str(tmp_path / "not there")))
    free = whole()
    monkeypatch.setattr(room, "_CONTAINER", (str(tmp_path / "none"), str(tmp_path / "most")))
    assert whole() == 1234567 < free
