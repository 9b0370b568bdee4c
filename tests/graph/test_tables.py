"""CSV, Parquet, Arrow and `datasets` folders: columns become inputs, a row a sample, a batch of rows at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.runtime.session import Input
from onnxq.samples.pictures.images import Preprocessing
from onnxq.samples.reading import reading_of
from onnxq.samples.source import open_data
from onnxq.samples.tables import table

pa = pytest.importorskip("pyarrow")
F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
TWO = (Input("a", F32, (None, 3)), Input("n", I64, (None,)))
ROW = (Input("x", F32, (None, 3)),)
IMAGE = (Input("pixel_values", F32, (None, 3, 4, 4)),)


def write(table: Any, file: Path) -> Path:
    import pyarrow.feather
    import pyarrow.parquet

    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file, row_group_size=7)
    elif file.suffix == ".feather":
        pyarrow.feather.write_feather(table, file)
    else:
        make = pa.ipc.new_stream if file.name.startswith("data-") else pa.ipc.new_file
        with pa.OSFile(str(file), "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table)
    return file


def numbers(count: int = 20) -> NDArray:
    return np.arange(3.0 * count).reshape(count, 3)


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.arrow", "data-00000-of-00001.arrow"])
def test_columns_are_inputs(tmp_path: Path, name: str) -> None:
    table = pa.table({"a": numbers().tolist(), "n": np.arange(20), "other": ["x"] * 20})
    data = open_data(write(table, tmp_path / name), TWO)
    assert data.count == 20
    np.testing.assert_array_equal(np.concatenate([s["a"] for s in data]), numbers())
    assert [s["n"].tolist() for s in data] == [[i] for i in range(20)]
    assert next(data.after(13))["n"] == [13]


def test_lists_in_lists_and_flat_ones(tmp_path: Path) -> None:
    cube = np.arange(24.0).reshape(2, 3, 4)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(24.0)), 12)
    table = pa.table({"a": cube.tolist(), "b": fixed})
    inputs = (Input("a", F32, (None, 3, 4)), Input("b", F32, (1, 1, 3, 4)))
    found = list(open_data(write(table, tmp_path / "t.parquet"), inputs))
    np.testing.assert_array_equal(np.concatenate([s["a"] for s in found]), cube)
    np.testing.assert_array_equal(np.concatenate([s["b"][0] for s in found]), cube)


@pytest.mark.parametrize("first", ["0", "", "NA", "true", "nan"])
def test_a_column_is_not_only_what_its_first_cells_are(tmp_path: Path, first: str) -> None:
    """Whole numbers, or nothing, for a megabyte, and something else then."""
    (tmp_path / "t.csv").write_text("p,q,r\n" + f"{first},1,2\n" * 300_000 + "0.5,0.25,2\n")
    data = open_data(tmp_path / "t.csv", ROW)
    found = [next(iter(data))["x"][0, 0], *next(data.after(300_000))["x"][0]]
    np.testing.assert_array_equal(found, [{"0": 0, "true": 1}.get(first, np.nan), 0.5, 0.25, 2])
    (tmp_path / "t.csv").write_text("p,q,r\n" + f"{first},1,2\n" * 300_000 + "0.5,a b,2\n")
    with pytest.raises(BadData, match=r"t\.csv', row 300000: 'q' is 'a b', and 'x' takes numbers"):
        next(open_data(tmp_path / "t.csv", ROW).after(300_000))


def test_a_text_may_have_line_breaks_wherever_it_is(tmp_path: Path) -> None:
    """Behind the first megabyte too, and where the pieces of a row are rows of as many cells."""
    head, rows = "p,q,r,note,label\n", [f'{i},1,2,"{{}}",4\n' for i in range(60_000)]
    (tmp_path / "t.csv").write_text(head + "".join(row.format("a,\n5,6,7,b") for row in rows))
    found = list(open_data(tmp_path / "t.csv", ROW))
    assert len(found) == 60_000 and all(s["x"].tolist() == [[i, 1, 2]] for i, s in enumerate(found))
    (tmp_path / "t.csv").write_text(head + "".join(row.format("a") for row in rows) + '1,2,3,"a' + "7,\n" * 999_999)
    with pytest.raises(BadData, match=r"is not a readable table: .* a quote in it may not be closed"):
        list(open_data(tmp_path / "t.csv", ROW))


def test_names_may_be_longer_than_a_megabyte(tmp_path: Path) -> None:
    names = [f"{i:0200}" for i in range(9_000)]
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join(["0.5"] * 9_000) + "\n")
    assert [s["x"].shape for s in open_data(tmp_path / "t.csv", (Input("x", F32, (None, 9_000)),))] == [(1, 9_000)]


def test_of_several_columns_of_texts_it_is_said_which_is_taken(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("author,review,stars\nfox,lazy dog,5\n")
    how = reading_of(None, corpora.tokenizer(tmp_path / "tok"), 16)
    with pytest.warns(RuntimeWarning, match=r"'author' is taken for the texts, not 'review': call .* 'text'$"):
        data = open_data(tmp_path / "t.csv", (Input("input_ids", I64, ("b", "s")),), how)
    assert [s["input_ids"].size for s in data] == [1]


def test_kinds_of_tables_in_one_folder(tmp_path: Path) -> None:
    inputs = (Input("n", I64, (None, 1)), Input("s", np.dtype(np.object_), (None, 1)))
    for name in ("a.csv", "c.tsv"):
        (tmp_path / name).write_text("n,s\n1,2\n".replace(",", "\t" if name == "c.tsv" else ","))
    for name in ("b.parquet", "0.parquet"):
        write(pa.table({"n": [1], "s": ["2"]}), tmp_path / name)
        assert {(s["n"].item(), s["s"].item()) for s in open_data(tmp_path, inputs)} == {(1, "2")}


def test_integers_keep_all_digits(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"n\n{2**62 + 1}\n{'9' * 30}\n")
    data = open_data(tmp_path / "t.csv", (Input("n", I64, (None, 1)),))
    assert next(iter(data))["n"] == 2**62 + 1
    with pytest.raises(BadData, match="has type float64, the model expects int64"):
        next(data.after(1))


@pytest.mark.parametrize("cells", [("02134", "94103"), ("NA", ""), ("true", "2024-01-01"), ("1_0", "\u00e9")])
def test_texts_may_look_like_anything(tmp_path: Path, cells: tuple[str, str]) -> None:
    (tmp_path / "t.csv").write_text("age,zip\n1,{}\n2,{}\n".format(*cells), encoding="utf-8")
    inputs = (Input("age", F32, (None, 1)), Input("zip", np.dtype(np.object_), (None, 1)))
    assert tuple(s["zip"].item() for s in open_data(tmp_path / "t.csv", inputs)) == cells


def test_numbers_are_no_texts_where_the_file_knows(tmp_path: Path) -> None:
    inputs = (Input("zip", np.dtype(np.object_), (None, 1)),)
    with pytest.raises(BadData, match="'zip' has type int64, the model expects text"):
        list(open_data(write(pa.table({"zip": [2134]}), tmp_path / "t.parquet"), inputs))
    with pytest.raises(BadData, match="row 0: 'zip' is empty"):
        list(open_data(write(pa.table({"zip": [None, "a"]}), tmp_path / "t.parquet"), inputs))


def test_a_column_of_no_utf8_is_said_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("age,note,city\n1,\xe9,\xe9\n".encode("latin-1"))
    age, city = Input("age", F32, (None, 1)), Input("city", np.dtype(np.object_), (None, 1))
    assert [s["age"] for s in open_data(tmp_path / "t.csv", (age,))] == [1]
    with pytest.raises(BadData, match=r"column #2: .*UTF8"):
        list(open_data(tmp_path / "t.csv", (age, city)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "n,text\n1,lazy dog\n2,\n"),
        ("u.csv", "n,text\n1,\n2,lazy dog\n"),
        ("t.jsonl", '{"text": "lazy dog"}\n{"text": ""}\n'),
    ],
)
def test_a_text_may_be_empty(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    inputs = (Input("input_ids", I64, ("b", "s")),)
    how = reading_of(None, corpora.tokenizer(tmp_path / "tok", special=True), 16)
    found = sorted(s["input_ids"].size for s in open_data(tmp_path / name, inputs, how))
    assert found == [2, 4]


@pytest.mark.parametrize("order", [None, [0, 1], [1, 0]])
def test_arrays_are_read_in_the_order_of_their_axes(tmp_path: Path, order: list[int] | None) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=order)
    cells = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.float32)), 6)
    file = write(pa.table({"a": pa.ExtensionArray.from_storage(kind, cells)}), tmp_path / "t.parquet")
    wanted = np.arange(12).reshape(2, 2, 3).transpose(0, *(1 + axis for axis in order or (0, 1)))
    inputs = (Input("a", F32, (None, *wanted.shape[1:])),)
    assert [s["a"][0].tolist() for s in open_data(file, inputs)] == wanted.tolist()


def test_an_array_that_is_missing_is_told(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    cells = pa.array([[0.0] * 6, None], kind.storage_type)
    file = write(pa.table({"a": pa.ExtensionArray.from_storage(kind, cells)}), tmp_path / "t.parquet")
    with pytest.raises(BadData, match="row 1: 'a' is empty"):
        list(open_data(file, (Input("a", F32, (None, 2, 3)),)))


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_texts_however_a_file_holds_them(tmp_path: Path, kind: str) -> None:
    made = pa.array(["lazy dog", "fox"] * 5, pa.string() if kind == "dictionary" else getattr(pa, kind)())
    file = write(pa.table({"text": made.dictionary_encode() if kind == "dictionary" else made}), tmp_path / "t.parquet")
    how = reading_of(None, corpora.tokenizer(tmp_path / "tok"), 16)
    found = [s["input_ids"].size for s in open_data(file, (Input("input_ids", I64, ("b", "s")),), how)]
    assert found == [2, 1] * 5


def test_columns_of_a_csv_are_inputs_of_their_own(tmp_path: Path) -> None:
    """As of scikit-learn's pipelines, text among them."""
    (tmp_path / "t.tsv").write_text("age\tcity\n3\tRome\n4\tOslo\n")
    inputs = (Input("age", F32, (None, 1)), Input("city", np.dtype(np.object_), (None, 1)))
    found = list(open_data(tmp_path / "t.tsv", inputs))
    assert [(s["age"].tolist(), s["city"].tolist()) for s in found] == [([[3]], [["Rome"]]), ([[4]], [["Oslo"]])]


