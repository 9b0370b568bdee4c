"""Calibration data: what each source yields, and one sentence for everything that cannot be used."""

from __future__ import annotations

import errno
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.errors import BadData, MissingRuntime
from onnxq.runtime.session import Input
from onnxq.samples.pictures.images import Preprocessing
from onnxq.samples.reading import reading_of
from onnxq.samples.source import DataSource, open_data

F32 = np.dtype(np.float32)
X = (Input("x", F32, (None, 3)),)
IMAGE = (Input("image", F32, (1, 3, 4, 6)),)


def of_type(dtype: type | str) -> tuple[Input, ...]:
    return (Input("x", np.dtype(dtype), (None,)),)


def samples(source: DataSource, inputs: tuple[Input, ...] = X) -> list[dict[str, NDArray]]:
    return list(open_data(source, inputs))


def save(path: Path, **arrays: NDArray) -> Path:
    np.savez(path, **arrays)
    return path


def counting(*shape: int) -> NDArray[np.float32]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("wanted", "given", "cut"),
    [
        pytest.param((None, 3), (5, 3), (5, 1, 3), id="free axis: one row a sample"),
        pytest.param(("batch", 3), (5, 3), (5, 1, 3), id="symbolic axis: one row a sample"),
        pytest.param((1, 3), (5, 3), (5, 1, 3), id="fixed at 1"),
        pytest.param((2, 3), (6, 3), (3, 2, 3), id="fixed at 2: two rows a sample"),
        pytest.param((None, 3), (5, 4, 3), (5, 4, 3), id="one axis more counts samples"),
        pytest.param((), (5,), (5,), id="scalars"),
        pytest.param((), (), (1,), id="one scalar"),
        pytest.param((None, None), (4, 0), (4, 1, 0), id="empty second axis"),
        pytest.param(None, (5, 3), (5, 1, 3), id="any rank"),
    ],
)
def test_arrays_are_cut_into_samples(
    tmp_path: Path, wanted: tuple[int | str | None, ...] | None, given: tuple[int, ...], cut: tuple[int, ...]
) -> None:
    x = counting(*given)
    found = samples(save(tmp_path / "d.npz", x=x), (Input("x", F32, wanted),))
    assert [sample["x"].shape for sample in found] == [cut[1:]] * cut[0]
    np.testing.assert_array_equal(np.stack([sample["x"] for sample in found]), x.reshape(cut))


def test_every_array_is_cut_alike(tmp_path: Path) -> None:
    inputs = (*X, Input("ids", np.dtype(np.int64), (None,)))
    path = save(tmp_path / "d.npz", x=counting(4, 3), ids=np.arange(4))
    found = samples(path, inputs)
    assert [sample["ids"].tolist() for sample in found] == [[0], [1], [2], [3]]
    assert [sample["x"][0, 0] for sample in found] == [0, 3, 6, 9]


def test_arrays_whose_first_axes_disagree_are_one_sample(tmp_path: Path) -> None:
    inputs = (*X, Input("scale", F32, ()))
    (only,) = samples(save(tmp_path / "d.npz", x=counting(4, 3), scale=np.float32(2)), inputs)
    assert only["x"].shape == (4, 3)
    assert only["scale"] == 2


def test_counts_of_samples_must_agree(tmp_path: Path) -> None:
    inputs = (*X, Input("y", F32, (None, 3)))
    with pytest.raises(BadData, match="the arrays hold different numbers of samples: 'x' 4, 'y' 5"):
        samples(save(tmp_path / "d.npz", x=counting(4, 1, 3), y=counting(5, 1, 3)), inputs)


def test_npy_is_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", counting(2, 3))
    assert [sample["x"].tolist() for sample in samples(tmp_path / "d.npy")] == [[[0, 1, 2]], [[3, 4, 5]]]
    with pytest.raises(BadData, match=r"is one array, but the model has 2 inputs; use .npz: x, y"):
        samples(tmp_path / "d.npy", (*X, Input("y", F32, (None,))))


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name, value in (("b", 2), ("a", 1), ("c", 3)):
        save(tmp_path / f"{name}.npz", x=np.full((2, 3), value, np.float32))
    (tmp_path / "notes.txt").write_text("not data")
    assert [sample["x"][0, 0] for sample in samples(tmp_path)] == [1, 1, 2, 2, 3, 3]


