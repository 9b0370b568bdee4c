"""Samples as programs hand them in: texts as bytes, masks, tensors of torch, and iterators without an end."""

from __future__ import annotations

import sys
from collections import UserList, deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.runtime.session import Input
from onnxq.samples.source import DataSource, open_data

X = (Input("x", np.dtype(np.float32), (None, 3)),)
TEXTS = (Input("x", np.dtype(np.object_), (None,)),)


def samples(source: DataSource, inputs: tuple[Input, ...] = X) -> list[dict[str, NDArray]]:
    return list(open_data(source, inputs))


def counting(*shape: int) -> NDArray[np.float32]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("given", [np.array([b"caf\xc3\xa9", b"tea"]), np.array([b"caf\xc3\xa9", "tea"], object)])
def test_bytes_are_texts_in_utf_8(given: NDArray, tmp_path: Path) -> None:
    """onnxruntime would take them for the texts "b'café'"."""
    (first, second) = samples([{"x": given[:1]}, {"x": given[1:]}], TEXTS)
    assert (first["x"].tolist(), second["x"].tolist()) == (["café"], ["tea"])
    if given.dtype.kind == "S":
        np.savez(tmp_path / "x.npz", x=given)
        assert [each["x"].tolist() for each in samples(tmp_path / "x.npz", TEXTS)] == [["café"], ["tea"]]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (b"\xff", r"'x' holds bytes that are not text in UTF-8: b'\\xff'"),
        (None, r"'x' holds None at \[1\], the model expects text"),
        (1.5, r"'x' holds 1.5 at \[1\], the model expects text"),
        ({}, r"'x' holds something of type dict at \[1\], the model expects text"),
    ],
)
def test_what_is_no_text_is_refused(word: object, says: str) -> None:
    with pytest.raises(BadData, match=says):
        samples([{"x": np.array(["a", word], object)}], TEXTS)


def test_masked_elements_are_refused_and_others_taken() -> None:
    x = np.ma.array(counting(1, 3), mask=False)
    assert np.array_equal(samples([{"x": x}])[0]["x"], counting(1, 3))
    x[0, 1] = np.ma.masked
    inner: list[Any] = [[x[0]], deque([x[0]]), UserList([[*x[0]][:1], x[0]])]
    for source in ([{"x": x}], lambda: [{"x": x}], iter([{"x": x}]), *([{"x": each}] for each in inner)):
        with pytest.raises(BadData, match="'x' of a sample has masked elements"):
            samples(source)


def test_no_more_is_asked_of_an_iterator_than_is_used() -> None:
    asked = 0

    def endless() -> Iterator[dict[str, NDArray]]:
        nonlocal asked
        while True:
            asked += 1
            yield {"x": np.full((1, 3), asked, np.float32)}

    data = open_data(endless(), X).limited(4)
    assert asked == 0
    for _ in range(2):  # it can be gone through once only, what it gave as often as one likes
        assert [sample["x"][0, 0] for sample in data] == [1, 2, 3, 4]
    assert asked == 4


def test_an_iterator_that_fails_fails_again() -> None:
    """A generator would only end, and fewer samples be taken for all."""

    def failing() -> Iterator[dict[str, NDArray]]:
        yield {"x": counting(1, 3)}
        raise KeyError("lost")

    data = open_data(failing(), X)
    for _ in range(2):
        with pytest.raises(BadData, match="failed with KeyError"):
            list(data)


def test_masks_in_lists_are_masks_too() -> None:
    row = np.ma.masked_equal([[1.0, 2.0, 3.0]], 2)
    for x in ([row], (row,), [[1.0, np.ma.masked, 2.0]]):
        with pytest.raises(BadData, match="masked elements"):
            samples([{"x": x}])  # type: ignore[dict-item]


def test_tensors_that_numpy_does_not_take_are_samples() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(3.0).reshape(1, 3).requires_grad_()
    turned = torch.complex(x.detach(), -x.detach()).conj().imag  # whose sign is still to come
    for each in (x, x.bfloat16(), torch.nn.Parameter(x.detach()), [x[0]], ([*x[0]],), [x[0].bfloat16()], turned):
        np.testing.assert_array_equal(samples([{"x": each}])[0]["x"], [[0, 1, 2]])


@pytest.mark.parametrize("attributes", [{}, {"Tensor": 3}], ids=["half imported", "a stand-in"])
def test_arrays_are_samples_whatever_is_called_torch(
    attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ModuleType("torch")
    vars(stand_in).update(attributes)
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    assert np.array_equal(samples([{"x": counting(1, 3)}])[0]["x"], counting(1, 3))


@pytest.mark.parametrize("times", [1, 2])
def test_a_list_that_holds_itself_is_refused(times: int) -> None:
    x: list[Any] = []
    x += [x] * times
    with pytest.raises(BadData, match="a list that holds itself is no array"):
        samples([{"x": x}])  # type: ignore[dict-item]
