"""Cases of tables of a few hundred bytes that say they hold more than any machine (`every.py`)."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny
from attack.hostile import CALIBRATE, Hostile

ROW, ROWS = [float(i) for i in range(64)], 2000
BIG = 1 << 40


def _model(folder: Path) -> None:
    tiny.save(tiny.model("g (float[1, 64] x) => (y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), folder)


def _in_arrow(column: Callable[[Any], Any]) -> Callable[[Path], list[str]]:
    """A table of one column, as an Arrow file."""

    def make(folder: Path) -> list[str]:
        import pyarrow
        from pyarrow import ipc

        _model(folder)
        batch = pyarrow.record_batch([column(pyarrow)], names=["x"])
        options = ipc.IpcWriteOptions(allow_64bit=True)
        with ipc.new_file(str(folder / "t.arrow"), batch.schema, options=options) as file:
            file.write_batch(batch)
        return [*CALIBRATE, "t.arrow"]

    return make


def _repeated(arrow: Any) -> Any:
    """One row, 2^62 times."""
    return arrow.RunEndEncodedArray.from_arrays(arrow.array([1 << 62], arrow.int64()), arrow.array([ROW]))


def _nothing(arrow: Any) -> Any:
    return arrow.Array.from_buffers(arrow.null(), BIG, [None])


def _claim(folder: Path) -> list[str]:
    """Compressed buffers begin with the length that they unpack to."""
    import pyarrow
    from pyarrow import feather

    _model(folder)
    feather.write_feather(pyarrow.table({"x": pyarrow.array([ROW] * ROWS)}), folder / "t.feather", compression="lz4")
    raw, claims = bytearray((folder / "t.feather").read_bytes()), 0
    for at in range(0, len(raw) - 8, 8):
        if struct.unpack_from("<q", raw, at)[0] in (8 * 64 * ROWS, 4 * (ROWS + 1)):
            struct.pack_into("<q", raw, at, BIG)
            claims += 1
    assert claims
    (folder / "t.feather").write_bytes(raw)
    return [*CALIBRATE, "t.feather"]


def _deep(folder: Path) -> list[str]:
    """What the `datasets` library notes of its columns, nested without end."""
    import pyarrow
    from pyarrow import parquet

    _model(folder)
    table = pyarrow.table({"x": pyarrow.array([ROW] * 8)})
    parquet.write_table(table.replace_schema_metadata({b"huggingface": b"[" * 100_000}), folder / "t.parquet")
    return [*CALIBRATE, "t.parquet"]


CASES: dict[str, Hostile] = {}
if importlib.util.find_spec("pyarrow"):
    CASES = {
        "buffer that says it unpacks to a terabyte": Hostile(_claim, "is not a readable table"),
        "row that is there 2^62 times": Hostile(_in_arrow(_repeated), "", code=0),
        "a trillion rows of nothing": Hostile(_in_arrow(_nothing), "'x' has shape [1, 1], the model expects [1, 64]"),
        "notes on columns nested without end": Hostile(_deep, "", code=0),
    }
