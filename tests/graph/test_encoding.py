"""Weights on their way into a format: lazily, in slices, one at a time, and the same as all at once."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from looped import looped
from numpy.typing import NDArray

from onnxq import algorithms, formats, layouts
from onnxq.encoding import lazy, memo
from onnxq.encoding.lazy import Encoding
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor

WHOLE, ROWS, COLUMNS, BLOCKS = Granularity(), Granularity(0), Granularity(1), Granularity(1, 16)
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def assert_same(a: QuantizedTensor, b: QuantizedTensor) -> None:
    for name in ("codes", "scales", "zero_points"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y, err_msg=name)


@pytest.mark.sweep
@looped("algorithm", algorithms.DATA_FREE)
@looped("granularity", [WHOLE, ROWS, COLUMNS, BLOCKS, Granularity(0, 16)])
@pytest.mark.parametrize("name", formats.names())
def test_slices_are_the_whole(
    name: str, granularity: Granularity, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, format = normal(11, 50), formats.get(name)
    monkeypatch.setattr(lazy, "SLICE_ELEMENTS", 130)  # two or three rows
    sliced = Encoding(ir.tensor(w), format, granularity, algorithm=algorithm).result()
    assert_same(sliced, algorithms.DATA_FREE[algorithm](w, format, granularity))


@pytest.mark.parametrize(
    ("shape", "granularity"),
    [((40,), Granularity(0, 16)), ((4, 5, 6), Granularity(1, 4)), ((4, 5, 6), Granularity(2)), ((7, 1), ROWS)],
    ids=["40", "4x5x6-block4", "4x5x6-channel2", "7x1"],
)
def test_slices_of_other_ranks(
    shape: tuple[int, ...], granularity: Granularity, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, format = normal(*shape), formats.get("uint8")
    monkeypatch.setattr(lazy, "SLICE_ELEMENTS", 1)
    assert_same(Encoding(ir.tensor(w), format, granularity).result(), format.encode(w, granularity))


@looped("dtype", FLOATS)
@looped("name", formats.names())
def test_every_float_type_is_read_as_float32(name: str, dtype: type) -> None:
    w, format = normal(4, 32).astype(dtype), formats.get(name)
    assert_same(Encoding(ir.tensor(w), format, BLOCKS).result(), format.encode(w.astype(np.float32), BLOCKS))


@looped("bad", [np.nan, np.inf, -np.inf])
@looped("dtype", FLOATS)
@looped("name", formats.names())
def test_what_is_not_finite_is_refused_with_its_place(name: str, dtype: type, bad: float) -> None:
    w = normal(3, 32).astype(dtype)
    w[1, 5] = bad
    tensor = ir.tensor(w, name="conv.w")
    with pytest.raises(BadModel, match=r"weight 'conv\.w' holds -?(nan|inf) at \[1, 5\]; repair the model, or keep"):
        Encoding(tensor, formats.get(name), BLOCKS).result()


def test_the_place_is_that_in_the_whole_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "SLICE_ELEMENTS", 64)
    for granularity in (ROWS, BLOCKS, Granularity(0, 16), COLUMNS):
        w = normal(40, 32)
        w[33, 20] = np.nan
        with pytest.raises(BadModel, match=r"'w' holds nan at \[33, 20\]; "):
            Encoding(ir.tensor(w, name="w"), formats.get("int8"), granularity).result()


def test_float64_beyond_float32_is_refused_with_its_value() -> None:
    w = normal(3, 32).astype(np.float64)
    w[2, 4] = 1e300
    with pytest.raises(BadModel, match=r"weight 'w' holds 1e\+300 at \[2, 4\], beyond what float32 holds; "):
        Encoding(ir.tensor(w, name="w"), formats.get("uint4"), BLOCKS).result()


def test_nothing_is_computed_before_it_is_read_and_then_once() -> None:
    reads: list[int] = []

    def read() -> ir.Tensor:
        reads.append(1)
        return ir.tensor(normal(4, 32))

    tensor = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape((4, 32)))
    made = Encoding(tensor, formats.get("int8"), ROWS)
    parts = [made.part(layouts.codes), made.part(layouts.scales)]
    assert [part.shape.numpy() for part in parts] == [(4, 32), (4,)]
    assert reads == []
    wanted = formats.get("int8").encode(normal(4, 32), ROWS)
    np.testing.assert_array_equal(parts[0].numpy(), wanted.codes)
    np.testing.assert_array_equal(parts[1].numpy(), wanted.scales)
    assert reads == [1]


def test_only_the_last_encoding_is_remembered() -> None:
    a, b = (Encoding(ir.tensor(normal(2, 16)), formats.get("int8"), ROWS) for _ in range(2))
    first = a.result()
    assert a.result() is first
    b.result()
    assert a.result() is not first
    again = a.result()
    memo.forget()
    assert a.result() is not again


@pytest.mark.parametrize("shape", [(3, 32), (3, 17)], ids=["3x32", "3x17"])
def test_parts_of_four_bits_are_packed(shape: tuple[int, int]) -> None:
    made = Encoding(ir.tensor(normal(*shape)), formats.get("uint4"), BLOCKS)
    part = made.part(layouts.codes)
    assert part.dtype is ir.DataType.UINT4
    np.testing.assert_array_equal(part.numpy().astype(np.uint8), made.result().codes)
    assert part.nbytes == len(part.tobytes()) == -(-shape[0] * shape[1] // 2)


def test_scales_in_half_precision_are_converted() -> None:
    made = Encoding(ir.tensor(normal(3, 32)), formats.get("uint4"), BLOCKS)
    part = made.part(layouts.scales, ir.DataType.FLOAT16)
    np.testing.assert_array_equal(part.numpy(), formats.get("uint4").encode(normal(3, 32), BLOCKS).scales.astype("f2"))


@pytest.mark.parametrize("stretch", [1.0, 127 / 63])
def test_stretched_scales_leave_the_outermost_codes_unused(stretch: float) -> None:
    q = Encoding(ir.tensor(normal(5, 64)), formats.get("int8"), ROWS, stretch=stretch).result()
    assert np.abs(q.codes.astype(int)).max() == round(127 / stretch)


def test_scales_have_a_lower_bound_where_one_is_given() -> None:
    w = normal(3, 32)
    w[2] = 0
    least = np.array([10, 0, 1e-6], np.float32)
    q = Encoding(ir.tensor(w), formats.get("int8"), ROWS, least_scales=lambda: least).result()
    own = formats.get("int8").encode(w, ROWS)
    assert q.scales is not None and own.scales is not None
    np.testing.assert_array_equal(q.scales, [10, own.scales[1], np.float32(1e-6) * np.float32(1024)])
    np.testing.assert_array_equal(q.codes[2], 0)
    assert np.abs(q.dequantize() - w)[0].max() <= 5


def test_external_weights_are_unmapped_when_done(tmp_path: Path) -> None:
    w = normal(4, 32)
    (tmp_path / "w.data").write_bytes(w.tobytes())
    tensor = ir.ExternalTensor(
        "w.data", 0, w.nbytes, ir.DataType.FLOAT, shape=ir.Shape(w.shape), name="w", base_dir=tmp_path
    )
    assert_same(Encoding(tensor, formats.get("int8"), ROWS).result(), formats.get("int8").encode(w, ROWS))
    assert tensor.raw is None