def test_a_function_is_called_anew_for_each_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import numpy as np\ndef rows():\n    for i in range(3):\n        yield {'x': np.full((1, 3), i, 'f4')}\n"
    (tmp_path / "my_rows.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    data = open_data("my_rows:rows", X)
    for _ in range(2):
        assert [sample["x"][0, 0] for sample in data] == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.float64, np.float32),
        (np.float16, np.float32),
        (np.int64, np.float32),
        (np.int64, np.int32),
        (bool, np.int64),
        (np.uint8, np.int8),
        (np.int64, bool),
        (np.float32, ml_dtypes.bfloat16),
        (ml_dtypes.bfloat16, np.float32),
    ],
)
def test_numbers_are_converted(given: type, wanted: type) -> None:
    (sample,) = samples([{"x": np.array([0, 1], given)}], of_type(wanted))
    assert sample["x"].dtype == wanted
    assert sample["x"].tolist() == [0, 1]


def test_infinities_and_missing_values_stay() -> None:
    (sample,) = samples([{"x": np.array([-np.inf, 1, np.nan])}], of_type(np.float16))
    np.testing.assert_array_equal(sample["x"], [-np.inf, 1, np.nan])


@pytest.mark.parametrize(
    ("x", "wanted", "message"),
    [
        (counting(1, 4), "<f4", r"sample 0: 'x' has shape \[1, 4\], the model expects \[\?, 3\]"),
        (counting(3), "<f4", r"sample 0: 'x' has shape \[3\], the model expects \[\?, 3\]"),
        (np.ones((1, 3), complex), "<f4", "sample 0: 'x' has type complex128, the model expects float32"),
        (np.ones((1, 3), "f4,f4"), "<f4", "sample 0: 'x' has type .*, the model expects float32"),
        (np.array([["a", "b", "c"]]), "<f4", "sample 0: 'x' has type text, the model expects float32"),
        (np.ones((1, 3)), "<i8", "sample 0: 'x' has type float64, the model expects int64"),
        (np.array([[0, 0, 2**40]]), "<i4", r"holds 1099511627776 at \[0, 2\], which does not fit int32"),
        (np.array([[0, -1, 0]]), "<u8", r"holds -1 at \[0, 1\], which does not fit uint64"),
        (np.array([[0, 0, 1e300]]), "<f4", r"holds 1e\+300 at \[0, 2\], which does not fit float32"),
    ],
    ids=["width", "rank", "complex", "record", "text", "float for int", "int64", "negative", "overflow"],
)
def test_what_does_not_fit_is_said(x: NDArray, wanted: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        samples([{"x": x}], (Input("x", np.dtype(wanted), (None, 3)),))


@pytest.mark.parametrize(
    ("x", "wanted", "message"),
    [
        (counting(3), (None, 3), r"'x' has shape \[3\], the model expects \[\?, 3\], or one axis more"),
        (counting(5, 3), (2, 3), r"'x' has shape \[5, 3\], the model expects \[2, 3\]: 5 is not a multiple of 2"),
        (counting(1, 3), ("rows", 2), r"'x' has shape \[1, 3\], the model expects \[rows, 2\]"),
        (counting(0, 3), (None, 3), "holds no samples"),
    ],
    ids=["rank", "remainder", "width", "empty"],
)
def test_shapes_in_a_file(tmp_path: Path, x: NDArray, wanted: tuple[int | str | None, ...], message: str) -> None:
    with pytest.raises(BadData, match=message):
        samples(save(tmp_path / "d.npz", x=x), (Input("x", F32, wanted),))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x"], "the samples lack y; the model's inputs are x, y"),
        (["x", "y", "label"], "the samples have label, which is no input; the model's inputs are x, y"),
        ([], "the samples lack x, y; the model's inputs are x, y"),
    ],
    ids=["missing", "unknown", "none"],
)
def test_names(tmp_path: Path, names: list[str], message: str) -> None:
    inputs = (*X, Input("y", F32, (None, 3)))
    arrays = dict.fromkeys(names, counting(2, 3))
    for source in (save(tmp_path / "d.npz", **arrays), [arrays]):
        with pytest.raises(BadData, match=message):
            samples(source, inputs)


