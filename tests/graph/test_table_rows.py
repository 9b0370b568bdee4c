"""The row of a model with one input: which columns of a table make it, and that none of the others takes a place."""

from __future__ import annotations

import datetime
import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.errors import BadData, UnusedOption
from onnxq.runtime.session import Input
from onnxq.samples.source import open_data

pa = pytest.importorskip("pyarrow")
F32 = np.dtype(np.float32)
ROW = (Input("x", F32, (None, 3)),)


def write(table: Any, file: Path) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, file)
    return file


def rows_of(header: str, count: int = 100, **cells: str) -> list[dict[str, Any]]:
    """Numbers by column, 1, 2, … in each row; of a row in the middle these cells."""
    rows = [{name: n for n, name in enumerate(header.split(","), 1)} for _ in range(count)]
    return [*rows[: count // 2], rows[count // 2] | cells, *rows[count // 2 + 1 :]]


def csv_of(rows: list[dict[str, Any]], file: Path) -> Path:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("header", "columns"),
    [("p,q,r", 3), ("p,q,r,label", 4), ("p,name,q,r,label", 4), ("name,X,Y,Z", 3)],
    ids=["numbers", "and a label", "and a name", "places and a name"],
)
def test_numbers_of_a_row_are_one_input(tmp_path: Path, header: str, columns: int) -> None:
    names = header.split(",")
    rows = [",".join("zoe" if n == "name" else "9" if n == "label" else f"{i}.5" for n in names) for i in range(5)]
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]))
    assert [s["x"].tolist() for s in open_data(tmp_path / "t.csv", ROW)] == [[[i + 0.5] * 3] for i in range(5)]


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("p,q,r,label", "pqr"),
        ("Target,p,q,r", "pqr"),
        ("p,q,passenger class", "pqc"),
        ("class,y", "cy"),
    ],
)
def test_a_model_of_any_width_does_not_get_the_answer(tmp_path: Path, header: str, wanted: str) -> None:
    numbers = {name: ord(name[-1] if name in "pqry" else "c") for name in header.split(",")}
    (tmp_path / "t.csv").write_text(f"{header}\n{','.join(map(str, numbers.values()))}\n")
    (sample,) = open_data(tmp_path / "t.csv", (Input("x", F32, (None, None)),))
    assert sample["x"].tolist() == [list(map(ord, wanted))]


@pytest.mark.parametrize(
    ("header", "width"),
    [
        *itertools.product(["p, q, r", "p, q, r, label", "label ,p,q,r"], [3, None]),
        ("id, p, q, r", 3),
        ("p,\tq,\tr,\tmain label", 3),
    ],
)
def test_blanks_around_names_and_numbers_are_none_of_theirs(tmp_path: Path, header: str, width: int | None) -> None:
    numbers = ("1", "2", "3", "9") if header.startswith("p") else ("9", "1", "2", "3")
    (tmp_path / "t.csv").write_text(f"{header}\n{', '.join(numbers[: header.count(',') + 1])}\n")
    (sample,) = open_data(tmp_path / "t.csv", (Input("x", F32, (None, width)),))
    assert sample["x"].tolist() == [[1, 2, 3]]


