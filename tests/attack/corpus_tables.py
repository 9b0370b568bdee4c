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


def _varint(number: int) -> bytes:
    """A number as Thrift's compact protocol has it, of which the footer and the headers of pages consist."""
    rest, made = ((number << 1) ^ (number >> 63)) % (1 << 64), bytearray()
    while True:
        made.append(rest & 127 | (128 if rest > 127 else 0))
        rest >>= 7
        if not rest:
            return bytes(made)


def _saying_rows(rows: int) -> Callable[[Path], list[str]]:
    """A table whose footer says another number of rows wherever it says one."""

    def make(folder: Path) -> list[str]:
        import pyarrow
        from pyarrow import parquet

        _model(folder)
        table = pyarrow.table({"x": pyarrow.array([ROW] * ROWS)})
        parquet.write_table(table, folder / "t.parquet", use_dictionary=False, write_statistics=False)
        raw = (folder / "t.parquet").read_bytes()
        size = int.from_bytes(raw[-8:-4], "little")
        foot = raw[-8 - size : -8]
        assert foot.count(_varint(ROWS)) >= 2
        foot = foot.replace(_varint(ROWS), _varint(rows))
        (folder / "t.parquet").write_bytes(raw[: -8 - size] + foot + len(foot).to_bytes(4, "little") + b"PAR1")
        return [*CALIBRATE, "t.parquet"]

    return make


def _saying_page(field: int, number: int) -> Callable[[Path], list[str]]:
    """A page that says to unpack to, to be packed in, or to hold (fields 2, 3 and 5) so much."""

    def make(folder: Path) -> list[str]:
        import pyarrow
        from pyarrow import parquet

        _model(folder)
        column, path = pyarrow.array([0.0] * 23457), folder / "t.parquet"
        parquet.write_table(pyarrow.table({"x": column}), path, use_dictionary=False, compression="zstd")
        raw = bytearray(path.read_bytes())
        at, places = 4, {}
        for each in (1, 2, 3):
            assert raw[at] == 0x15  # the next field, an int32
            end = next(i for i in range(at + 1, len(raw)) if raw[i] < 128) + 1
            places[each], at = (at + 1, end), end
        assert raw[at] in (0x2C, 0x3C) or raw[at] & 15 in (5, 12)
        while raw[at] & 15 == 5:  # a check sum
            at = next(i for i in range(at + 1, len(raw)) if raw[i] < 128) + 1
        places[5] = (at + 2, next(i for i in range(at + 2, len(raw)) if raw[i] < 128) + 1)
        begin, end = places[field]
        # As many bytes as before, so that everything behind stays where it is.
        said = bytes((number * 2 >> 7 * i) & 127 | (128 if i < end - begin - 1 else 0) for i in range(end - begin))
        raw[begin:end] = said
        path.write_bytes(raw)
        return [*CALIBRATE, "t.parquet"]

    return make


def _row_of(count: int) -> Callable[[Path], list[str]]:
    """One row of zeros, of which some hundred bytes unpack to any number."""

    def make(folder: Path) -> list[str]:
        import numpy as np
        import pyarrow
        from pyarrow import parquet

        _model(folder)
        zeros = pyarrow.array(np.zeros(count, np.float32))
        row = pyarrow.ListArray.from_arrays(pyarrow.array([0, count], pyarrow.int32()), zeros)
        parquet.write_table(pyarrow.table({"x": row}), folder / "t.parquet", compression="zstd")
        assert (folder / "t.parquet").stat().st_size < 1 << 12
        return [*CALIBRATE, "t.parquet"]

    return make


CASES: dict[str, Hostile] = {}
if importlib.util.find_spec("pyarrow"):
    CASES = {
        "buffer that says it unpacks to a terabyte": Hostile(_claim, "is not a readable table"),
        "row that is there 2^62 times": Hostile(_in_arrow(_repeated), "", code=0),
        "a trillion rows of nothing": Hostile(_in_arrow(_nothing), "'x' has shape [1, 1], the model expects [1, 64]"),
        "table that says it has 2^62 rows": Hostile(_saying_rows(1 << 62), "", code=0),
        "table that says it has fewer rows than none": Hostile(_saying_rows(-1), "is not a readable table"),
        "page that says it unpacks to much more": Hostile(_saying_page(2, (1 << 20) - 1), "is not a readable table"),
        "page that says it is packed in nothing": Hostile(_saying_page(3, 0), "is not a readable table"),
        "page that says it holds a million numbers": Hostile(_saying_page(5, (1 << 20) - 1), "is not a readable table"),
        "row of 64 MB in a few hundred bytes": Hostile(_row_of(1 << 24), "'x' has shape [1, 16777216]"),
        "notes on columns nested without end": Hostile(_deep, "", code=0),
    }