def damaged_files(folder: Path) -> dict[str, Path]:
    good = save(folder / "good.npz", x=counting(400, 3)).read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 0xFF
    contents = {"empty.npz": b"", "text.npz": b"hello", "cut.npz": good[:-100], "flipped.npz": bytes(flipped)}
    contents |= {"empty.npy": b"", "text.npy": b"hello", "zip.npy": good}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with zipfile.ZipFile(folder / "other.npz", "w") as file:
        file.writestr("x", b"not an array")
    return {name: folder / name for name in (*contents, "other.npz")}


def test_damaged_files(tmp_path: Path) -> None:
    for name, path in damaged_files(tmp_path).items():
        with pytest.raises(BadData, match=f"{name}' cannot be read: "):
            samples(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_pickled_objects_are_never_loaded(tmp_path: Path, suffix: str) -> None:
    path, x = tmp_path / f"d{suffix}", np.array([{1: 2}], object)
    if suffix == ".npy":
        np.save(path, x, allow_pickle=True)
    else:
        save(path, x=x)
    with pytest.raises(BadData, match=f"d{suffix}' cannot be read: it holds pickled Python objects, not numbers"):
        samples(path)


def fails() -> None:
    raise KeyError("secret")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "the given samples holds no samples"),
        ([3], "the given samples yields 3, not a dict of arrays"),
        ([None], "the given samples yields None, not a dict of arrays"),
        ([{"x": [[1, 2], [3]]}], "the given samples failed with ValueError"),
        (3, "is of type int, neither a list of dicts nor a function"),
        (lambda: None, "the given samples gave None, neither a list of dicts nor a generator of them"),
        (fails, "the given samples failed with KeyError: 'secret'"),
        (
            "no_such_module_:f",
            "--data 'no_such_module_:f' failed with ModuleNotFoundError: No module named 'no_such_module_'",
        ),
        ("math:nothing", "--data 'math:nothing': 'math' has no 'nothing'"),
        ("math:pi", "--data 'math:pi' is not a function"),
        (":f", "--data ':f' is not spelled module:function"),
        ("nothing.npz", "the calibration data 'nothing.npz': no such file"),
        ("nothing.xyz", "--data 'nothing.xyz' is neither a file of a known kind .*, nor a folder, nor module:function"),
    ],
    ids=[
        "empty",
        "numbers",
        "no-sample",
        "ragged",
        "number",
        "None",
        "raises",
        "no-module",
        "no-function",
        "no-call",
        "no-name",
        "npz",
        "unknown",
    ],
)
def test_sources_that_yield_nothing(source: DataSource, message: str) -> None:
    with pytest.raises(BadData, match=message):
        samples(source)


def test_folders_that_yield_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"holds no arrays .*, images, sounds, texts or tables"):
        samples(tmp_path)
    save(tmp_path / "d.npz", x=counting(1, 3))
    (tmp_path / "i.png").write_bytes(b"")
    with pytest.raises(BadData, match="holds both arrays and images; give one kind"):
        samples(tmp_path)


def test_a_folder_below_that_cannot_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of images that is somebody else's would be missing in what is found, without a word."""
    for name in ("cats", "dogs", ".cache"):
        (tmp_path / name).mkdir()
        save(tmp_path / name / "d.npz", x=counting(1, 3))
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name in ("dogs", ".cache"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(BadData, match=r"the folder '.*dogs' cannot be read: Permission denied"):
        samples(tmp_path)
    (tmp_path / "dogs" / "d.npz").unlink()
    (tmp_path / "dogs").rmdir()
    assert len(samples(tmp_path)) == 1


def test_count_and_hash() -> None:
    rows = [{"x": counting(1, 3) + i} for i in range(5)]
    data, same = open_data(rows, X), open_data(lambda: rows, X)
    assert data.count == same.count == 5
    assert data.hash() == same.hash()
    others = [rows[:4], rows[::-1], [{"x": row["x"] + 1e-6} for row in rows]]
    assert len({open_data(other, X).hash() for other in others} | {data.hash()}) == 4
    assert open_data(rows, X).limited(2).count == 2
    assert open_data(rows, X).limited(None).count == 5


def test_strings_are_hashed_by_their_text() -> None:
    text = Input("x", np.dtype(np.object_), (1,))
    first, same, other = (
        open_data([{"x": np.array([f"{word}, at length"], object)}], (text,)).hash() for word in ("one", "one", "two")
    )
    assert first == same != other


@pytest.mark.parametrize("save", [np.save, np.savez_compressed])
def test_counting_reads_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable) -> None:
    path = tmp_path / ("x.npy" if save is np.save else "x.npz")
    save(path, **({"arr": counting(5, 3)} if save is np.save else {"x": counting(5, 3)}))
    monkeypatch.setattr(np, "load", None)
    assert open_data(path, X).count == 5