def test_blanks_around_names_that_pandas_wrote_to_parquet_hide_no_answer(tmp_path: Path) -> None:
    file = write(pa.table({"p": [1], " q": [2], " r": [3], " label": [9]}), tmp_path / "t.parquet")
    (sample,) = open_data(file, (Input("x", F32, (None, None)),))
    assert sample["x"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("header", ["p, q, p ", "p, q,q", 'p, "q", r'])
def test_names_that_blanks_alone_tell_apart_or_spoil_are_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\n1, 2, 3\n")
    message = (
        "a blank stands before the quote" if '"' in header else "has 2 columns '.': names must not come twice, with"
    )
    with pytest.raises(BadData, match=message):
        open_data(tmp_path / "t.csv", ROW)


@pytest.mark.parametrize("header", ["p,q,r", "p,q,r,class", "id,p,q,r,class", "p,q,r,sample id"])
@pytest.mark.parametrize("mark", ["?", "-", "unknown"])
def test_a_mark_in_a_column_of_numbers_moves_no_other(tmp_path: Path, header: str, mark: str) -> None:
    """Wherever it is: else an id or the answer would take the place of what the column holds."""
    rows = rows_of(header, q=mark)
    data = open_data(csv_of(rows, tmp_path / "t.csv"), ROW)
    assert next(iter(data))["x"].tolist() == [[rows[0][name] for name in "pqr"]]
    with pytest.raises(BadData, match=r"row 50: 'q' is '.+', and 'x' takes numbers"):
        list(data)


def test_of_a_column_most_cells_may_be_missing(tmp_path: Path) -> None:
    rows = [{"p": 1, "q": "?" if i % 9 else i, "r": 3, "label": 4} for i in range(100)]
    with pytest.raises(BadData, match=r"row 1: 'q' is '\?', and 'x' takes numbers"):
        list(open_data(csv_of(rows, tmp_path / "t.csv"), ROW))


@pytest.mark.parametrize("cells", [["5", "6", "?"], ["0", "1", "2"]])
def test_texts_that_a_file_has_in_the_place_of_numbers_are_refused(tmp_path: Path, cells: list[str]) -> None:
    """As pandas leaves columns with marks, and categories."""
    for column in (pa.array(cells), pa.array(cells).dictionary_encode(), pa.array(cells, pa.string_view())):
        file = write(pa.table({"p": [1.0] * 3, "q": [2.0] * 3, "r": column, "label": [4] * 3}), tmp_path / "t.parquet")
        with pytest.raises(BadData, match=r"row 0: 'r' is the text '.', and a row of 'x' has numbers"):
            list(open_data(file, ROW))


def test_numbers_may_be_stored_once_for_many_rows(tmp_path: Path) -> None:
    file = write(
        pa.table({"p": [1.0] * 3, "q": pa.array([2, 5, 2]).dictionary_encode(), "r": [3] * 3, "label": [4] * 3}),
        tmp_path / "t.parquet",
    )
    assert [s["x"].tolist() for s in open_data(file, ROW)] == [[[1, 2, 3]], [[1, 5, 3]], [[1, 2, 3]]]


@pytest.mark.parametrize(
    "header", ["id,p,q,r", ",p,q,r", "p,q,r,__index_level_0__", "PassengerId,p,q,r,target", "id,name,p,q,r,label"]
)
def test_an_id_is_told_by_its_name(tmp_path: Path, header: str) -> None:
    rows = rows_of(header)
    rows = [row | ({"name": "zoe"} if "name" in row else {}) for row in rows]
    (sample, *_) = open_data(csv_of(rows, tmp_path / "t.csv"), ROW)
    assert sample["x"].tolist() == [[rows[0][name] for name in "pqr"]]


@pytest.mark.parametrize("header", ["p,q,label", "id,p,q", "user_id,item_id,q,label", "p,q,r,fine_label"])
def test_columns_that_are_all_of_numbers_are_told_by_their_count(tmp_path: Path, header: str) -> None:
    (sample, *_) = open_data(csv_of(rows_of(header), tmp_path / "t.csv"), ROW)
    assert sample["x"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("name,p,q,label", "whether 'label' is one of the 3 numbers that 'x' takes, or 'name', which holds none"),
        ("id,name,p,q", "whether 'id' is one of the 3 numbers that 'x' takes, or 'name', which holds none"),
        ("area,name,rooms,price", "'price' is one of the 3 numbers .* or call 'name' 'label' if it is the answer$"),
        ("price,area,rooms,name", "whether 'rooms' is one of the 3 numbers"),
        ("id,name,p,q,r", "whether 'r' is one of the 3 numbers that 'x' takes, or 'name', which holds none"),
        (
            "Bought,Pclass,p,q",
            r"\(Bought, Pclass, p, q\), 'x' takes 3: leave out the others, or call the .* 'label'$",
        ),
        ("id,p,q,r,price", r"5 columns of numbers .* 'x' takes 3: leave out the others, or call the answer 'label'$"),
        ("p,q,r,s,price", r"5 columns of numbers .* 'x' takes 3: leave out the others$"),
        ("p,q,r,target_temp", r"has 4 columns of numbers \(p, q, r, target_temp\), 'x' takes 3"),
        ("id,p,q,label", r"has 4 columns of numbers \(id, p, q, label\), 'x' takes 3: leave out the others"),
        ("x,y,z,id", r"has 4 columns of numbers \(x, y, z, id\), 'points' takes 3"),
        (
            "p,q,r,ticket",
            r"4 columns of numbers \(p, q, r, ticket; ticket with texts among them\), 'x' takes 3",
        ),
    ],
)
def test_what_names_do_not_tell_is_not_guessed(tmp_path: Path, header: str, message: str) -> None:
    rows = rows_of(header, **({"ticket": "A/5 21171"} if "ticket" in header else {}))
    rows = [row | ({"name": "zoe"} if "name" in row else {}) for row in rows]
    inputs = (Input("points", F32, (None, 3)),) if header.startswith("x") else ROW
    with pytest.raises(BadData, match=message):
        open_data(csv_of(rows, tmp_path / "t.csv"), inputs)