@pytest.mark.parametrize(
    ("header", "name", "wanted"),
    [("age, city", "city", "Rome"), ("age, city", " city", " Rome"), ("age,city", "city", " Rome")],
    ids=["of the file", "of the model", "of the texts"],
)
def test_blanks_around_texts_are_the_file_s_where_they_are_around_the_name_too(
    tmp_path: Path, header: str, name: str, wanted: str
) -> None:
    """And no input is called just so: that is of a program which reads them along."""
    (tmp_path / "t.csv").write_text(f"{header}\n3, Rome\n4, Rome\n")
    inputs = (Input("age", I64, (None, 1)), Input(name, np.dtype(np.object_), (None, 1)))
    found = list(open_data(tmp_path / "t.csv", inputs))
    assert [(s["age"].item(), s[name].item()) for s in found] == [(3, wanted), (4, wanted)]


def test_a_quote_behind_a_blank_is_told(tmp_path: Path) -> None:
    """Arrow takes it for a letter of the text."""
    inputs = (Input("age", I64, (None, 1)), Input("city", np.dtype(np.object_), (None, 1)))
    (tmp_path / "t.csv").write_text('age, city\n3, The "Inn"\n4, "Rome"\n')
    found = iter(open_data(tmp_path / "t.csv", inputs))
    assert next(found)["city"].item() == 'The "Inn"'
    with pytest.raises(BadData, match=r'row 1: . city.: a blank stands before the quote of "Rome", which then is none'):
        next(found)


