"""What names of dimensions say: sums of others, batches, or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.made_up.dims import Dims
from onnxq.runtime.session import Input

F32 = np.dtype(np.float32)


def test_sums_as_exporters_write_them() -> None:
    texts = ("s0", "s1", "s0 + s1", "2*s0", "s0//2", "floor(s0/2) + 1", "s0 % 3", "s0**2", "-s1 + s0", "Max(s1, 7)")
    i = Input("x", F32, texts)
    found = Dims([i]).shape(i, {"s0": 9, "s1": 2})
    assert found == (9, 2, 11, 18, 4, 5, 0, 81, 7, 7)


@pytest.mark.parametrize("name", ["batch-size", "input:0", "None", "unk__12", "a b", "f(x)", "", "x.shape[0]", "1e9"])
def test_names_that_are_no_sums(name: str) -> None:
    i = Input("x", F32, (3, name, 2))
    dims = Dims([i])
    (symbol,) = dims.symbols
    assert dims.shape(i, {symbol: 5}) == (3, 5, 2)


@pytest.mark.parametrize(
    ("shapes", "batch"),
    [
        ([("unk__1", "unk__2", "unk__3", 3)], ["unk__1"]),  # a converter of TensorFlow's names each dimension so
        ([("unk__7", "unk__8"), ("unk__9", "unk__10")], ["unk__7", "unk__9"]),
        ([(1, 16, "n", "m")], []),
        ([("N", 3, "h", "w")], ["N"]),
        ([(12, "batch", "n")], ["batch"]),
        ([("", 3)], ["x0:0"]),
        ([("s77", 3, 32, 32)], ["s77"]),  # torch numbers dimensions that nobody named
        ([("s77", 3, "s53", "s0"), ("s77",)], ["s77"]),
        ([("s10", "s21"), ("s10", "s21")], ["s10"]),
        ([("s23", "s27"), (2, "s23", 2, "s5", 16)], ["s23"]),
        ([("s0", 40, "s71"), ("s0", 8)], ["s0"]),
        ([("s0", "s26", 40), ("s0",)], ["s0"]),
        ([("s0", "s26", 40)], []),  # steps or samples
        ([("s37", 6)], []),
        ([("s0",)], []),
        ([("s77", "s3"), (2, "s26")], []),  # nodes, of which there are pairs in the other input
    ],
)
def test_what_any_dimension_may_be_called_is_a_batch_where_it_comes_first(
    shapes: list[tuple[int | str, ...]], batch: list[str]
) -> None:
    inputs = [Input(f"x{number}", F32, shape) for number, shape in enumerate(shapes)]
    assert Dims(inputs).batch == batch