def test_texts_are_texts_though_one_is_a_number(tmp_path: Path) -> None:
    """In each of the ways that a file may hold them."""
    words = [*map("word {}".format, range(20)), "2012"]
    (tmp_path / "t.csv").write_text("p,q,name,r,class\n" + "".join(f"1,2,{word},3,no\n" for word in words))
    assert [s["x"].tolist() for s in open_data(tmp_path / "t.csv", ROW)] == [[[1, 2, 3]]] * 21


def test_columns_beside_texts_are_no_input_of_any_width(tmp_path: Path) -> None:
    """Else how often a sentence was liked would be the pieces of it."""
    (tmp_path / "t.csv").write_text("sentence,stars,label\nfine,5,1\n")
    with pytest.raises(BadData, match="how many numbers 'pieces' takes is open, and 'sentence' holds none: leave out"):
        open_data(tmp_path / "t.csv", (Input("pieces", np.dtype(np.int64), ("batch", "length")),))


def test_a_number_named_like_an_input_of_several_is_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y,z\n1,2,3\n")
    assert [s["x"].tolist() for s in open_data(tmp_path / "t.csv", ROW)] == [[[1, 2, 3]]]


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.float16])
def test_a_row_of_whole_numbers_is_of_the_kind_that_the_input_takes(tmp_path: Path, kind: type) -> None:
    (tmp_path / "t.csv").write_text("p,q,r\n1,0,1\n")
    (sample,) = open_data(tmp_path / "t.csv", (Input("x", np.dtype(kind), (None, 3)),))
    assert sample["x"].dtype == kind and sample["x"].tolist() == [[1, 0, 1]]


def test_decimal_numbers_are_numbers(tmp_path: Path) -> None:
    file = write(pa.table({"p": [Decimal("1.5")], "q": [2.0], "r": [3]}), tmp_path / "t.parquet")
    assert [s["x"].tolist() for s in open_data(file, ROW)] == [[[1.5, 2, 3]]]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((None, 1, 4, 5), "1 × 4 × 5"),
        ((1, 4, 5, 1), "4 × 5 × 1"),
        (("batch", 4, 5), "4 × 5"),
        ((3, 2, 2, 5), "2 × 2 × 5"),
    ],
    ids=str,
)
@pytest.mark.parametrize("label", [True, False], ids=["with a label", "alone"])
def test_a_row_of_pixels_is_an_image(tmp_path: Path, shape: tuple, words: str, label: bool) -> None:
    """As MNIST is handed about, with the label first; a batch of one size is that often the same."""
    (rows,) = rows_of(",".join(f"pixel{i}" for i in range(20)), 1)
    file = csv_of([{"label": 99} | rows if label else rows], tmp_path / "t.csv")
    said = rf"t\.csv': the 20 numbers of a row are 'x' of {words}, in their order and unscaled"
    with pytest.warns(RuntimeWarning, match=said):
        data = open_data(file, (Input("x", F32, shape),))
    (sample,) = data
    size = [dim if isinstance(dim, int) else 1 for dim in shape]
    wanted = np.arange(1.0, 21).reshape(1, *size[1:])
    np.testing.assert_array_equal(sample["x"], np.broadcast_to(wanted, size))


def test_rows_that_are_no_images_are_refused_with_the_numbers_of_one(tmp_path: Path) -> None:
    file = csv_of(rows_of("label,p,q,r"), tmp_path / "t.csv")
    with pytest.raises(
        BadData, match=r"has 4 columns of numbers .*, 'x' takes 18 \(2 × 3 × 3\): give a table with all"
    ):
        open_data(file, (Input("x", F32, (None, 2, 3, 3)),))