def test_images_in_a_folder_of_datasets(tmp_path: Path) -> None:
    """`save_to_disk` leaves streams of Arrow with images in them, and JSON beside them."""
    files = sorted(corpora.images(tmp_path / "images", count=3, size=(4, 4)).iterdir())
    rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    (tmp_path / "set").mkdir()
    for i in range(3):
        table = pa.Table.from_pylist([{"image": rows[i], "label": i}], schema)
        write(table, tmp_path / "set" / f"data-0000{i}-of-00003.arrow")
    (tmp_path / "set" / "dataset_info.json").write_text("{}")
    how = Preprocessing(scale=1)
    found = np.concatenate([s["pixel_values"] for s in open_data(tmp_path / "set", IMAGE, how)])
    wanted = np.concatenate([s["pixel_values"] for s in open_data(tmp_path / "images", IMAGE, how)])
    np.testing.assert_array_equal(found, wanted)


def test_a_table_may_name_images_below_its_folder_and_nowhere_else(tmp_path: Path) -> None:
    corpora.images(tmp_path / "set" / "images", count=1, size=(4, 4))
    corpora.images(tmp_path / "else", count=1, size=(4, 4))
    (tmp_path / "set" / "link.png").symlink_to(tmp_path / "else" / "0.png")
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))])
    wanted = list(open_data(tmp_path / "set" / "images", IMAGE, Preprocessing(scale=1)))

    def read(path: str) -> list:
        table = pa.Table.from_pylist([{"image": {"bytes": None, "path": path}}], schema)
        return list(open_data(write(table, tmp_path / "set" / "t.parquet"), IMAGE, Preprocessing(scale=1)))

    for path in ("images/0.png", str(tmp_path / "set" / "images" / "0.png")):
        (found,) = read(path)
        np.testing.assert_array_equal(found["pixel_values"], wanted[0]["pixel_values"])
    for path in ("../else/0.png", str(tmp_path / "else" / "0.png"), "link.png"):
        with pytest.raises(BadData, match="outside of the table's folder"):
            read(path)