@pytest.mark.parametrize("count", [1, 2, 3, 8, 40, 200])
@pytest.mark.parametrize("held_back", [0, 1, 8])
def test_split(count: int, held_back: int) -> None:
    data = open_data([{"x": np.full((1, 3), i, np.float32)} for i in range(count)], X)
    rest, held = ([int(s["x"][0, 0]) for s in part] for part in data.split(held_back))
    if count == 1 or held_back == 0:
        assert rest == held == list(range(count))
    else:
        assert sorted(rest + held) == list(range(count))
        assert len(held) == min(held_back, max(1, count // 4))
    assert [part.count for part in data.split(held_back)] == [len(rest), len(held)]
    assert {part.hash() for part in data.split(held_back)} == {data.hash()}


def test_shards_are_all_samples_and_each_once() -> None:
    data = open_data([{"x": np.full((1, 3), i, np.float32)} for i in range(11)], X)
    shards = [data.shard(number, 4) for number in (1, 2, 3, 4)]
    numbers = [[int(s["x"][0, 0]) for s in shard] for shard in shards]
    assert sorted(i for each in numbers for i in each) == list(range(11))
    assert [shard.count for shard in shards] == [len(each) for each in numbers] == [3, 3, 3, 2]
    assert {shard.hash() for shard in shards} == {data.hash()}
    assert [int(s["x"][0, 0]) for s in shards[1].after(1)] == numbers[1][1:]


def test_samples_that_are_skipped_are_not_read(tmp_path: Path) -> None:
    """Neither counting nor hashing nor going on behind some samples decodes an image."""
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(b"no image")
    inputs = (Input("x", np.dtype(np.float32), (1, 3, 8, 8)),)
    data = open_data(tmp_path, inputs, Preprocessing())
    assert (data.count, data.limited(2).count, data.limited(2, seed=1).count, data.shard(1, 3).count) == (4, 2, 2, 2)
    assert len({data.hash(), data.limited(2).hash(), data.limited(2, 1).hash(), data.limited(2, 2).hash()}) == 4
    assert data.limited(4).hash() == data.limited(9).hash() == data.hash()
    assert list(data.after(4)) == []
    with pytest.raises(BadData, match=r"2\.png' is not a readable image"):
        next(data.after(2))


def test_a_limit_does_not_exhaust_a_function() -> None:
    def endless() -> Iterator[dict[str, NDArray]]:
        while True:
            yield {"x": np.zeros((1, 3), np.float32)}

    data = open_data(endless, X).limited(5)
    assert data.count == 5 and data.hash()
    assert data.shard(2, 2).count == 2


@pytest.mark.parametrize(
    ("module", "name", "how", "sentence"),
    [
        ("PIL", "d.png", "size=4", r"reading images needs Pillow: pip install 'onnxq\[images\]'"),
        ("tokenizers", "d.txt", None, r"reading texts needs the tokenizers library: pip install 'onnxq\[text\]'"),
        ("soundfile", "d.wav", "rate=16000", r"reading sounds needs soundfile: pip install 'onnxq\[audio\]'"),
        ("pyarrow", "d.csv", None, r"reading tables needs pyarrow: pip install 'onnxq\[tables\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, how: str | None, sentence: str
) -> None:
    for found in [key for key in sys.modules if key.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, found)
    monkeypatch.setitem(sys.modules, module, None)
    for each in (name, "tokenizer.json"):
        (tmp_path / each).write_bytes(b"x")
    inputs = (Input("input_ids", np.dtype(np.int64), (1, 4)),) if name == "d.txt" else IMAGE if name == "d.png" else X
    with pytest.raises(MissingRuntime, match=sentence):
        list(open_data(tmp_path / name, inputs, reading_of(how, tmp_path / "tokenizer.json")))