def test_a_preprocessing_of_numbers_is_told_to_do_nothing(tmp_path: Path) -> None:
    file = csv_of(rows_of("p,q,r"), tmp_path / "t.csv")
    with pytest.warns(UnusedOption, match="the preprocessing changes nothing: the samples are numbers of a table"):
        open_data(file, ROW, "scale=255")


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (("N", "T", 3), r"\[N, T, 3\], .*: give arrays of the sizes in use \(\.npz\)$"),
        (("N", 3, "T"), r"\[N, 3, T\], .*: give arrays"),
        ((None, None, 1), r"\[\?, \?, 1\], .*: give arrays"),
        (("N", 3, "H", "W"), r"\[N, 3, H, W\], .*: give images, or arrays of the sizes in use \(\.npz\)$"),
        (("N", "H", "W", 3), r"\[N, H, W, 3\], .*: give images, or arrays"),
    ],
    ids=str,
)
@pytest.mark.parametrize("header", ["p,q,r", "x,q,r"])
def test_a_row_is_no_sequence_of_one_step(tmp_path: Path, shape: tuple, words: str, header: str) -> None:
    """Nor a picture of one pixel: ranges of those do not hold for longer ones."""
    file = csv_of(rows_of(header, 2), tmp_path / "t.csv")
    with pytest.raises(BadData, match=r"t\.csv': 'x' takes " + words):
        open_data(file, (Input("x", F32, shape),))


@pytest.mark.parametrize("shape", [(None, 3), (None, 1, 3), (None, 3, 1), (None, None), (None, 1, None), (3,)], ids=str)
def test_a_row_is_all_of_a_sample_whose_steps_are_given(tmp_path: Path, shape: tuple) -> None:
    (sample, _) = open_data(csv_of(rows_of("p,q,r", 2), tmp_path / "t.csv"), (Input("x", F32, shape),))
    assert sample["x"].ravel().tolist() == [1, 2, 3] and sample["x"].ndim == len(shape)


def test_of_several_numbers_one_that_is_named_like_an_input_of_any_width_is_not_all(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y,z\n1,2,3\n")
    open_ended = (Input("x", F32, (None, None)),)
    assert [s["x"].tolist() for s in open_data(tmp_path / "t.csv", open_ended)] == [[[1, 2, 3]]]
    for header in ("id,x,label", "id,x,y"):
        (tmp_path / "t.csv").write_text(f"{header}\n1,2,3\n")
        assert [s["x"].tolist() for s in open_data(tmp_path / "t.csv", open_ended)] == [[[2]]]
    (tmp_path / "t.csv").write_text("x,price\n1,2\n")
    with pytest.raises(BadData, match="is the one of that name alone, or with 'price', cannot be told: leave out"):
        open_data(tmp_path / "t.csv", open_ended)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_list_of_as_many_tokens_as_a_batch_is_one_sequence(tmp_path: Path, count: int) -> None:
    file = write(pa.table({"x": [list(range(count))]}), tmp_path / "t.parquet")
    (sample,) = open_data(file, (Input("x", np.dtype(np.int64), (4, "length")),))
    assert sample["x"].tolist() == [list(range(count))] * 4


def test_a_list_is_no_sequence_of_one_step(tmp_path: Path) -> None:
    file = write(pa.table({"x": [[1.0, 2.0, 3.0]]}), tmp_path / "t.parquet")
    with pytest.raises(BadData, match=r"'x' has shape \[3\], the model expects \[\?, T, 3\]"):
        list(open_data(file, (Input("x", F32, (None, "T", 3)),)))


CLASSES = ["setosa", "versicolor", "virginica"] * 10


@pytest.mark.parametrize("header", ["p,q,r,species", "Id,p,q,r,Species", "p,q,r,species,date"])
def test_a_text_beside_the_numbers_of_a_row_may_be_its_class(tmp_path: Path, header: str) -> None:
    """As that of irises, whose answer is called after what it is."""
    rows = [
        row
        | {name: kind for name in row if name.lower() == "species"}
        | ({"date": "2020-01-01"} if "date" in row else {})
        for row, kind in zip(rows_of(header, 30), CLASSES, strict=True)
    ]
    with pytest.warns(
        RuntimeWarning, match="the row of 'x' is p, q, r; '[sS]pecies', whose texts are classes, is left out"
    ):
        data = open_data(csv_of(rows, tmp_path / "t.csv"), ROW)
    assert next(iter(data))["x"].tolist() == [[rows[0][name] for name in "pqr"]]


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("p,q,r,species", [*CLASSES[:29], "once"]),
        ("p,q,r,species", [f"town {i // 3}" for i in range(30)]),
        ("p,q,label,species", CLASSES),
        ("Id,p,q,species", CLASSES),
    ],
    ids=["one that comes once", "of many kinds", "with an answer in the row", "with an id in the row"],
)
def test_other_texts_are_no_classes(tmp_path: Path, header: str, cells: list[str]) -> None:
    rows = [row | {"species": kind} for row, kind in zip(rows_of(header, 30), cells, strict=True)]
    with pytest.raises(BadData, match="'species', which holds none, cannot be told"):
        open_data(csv_of(rows, tmp_path / "t.csv"), ROW)


