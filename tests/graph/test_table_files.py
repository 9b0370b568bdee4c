"""Of tables: some of the rows, spread over all, and columns that name files beside them."""

from __future__ import annotations

from pathlib import Path

import corpora
import numpy as np
import pytest
from test_tables import F32, I64, IMAGE, ROW, write

from onnxq.errors import BadData
from onnxq.runtime.session import Input
from onnxq.samples.pictures.images import Preprocessing
from onnxq.samples.reading import reading_of
from onnxq.samples.source import open_data
from onnxq.samples.tables import spread

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
@pytest.mark.parametrize("kept", [1 << 26, 100])
def test_a_few_rows_are_of_all_the_table(tmp_path: Path, name: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of one that is sorted by its label, in files one after the other, and whose classes take turns."""
    monkeypatch.setattr(spread, "_KEPT", kept)
    rows = [(i // 300, i % 3, i) for i in range(900)]
    for part, first in enumerate((0, 450)):
        found = rows[first : first + 450]
        if name == "t.csv":
            lines = "".join(f"{a},{b},{n}\n" for a, b, n in found)
            (tmp_path / f"{part}.csv").write_text("a,b,n\n" + lines)
        else:
            write(pa.table(dict(zip("abn", zip(*found, strict=True), strict=True))), tmp_path / f"{part}{name}")
    data = open_data(tmp_path, (Input("x", F32, (None, 3)),))
    some = data.limited(30)
    for _ in range(2):
        found = np.concatenate([s["x"] for s in some])
        assert len(np.unique(found[:, 2])) == 30 and (np.diff(found[:, 2]) > 0).all()
        for column in (0, 1):
            assert np.bincount(found[:, column].astype(int)).min() >= 8
    assert some.note == f"30 of the 900 samples of '{tmp_path}' are used, evenly spread over them: --limit takes more"
    assert (some.count, some.limited(40).count, data.limited(900).note) == (30, 30, "")
    assert len({data.hash(), some.hash(), data.limited(31).hash(), data.limited(30, seed=0).hash()}) == 4


@pytest.mark.parametrize("kept", [1 << 26, 100])
def test_a_few_lines_of_json_are_of_all_the_files(tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted, in files one after the other, with empty lines between; what is not chosen is not read as JSON."""
    monkeypatch.setattr(spread, "_KEPT", kept)
    wanted = set(spread.chosen(30, 900))
    lines = [f'{{"x": [{i // 300}, {i}]}}\n\n' if i in wanted or i < 1 else "{\n" for i in range(900)]
    (tmp_path / "a.jsonl").write_text("".join(lines[:450]))
    (tmp_path / "b.jsonl").write_text("".join(lines[450:]))
    some = open_data(tmp_path, (Input("x", F32, (None, 2)),)).limited(30)
    for _ in range(2):
        found = np.concatenate([s["x"] for s in some])
        assert set(found[:, 1].astype(int)) == wanted and np.bincount(found[:, 0].astype(int)).min() == 10
    assert some.note == f"30 of the 900 samples of '{tmp_path}' are used, evenly spread over them: --limit takes more"


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow", "t.jsonl"])
def test_rows_that_are_not_counted_are_not_said_to_be(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more than are counted, those chosen are spread over as many; fewer chosen of them over these again."""
    monkeypatch.setattr(spread, "MOST_ROWS", 100)
    if name == "t.csv":
        (tmp_path / name).write_text("x\n" + "".join(f"{i}\n" for i in range(300)))
    elif name == "t.jsonl":
        (tmp_path / name).write_text("".join(f'{{"x": [{i}]}}\n' for i in range(300)))
    else:
        write(pa.table({"x": list(range(300))}), tmp_path / name)
    data = open_data(tmp_path / name, (Input("x", F32, (None, 1)),))
    for some in (data.limited(10), data.limited(20).limited(10)):
        assert [int(s["x"].item()) // 10 for s in some] == list(range(10))
        assert some.note.startswith(f"10 of the first 100 samples of '{tmp_path / name}' are used, evenly spread over")
    more = data.limited(150)
    assert len({s["x"].item() for s in more}) == 150 and more.note.startswith("150 of the first 150 samples")


def test_a_row_of_few_is_told_by_its_place_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("p,q,r\n" + "1,2,3\n" * 99 + "1,2,?\n" * 101)
    with pytest.raises(BadData, match=r"t\.csv', row 1\d\d: 'r' is '\?'"):
        list(open_data(tmp_path / "t.csv", ROW).limited(8))


@pytest.mark.parametrize(("limit", "count"), [(1, 2), (1, 1000), (7, 8), (256, 257), (256, 60_000), (256, 768)])
def test_rows_are_spread_over_stretches_of_one_length(limit: int, count: int) -> None:
    found = spread.chosen(limit, count)
    assert found == sorted(set(found)) and len(found) == limit and found[0] >= 0 and found[-1] < count
    assert all(i * count // limit <= n < (i + 1) * count // limit for i, n in enumerate(found))
    if count % limit == 0 and count // limit == 3:
        assert np.bincount([n % 3 for n in found]).min() > limit // 4


@pytest.mark.parametrize("column", ["image", "img", "file_name", "Path", "image path", "filename", " image"])
def test_a_column_of_a_csv_may_name_images(tmp_path: Path, column: str) -> None:
    files = sorted(corpora.images(tmp_path / "images", count=2, size=(4, 4)).iterdir())
    wanted = [s["pixel_values"] for s in open_data(tmp_path / "images", IMAGE, Preprocessing(scale=1))]
    lines = [f"{column},caption,label", *(f"images/{file.name},a fox,1" for file in files)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found = [s["pixel_values"] for s in open_data(tmp_path / "t.csv", IMAGE, Preprocessing(scale=1))]
    np.testing.assert_array_equal(found, wanted)
    inputs = (*IMAGE, Input("input_ids", I64, ("b", "s")))
    (first, _) = open_data(tmp_path / "t.csv", inputs, reading_of("scale=1", corpora.tokenizer(tmp_path / "tok"), 16))
    assert first["input_ids"].size == 2
    write(pa.table({column: [f"images/{file.name}" for file in files]}), tmp_path / "t.parquet")
    found = [s["pixel_values"] for s in open_data(tmp_path / "t.parquet", IMAGE, Preprocessing(scale=1))]
    np.testing.assert_array_equal(found, wanted)


def test_a_column_of_a_csv_names_images_below_its_folder_only(tmp_path: Path) -> None:
    corpora.images(tmp_path / "else", count=1, size=(4, 4))
    (tmp_path / "set").mkdir()
    for path, message in (
        ("../else/0.png", "outside of the table's folder"),
        ("../none.png", "outside of the table's"),
        ("gone.png", "which is not there"),
    ):
        (tmp_path / "set" / "t.csv").write_text(f"image,label\n{path},0\n")
        with pytest.raises(BadData, match=message):
            list(open_data(tmp_path / "set" / "t.csv", IMAGE, Preprocessing(scale=1)))
    (tmp_path / "set" / "t.csv").write_text("image,label\na cat,0\n")
    with pytest.raises(BadData, match=r"of which none makes the inputs|'pixel_values' takes"):
        open_data(tmp_path / "set" / "t.csv", IMAGE, Preprocessing(scale=1))


def test_a_column_of_a_csv_may_name_sounds(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    corpora.sound(tmp_path / "s.wav", seconds=0.1)
    (tmp_path / "t.csv").write_text("path,sentence\ns.wav,a fox\n")
    (sample,) = open_data(tmp_path / "t.csv", (Input("input_values", F32, ("b", "t")),), reading_of("rate=16000"))
    assert sample["input_values"].shape == (1, 1600)


def test_a_row_of_numbers_is_not_the_sound_that_it_tells_of(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("filename,p,q,r,label\ns.wav,1,2,3,blues\n")
    assert [s["x"].tolist() for s in open_data(tmp_path / "t.csv", ROW)] == [[[1, 2, 3]]]


def test_of_few_rows_too_it_is_told_that_a_file_has_other_columns(tmp_path: Path) -> None:
    for name, header in (("a.csv", "p,q,r"), ("b.csv", "q,r,s")):
        (tmp_path / name).write_text(f"{header}\n" + "1,2,3\n" * 9)
    with pytest.raises(BadData, match=r"b\.csv' has other columns than '.*a\.csv'"):
        list(open_data(tmp_path, ROW).limited(4))


def test_parts_of_a_table_have_its_columns_in_any_order_and_any_types_of_numbers(tmp_path: Path) -> None:
    parts = [
        {"p": pa.array([1.5]), "q": pa.array([2], pa.int32()), "r": pa.array([3])},
        {"r": pa.array([6], pa.int8()), "p": pa.array([4.5], pa.float32()), "q": pa.array([5.0])},
    ]
    for name, columns in zip("ab", parts, strict=True):
        write(pa.table(columns), tmp_path / f"{name}.parquet")
    for data in (open_data(tmp_path, ROW), open_data(tmp_path, ROW).limited(2)):
        assert [s["x"].tolist() for s in data] == [[[1.5, 2, 3]], [[4.5, 5, 6]]]


def test_parts_of_a_csv_have_its_columns_in_any_order(tmp_path: Path) -> None:
    for name, lines in (("a", "p,q,r,label\n1,2,3,9\n"), ("b", "label,r,q,p\n9,6,5,4\n")):
        (tmp_path / f"{name}.csv").write_text(lines)
    assert [s["x"].tolist() for s in open_data(tmp_path, ROW)] == [[[1, 2, 3]], [[4, 5, 6]]]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_parts_of_a_table_have_blanks_around_its_names_or_not(suffix: str, tmp_path: Path) -> None:
    """Around texts, too, in a file that is text, and only there."""
    for name, blank in (("a", ""), ("b", " "), ("c", "")):
        if suffix == "csv":
            rows = f"p,{blank}q,{blank}word{blank},{blank}x\n1,2,{blank}a b{blank},{blank}7\n"
            (tmp_path / f"{name}.csv").write_text(rows)
        else:
            columns = {"p": [1], f"{blank}q": [2], f"{blank}word": [f"{blank}a b"], f"x{blank}": [7]}
            write(pa.table(columns), tmp_path / f"{name}.parquet")
    inputs = Input("x", F32, (None, 1)), Input("word", np.dtype(object), (None, 1))
    words = ["a b", "a b" if suffix == "csv" else " a b", "a b"]
    for data in (open_data(tmp_path, inputs), open_data(tmp_path, inputs).limited(3)):
        assert [(s["x"].item(), s["word"].item()) for s in data] == [(7, word) for word in words]


def test_parts_of_a_table_whose_names_differ_in_more_than_blanks_are_refused(tmp_path: Path) -> None:
    for name, header in (("a.csv", "p,q,r"), ("b.csv", "p, q,q")):
        (tmp_path / name).write_text(f"{header}\n1,2,3\n")
    with pytest.raises(BadData, match=r"b\.csv' has other columns than '.*a\.csv'$"):
        list(open_data(tmp_path, ROW))