def test_texts_and_images_of_one_row(tmp_path: Path) -> None:
    """As models of both take them."""
    (file,) = corpora.images(tmp_path / "images", count=1, size=(4, 4)).iterdir()
    table = pa.table({"image": [file.read_bytes()], "text": ["lazy dog"]})
    inputs = (*IMAGE, Input("input_ids", I64, ("b", "s")), Input("attention_mask", I64, ("b", "s")))
    how = reading_of("scale=1", corpora.tokenizer(tmp_path / "tok"), 16)
    (sample,) = open_data(write(table, tmp_path / "t.parquet"), inputs, how)
    assert sample["pixel_values"].shape == (1, 3, 4, 4)
    words = [4 + corpora.WORDS.index(word) for word in ("lazy", "dog")]
    assert sample["input_ids"].tolist() == [words] and sample["attention_mask"].tolist() == [[1, 1]]


def test_sounds_are_told_by_what_datasets_notes(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    held = corpora.sound(tmp_path / "s.wav", seconds=0.1).read_bytes()
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    noted = {"huggingface": json.dumps({"info": {"features": {"clip": {"_type": "Audio"}}}})}
    schema = pa.schema([("clip", kind)], metadata=noted)
    file = write(pa.Table.from_pylist([{"clip": {"bytes": held, "path": None}}], schema), tmp_path / "t.parquet")
    (sample,) = open_data(file, (Input("input_values", F32, ("b", "t")),), reading_of("rate=16000"))
    assert sample["input_values"].shape == (1, 1600) and np.abs(sample["input_values"]).max() > 0.4


def test_a_table_is_never_whole_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(table, "BATCH", 4)
    real = table.batches
    monkeypatch.setattr(table, "batches", lambda *a, **k: (seen.append(b.num_rows) or b for b in real(*a, **k)))
    data = open_data(write(pa.table({"x": numbers(50).tolist()}), tmp_path / "t.parquet"), ROW).limited(5)
    seen.clear()
    assert len(list(data)) == 5
    assert sum(seen) <= 5 * 7 and max(seen) <= 4  # groups of rows without one of the five are not read
    seen.clear()
    assert len(list(data)) == 5 and not seen  # these few are kept


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "t.csv", "is not a readable table: Empty CSV file"),
        (b"", "t.parquet", "is not a readable table"),
        (b"", "t.arrow", "is not a readable table"),
        (b"PAR1" + b"\xff" * 60 + b"PAR1", "t.parquet", "is not a readable table"),
        (b"ARROW1\0\0" + b"\xff" * 60 + b"ARROW1", "t.arrow", "is not a readable table"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\0" * 40, "t.arrow", "is not a readable table"),
        (b"FEA1" + b"\0" * 40, "t.feather", "is not a readable table"),
        (b"a,b,c\n1,2,3\n1,2\n", "t.csv", "is not a readable table: CSV parse error"),
        (b"p,q,r\n", "t.csv", "holds no"),
        (
            "p,q,r\nx,\xe9,3\n".encode("latin-1"),
            "t.csv",
            "which of them|is not a readable table|makes the inputs|columns?",
        ),
        (
            b"p,q\n1,2\n",
            "t.csv",
            r"has 2 columns of numbers \(p, q\), 'x' takes 3: give a table with all of them as numbers, or arrays",
        ),
        (b"0,0,9\n1,2,3\n", "t.csv", "has 2 columns '0': names must not come twice, and its first line must be names"),
        (b"name\nzoe\n", "t.csv", "has the columns name, of which none makes the inputs x"),
        (b"p;q;r\n1;2;3\n", "t.csv", r"has one column, 'p;q;r': the delimiter of \.csv must be a comma"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, content: bytes, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=message):
        list(open_data(tmp_path / name, ROW))


def test_damaged_offsets_are_found(tmp_path: Path) -> None:
    """Offsets of a list that lead outside its numbers would read other memory."""
    table = pa.table({"x": pa.ListArray.from_arrays(pa.array([0, 3, 6], pa.int32()), np.arange(6.0))})
    content = write(table, tmp_path / "data-0.arrow").read_bytes()
    offsets, broken = (np.array(ends, np.int32).tobytes() for ends in ([0, 3, 6], [0, 3, 1 << 30]))
    assert content.count(offsets) == 1
    (tmp_path / "t.arrow").write_bytes(content.replace(offsets, broken))
    with pytest.raises(BadData, match="is not a readable table"):
        list(open_data(tmp_path / "t.arrow", ROW))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([[1.0, 2.0, 3.0], None], "row 1: 'x' is empty"),
        ([[[1.0], [2.0, 3.0]]], "row 0: 'x' holds lists of different lengths"),
        ([[1.0, 2.0]], r"'x' has shape \[1, 2\], the model expects \[\?, 3\]"),
    ],
)
def test_cells_that_do_not_fit(tmp_path: Path, cells: list, message: str) -> None:
    with pytest.raises(BadData, match=message):
        list(open_data(write(pa.table({"x": cells}), tmp_path / "t.parquet"), ROW))