@pytest.mark.parametrize("answer", ["labels", "Outcome", "class_label", "targets", "Target", "Survived"])
@pytest.mark.parametrize("width", [3, None])
def test_answers_have_several_names(tmp_path: Path, answer: str, width: int | None) -> None:
    file = csv_of(rows_of(f"p,{answer},q,r"), tmp_path / "t.csv")
    assert next(iter(open_data(file, (Input("x", F32, (None, width)),))))["x"].tolist() == [[1, 3, 4]]


def test_a_diagnosis_is_the_answer_where_there_is_a_number_too_many(tmp_path: Path) -> None:
    file = csv_of(rows_of("p,diagnosis,q,r"), tmp_path / "t.csv")
    for width, wanted in ((3, [[1, 3, 4]]), (4, [[1, 2, 3, 4]]), (None, [[1, 2, 3, 4]])):
        assert next(iter(open_data(file, (Input("x", F32, (None, width)),))))["x"].tolist() == wanted


@pytest.mark.parametrize("cell", ["2020-01-31", "2020-01-31 10:00:00", "2020-01-31T10:00:00.5Z", "10:00:00"])
@pytest.mark.parametrize("width", [3, None])
def test_times_are_no_numbers_and_no_reason_to_refuse(tmp_path: Path, cell: str, width: int | None) -> None:
    file = csv_of([{"when": cell, "p": 1, "q": 2, "r": 3}], tmp_path / "t.csv")
    assert next(iter(open_data(file, (Input("x", F32, (None, width)),))))["x"].tolist() == [[1, 2, 3]]


def test_times_of_a_file_that_knows_them(tmp_path: Path) -> None:
    when = [datetime.datetime(2020, 1, 1)]
    file = write(pa.table({"when": when, "p": [1.0], "q": [2.0], "r": [3.0], "label": [4]}), tmp_path / "t.parquet")
    assert [s["x"].tolist() for s in open_data(file, ROW)] == [[[1, 2, 3]]]


@pytest.mark.parametrize("kind", ["list_", "large_list", "fixed"])
def test_a_list_of_features_is_the_row(tmp_path: Path, kind: str) -> None:
    made = pa.list_(pa.float64(), 3) if kind == "fixed" else getattr(pa, kind)(pa.float64())
    cells = pa.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], made)
    file = write(pa.table({"features": cells, "label": [0, 1]}), tmp_path / "t.parquet")
    assert [s["x"].tolist() for s in open_data(file, ROW)] == [[[1, 2, 3]], [[4, 5, 6]]]
    with pytest.raises(BadData, match=r"'x' has shape \[1, 3\], the model expects \[\?, 4\]"):
        list(open_data(file, (Input("x", F32, (None, 4)),)))


@pytest.mark.parametrize("name", ["x", "n"])
def test_whole_numbers_may_be_written_as_floats(tmp_path: Path, name: str) -> None:
    """As pandas does where one is missing."""
    inputs = (Input(name, np.dtype(np.int64), (None, 3 if name == "x" else 1)),)
    columns = ["p", "q", "r"] if name == "x" else ["n", "m"]
    count = 3 if name == "x" else 1
    csv_of([dict.fromkeys(columns, cell) for cell in ("3.0", "3", "3.5", "1e20", "")], tmp_path / "t.csv")
    write(pa.table(dict.fromkeys(columns, pa.array([3.0, 3.0, 3.5, 1e20, None]))), tmp_path / "t.parquet")
    for file in (tmp_path / "t.csv", tmp_path / "t.parquet"):
        data = open_data(file, inputs)
        rest = data.after(0)
        for _ in range(2):
            found = next(rest)[name]
            assert found.dtype == np.int64 and found.tolist() == [[3] * count]
        for n, message in ((2, "has type float64"), (3, "has type float64"), (4, "is empty")):
            with pytest.raises(BadData, match=message):
                next(data.after(n))
