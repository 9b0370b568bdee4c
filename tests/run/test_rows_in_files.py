"""Arrays in large files are read sample by sample: the same numbers, in the memory of one sample."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.runtime.session import Feed, Input
from onnxq.samples import rows_in_files
from onnxq.samples.arrays import read_files
from onnxq.samples.fit import Label, fit

DTYPES = st.sampled_from([np.float32, np.float16, np.int64, np.uint8, ">f4", np.bool_, "<U3"])


def read(path: Path, inputs: tuple[Input, ...]) -> list[Feed]:
    return [fit(sample(), inputs, "here") for sample in read_files([path], inputs)]


def one_by_one(path: Path, inputs: tuple[Input, ...]) -> list[Feed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_in_files, "LARGE", 0)
        return read(path, inputs)


def input_of(array: NDArray, *, counts: bool) -> tuple[int | str | None, ...]:
    """A shape that takes `array` as samples along its first axis, or in pieces of it."""
    return array.shape[1:] if counts else ("n", *array.shape[1:])


@given(data=st.data(), kind=st.sampled_from([".npy", "stored", "packed", "by columns"]))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_samples_are_those_of_the_whole_file(data: st.DataObject, kind: str, tmp_path: Path) -> None:
    shape = arrays.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)
    x = data.draw(arrays.arrays(data.draw(DTYPES), shape))
    counts = data.draw(st.booleans())
    if kind == "by columns":
        x = np.asfortranarray(x)
    inputs: tuple[Input, ...] = (Input("x", x.dtype.newbyteorder("="), input_of(x, counts=counts)),)
    path = tmp_path / ("a.npy" if kind == ".npy" else "a.npz")
    if kind == ".npy":
        np.save(path, x)
    else:
        labels = np.arange(len(x))
        inputs += (Label("labels", labels.dtype, None),)
        (np.savez_compressed if kind == "packed" else np.savez)(path, x=x, labels=labels)
    expected, found = read(path, inputs), one_by_one(path, inputs)
    assert len(found) == len(expected) == len(x)
    for ours, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            assert ours[name].dtype == value.dtype and ours[name].shape == value.shape
            assert ours[name].tobytes() == value.tobytes()


def test_memory_is_that_of_one_sample(tmp_path: Path) -> None:
    x = np.arange(64 << 18, dtype=np.float32).reshape(64, 1 << 18)
    path = tmp_path / "a.npz"
    np.savez(path, x=x)
    assert path.stat().st_size >= rows_in_files.LARGE
    inputs = (Input("x", np.dtype(np.float32), ("n", 1 << 18)),)
    tracemalloc.start()
    for i, sample in enumerate(read_files([path], inputs)):
        assert np.array_equal(fit(sample(), inputs, "here")["x"], x[i : i + 1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_what_is_damaged_is_told(tmp_path: Path) -> None:
    x, inputs = np.arange(64, dtype=np.float32).reshape(8, 8), (Input("x", np.dtype(np.float32), ("n", 8)),)
    path = tmp_path / "a.npz"
    np.savez(path, x=x)
    whole = path.read_bytes()
    at = whole.index(x.tobytes())
    for damaged in (
        whole[:at] + b"\xff" + whole[at + 1 :],  # which the archive's own sum tells
        whole[: at + 40],
        whole[:2] + b"??" + whole[4:],
        b"",
    ):
        path.write_bytes(damaged)
        with pytest.raises(BadData, match=r"a\.npz' cannot be read"):
            one_by_one(path, inputs)
    path = tmp_path / "b.npy"
    np.save(path, x)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadData, match="its header declares 256 bytes of numbers, the file holds 252"):
        one_by_one(path, inputs)


def test_an_archive_of_other_things_is_no_data(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", "hello")
    with pytest.raises(BadData, match="does not begin with the header of an array"):
        one_by_one(tmp_path / "a.npz", (Input("x", np.dtype(np.float32), ("n", 8)),))


def test_a_file_that_becomes_shorter_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_in_files, "LARGE", 0)
    path, inputs = tmp_path / "a.npy", (Input("x", np.dtype(np.float32), ("n", 8)),)
    np.save(path, np.zeros((8, 8), np.float32))
    first, *rest = read_files([path], inputs)
    fit(first(), inputs, "here")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadData, match=r"a\.npy' cannot be read: it has become shorter"):
        fit(rest[-1](), inputs, "here")


def archive_of(path: Path, members: list[tuple[str, bytes]], *, packed: bool = False) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(name, data)


def bytes_of(x: NDArray) -> bytes:
    written = io.BytesIO()
    np.save(written, x)
    return written.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", [read, one_by_one])
def test_archives_hold_nothing_twice(way: Callable[..., list[Feed]], packed: bool, tmp_path: Path) -> None:
    """A short file could hold one array any number of times, by one name or by many."""
    x, inputs = bytes_of(np.ones((2, 8), np.float32)), (Input("x", np.dtype(np.float32), ("n", 8)),)
    path = tmp_path / "a.npz"
    archive_of(path, [("x.npy", x)] * 3, packed=packed)
    with pytest.raises(BadData, match="it holds 'x' 3 times"):
        way(path, inputs)
    archive_of(path, [("x.npy", x), ("x", x)], packed=packed)
    with pytest.raises(BadData, match="it holds 'x' 2 times"):
        way(path, inputs)


def test_members_that_share_bytes_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    archive_of(path, [(f"{i}.npy", bytes_of(np.ones((200, 8), np.float32))) for i in range(8)])
    with zipfile.ZipFile(path) as archive:
        begin, second = archive.start_dir, archive.infolist()[1].header_offset
    raw = path.read_bytes()
    (tmp_path / "b.npz").write_bytes(raw[:second] + moved(raw[begin:], second))
    for way in (read, one_by_one):
        with pytest.raises(BadData, match="cannot be read"):
            way(tmp_path / "b.npz", (Input("x", np.dtype(np.float32), ("n", 8)),))


def moved(directory: bytes, begin: int) -> bytes:
    """A table of contents whose entries all lead to the first member, and where it is now."""
    entries, at = bytearray(directory), 0
    while entries[at : at + 4] == b"PK\1\2":
        entries[at + 42 : at + 46] = bytes(4)
        at += 46 + sum(struct.unpack_from("<HHH", entries, at + 28))
    entries[at + 16 : at + 20] = struct.pack("<I", begin)
    return bytes(entries)


def test_a_member_of_two_lengths_is_damaged(tmp_path: Path) -> None:
    x = np.ones((4, 8), np.float32)
    path = tmp_path / "a.npz"
    archive_of(path, [("x.npy", bytes_of(x))])
    raw = path.read_bytes()
    at = raw.rindex(b"PK\1\2")
    (length,) = struct.unpack_from("<I", raw, at + 24)
    path.write_bytes(raw[: at + 24] + struct.pack("<I", length - 32) + raw[at + 28 :])
    for way in (read, one_by_one):
        with pytest.raises(BadData, match=r"'x\.npy' has two lengths"):
            way(path, (Input("x", np.dtype(np.float32), ("n", 8)),))


@pytest.mark.parametrize(("shape", "dtype"), [((1 << 36, 0), np.float32), ((1 << 30, 64), "<U0")])
def test_samples_of_nothing_have_an_end(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        )
    inputs = (Input("x", np.dtype(dtype), ("n", None)),)
    for way in (read, one_by_one):
        with pytest.raises(BadData, match=rf"holds {shape[0]} samples; give 16777216 at most"):
            way(path, inputs)