def test_an_integer_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,other\n1,2\n,3\n")
    with pytest.raises(BadData, match=r"t\.csv', row 1: 'n' is empty, and 'n' takes no such number"):
        list(open_data(tmp_path / "t.csv", (Input("n", I64, (None, 1)),)))


def test_an_image_that_is_not_there(tmp_path: Path) -> None:
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))])
    rows = [{"image": {"bytes": None, "path": "gone.png"}}, {"image": None}]
    file = write(pa.Table.from_pylist(rows, schema), tmp_path / "t.parquet")
    data = open_data(file, IMAGE, Preprocessing())
    with pytest.raises(BadData, match=r"row 0: column 'image' names the file 'gone\.png', which is not there"):
        next(iter(data))
    with pytest.raises(BadData, match="row 1: column 'image' is empty"):
        next(data.after(1))


@pytest.mark.parametrize("first", ["5.1,3.5,1.4", "1,2,3", "5.1,3.5,1.4,2020-01-01"])
def test_a_first_line_of_numbers_is_told(tmp_path: Path, first: str) -> None:
    (tmp_path / "t.csv").write_text(f"{first}\n4,5,6{first[first.find(',20') :] if ',20' in first else ''}\n")
    with pytest.warns(
        RuntimeWarning, match=r"the first line of '.*t\.csv' is numbers \(.*\), and taken for names: if it"
    ):
        data = open_data(tmp_path / "t.csv", ROW)
    assert [s["x"].tolist() for s in data] == [[[4, 5, 6]]]
    with pytest.raises(BadData, match=r"'x' takes 5: .*, and its first line must be names$"):
        open_data(tmp_path / "t.csv", (Input("x", F32, (None, 5)),))


def test_columns_may_be_counted(tmp_path: Path) -> None:
    """As pandas writes arrays."""
    (tmp_path / "t.csv").write_text("0,1,2\n4,5,6\n")
    assert [s["x"].tolist() for s in open_data(tmp_path / "t.csv", ROW)] == [[[4, 5, 6]]]
    (tmp_path / "t.csv").write_text("5.1,3.5,1.4,setosa\n4.9,3.0,1.4,setosa\n")
    with pytest.raises(
        BadData, match=r"or 'setosa', which holds none, cannot be told: .*, and its first line must be names$"
    ):
        open_data(tmp_path / "t.csv", ROW)
