"""Convolutions of 3×3 by Winograd's transformation, in integers: the same codes, whatever numbers there are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from islands import Net, with_regions
from numpy.typing import NDArray
from region_runs import HAS_LIBRARY, ISAS, by_definition, by_kernels, options, require_equal, samples

import onnxq
from onnxq.errors import BadModel

pytestmark = HAS_LIBRARY

PADS = [1, 1, 1, 1]
#: Sums of products of codes that 26 bits hold (custom_ops/region/winograd.h), and one more channel of 127s.
FITTING, TOO_MANY = 112, 116


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also where it is slower."""
    monkeypatch.setenv("ONNXQ_WINOGRAD", "always")
    return


@pytest.mark.sweep
@pytest.mark.each_value
@pytest.mark.parametrize("outputs", [1, 7, 8, 16, 17, 33, 40, 64])
@pytest.mark.parametrize("inputs", [4, 12, 16, 20, 36, 68])
def test_numbers_of_channels(inputs: int, outputs: int) -> None:
    net = Net(inputs * 100 + outputs, (2, inputs, 6, 9))
    net.outputs.append(net.conv(net.x, outputs, (3, 3), "Relu", pads=PADS))
    require_equal(net)


def test_all_sizes_of_images() -> None:
    """Squares that reach beyond the image, in rows, in columns and in both; and enough of them for several at once."""
    net = Net(1, (1, 8, 4, 4), declared=("n", 8, "h", "w"))
    net.outputs.append(net.conv(net.conv(net.x, 20, (3, 3), pads=PADS), 12, (3, 3), "Clip", pads=PADS))
    require_equal(net, *[(1, 8, h, w) for h in range(1, 10) for w in range(1, 10)])
    require_equal(net, (0, 8, 5, 5), (3, 8, 5, 70), (2, 8, 41, 33))


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [2, 0, 1, 3], [4, 5, 3, 6], [0, 1, 2, 0]], ids=str)
def test_pads(pads: list[int]) -> None:
    net = Net(2, (2, 8, 7, 10))
    net.outputs.append(net.conv(net.x, 24, (3, 3), pads=pads))
    require_equal(net)


@pytest.mark.sweep
@pytest.mark.each_value
@pytest.mark.parametrize("channels", [4, 20, 32, 48])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_what_is_added_to_it(op: str, channels: int) -> None:
    net = Net(3, (2, channels, 9, 11), declared=("n", channels, "h", "w"))
    a = net.conv(net.x, channels, (1, 1))
    b = net.binary(op, net.conv(a, channels, (3, 3), "Relu", pads=PADS), a, "Relu")
    net.outputs.append(net.binary(op, b, net.conv(b, channels, (3, 3), pads=PADS)))
    require_equal(net, *[(n, channels, h, w) for n in (1, 2) for h, w in ((1, 1), (9, 11), (4, 38))])


def test_what_is_stored_between_other_channels() -> None:
    net = Net(4, (2, 16, 6, 7))
    a, b = net.conv(net.x, 24, (3, 3), "Relu", pads=PADS), net.conv(net.x, 8, (1, 1))
    net.outputs.append(net.concat([b, a, b]))
    require_equal(net)


def test_two_transformed_weights_in_one_place_and_many_threads() -> None:
    net = Net(5, (3, 32, 21, 22))
    y = net.x
    for channels in (64, 16, 96, 32):
        y = net.conv(y, channels, (3, 3), "Relu", pads=PADS)
    net.outputs.append(y)
    made = with_regions(net.model())
    x = samples(net)
    (expected,) = by_definition(net.model(), x)
    session = onnxq.session(made.SerializeToString(), options(threads=5))
    for _ in range(5):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


def convolution(weight: NDArray, zeros: tuple[int, int], shape: tuple[int, ...], scale: float) -> onnx.ModelProto:
    """Of codes of step 1 and weights of step 1/4; `zeros` of x and of y."""
    net = Net(6, shape)
    net.nodes.clear()
    x = net.quantized("x", 1.0, zeros[0])
    dequantized, scales = net.weight(weight, 0)
    weights = next(name for name, array in net.constants.items() if array is scales)
    net.constants[weights] = np.full(len(scales), 0.25, np.float32)
    y = net.node("Conv", [x, dequantized], kernel_shape=[3, 3], pads=PADS)
    net.outputs.append(net.quantized(y, scale, zeros[1]))
    return net.model()


def by_integers(codes: NDArray, weight: NDArray, zeros: tuple[int, int], scale: float) -> NDArray:
    """What the convolution's definition says, of codes."""
    padded = np.pad(codes.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=zeros[0]) - zeros[0]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwyx,ocyx->nohw", windows, weight.astype(np.int64), optimize=True)
    steps = np.rint(sums.astype(np.float32) * (np.float32(0.25) / np.float32(scale))) + zeros[1]
    return (np.clip(steps, 0, 255) - zeros[1]).astype(np.float32) * np.float32(scale)


def require_integers(codes: NDArray, weight: NDArray, zeros: tuple[int, int], scale: float) -> None:
    made = with_regions(convolution(weight, zeros, codes.shape, scale))
    x = codes.astype(np.float32) - zeros[0]
    expected = by_integers(codes, weight, zeros, scale)
    for isa in ISAS:
        np.testing.assert_array_equal(by_kernels(made, isa).run(None, {"x": x})[0], expected)


@pytest.mark.each_value
@pytest.mark.parametrize("zeros", [(0, 0), (0, 255), (255, 0), (255, 255), (128, 100)], ids=str)
@pytest.mark.parametrize("weights", [-128, 127, 0])
@pytest.mark.parametrize("channels", [FITTING, TOO_MANY])
def test_the_largest_sums(channels: int, weights: int, zeros: tuple[int, int]) -> None:
    """With the last channels they are kept from it, or sums would wrap. `weights`: or both by turns."""
    weight = np.full((9, channels, 3, 3), weights, np.int8)
    if not weights:
        weight[:] = np.where(np.indices(weight.shape).sum(axis=0) % 2, 127, -128)
    codes = np.full((1, channels, 5, 6), 255, np.uint8)
    codes[..., 3:] = 0
    require_integers(codes, weight, zeros, 2.0**18)
    require_integers(255 - codes, weight, zeros, 2.0**18)


#: What squares of codes, and kernels, are multiplied with along each side.
ROWS_OF_X = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, 4, 4, -1, -1, 0],
        [0, -4, 4, 1, -1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
ROWS_OF_W = np.array([[6, 0, 0], [4, 4, 4], [4, -4, 4], [1, 2, 4], [1, -2, 4], [0, 0, 12]])


@pytest.mark.sweep
def test_the_largest_transforms() -> None:
    """Each of the 36 places of a square at both its ends, of weights and of codes, in one image of many squares."""
    squares, kernels = [], []
    for y in range(6):
        for x in range(6):
            of_x, of_w = np.outer(ROWS_OF_X[y], ROWS_OF_X[x]), np.outer(ROWS_OF_W[y], ROWS_OF_W[x])
            squares += [np.where(of_x > 0, 255, 0), np.where(of_x > 0, 0, 255)]
            kernels += [np.where(of_w > 0, 127, -128), np.where(of_w > 0, -128, 127)]
    # Squares of 6×6 lie apart by 8, two of 4×4 outputs: each begins where a square of the algorithm does.
    codes = np.zeros((1, 72, 6 * 8 + 1, 12 * 8 + 1), np.uint8)
    for i, square in enumerate(squares):
        row, column = 8 * (i // 12), 8 * (i % 12)
        kept = square[1 if row == 0 else 0 :, 1 if column == 0 else 0 :]  # the pad comes first
        top, left = max(row - 1, 0), max(column - 1, 0)
        codes[:, :, top : top + kept.shape[0], left : left + kept.shape[1]] = kept
    weight = np.repeat(np.array(kernels, np.int8)[:, None], 72, axis=1)
    require_integers(codes, weight, (0, 128), 2.0**14)
    require_integers(codes, weight, (255, 128), 2.0**14)


def test_transforms_fit_16_bits() -> None:
    """The largest code or weight times all that is added, less the smallest times all that is taken off."""
    for rows, low, high in ((ROWS_OF_X, 0, 255), (ROWS_OF_W, -128, 127)):
        both = np.kron(rows, rows)
        most = np.where(both > 0, both * high, both * low).sum(axis=1)
        least = np.where(both > 0, both * low, both * high).sum(axis=1)
        assert most.max() < 2**15 and least.min() >= -(2**15)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[NDArray, NDArray, tuple[int, int], float]:
    """Codes and weights that are often at their ends."""
    integer = st.integers
    rng = np.random.default_rng(draw(integer(0, 2**32)))
    channels, outputs = 4 * draw(integer(1, 30)), draw(integer(1, 40))
    shape = (draw(integer(1, 2)), channels, draw(integer(1, 14)), draw(integer(1, 14)))
    ends = draw(st.sampled_from([0.0, 0.5, 1.0]))
    codes = np.where(rng.random(shape) < ends, rng.choice([0, 255], shape), rng.integers(0, 256, shape))
    kernel = (outputs, channels, 3, 3)
    weight = np.where(rng.random(kernel) < ends, rng.choice([-128, 127], kernel), rng.integers(-128, 128, kernel))
    zeros = (draw(st.sampled_from([0, 1, 128, 255])), draw(st.sampled_from([0, 77, 255])))
    return codes.astype(np.uint8), weight.astype(np.int8), zeros, 2.0 ** draw(integer(4, 12))


@pytest.mark.sweep
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(convolutions())
def test_any_codes_and_weights(drawn: tuple[NDArray, NDArray, tuple[int, int], float]) -> None:
    require_integers(*drawn)


@pytest.mark.parametrize("use", ["", "never"])
def test_where_it_is_used_makes_no_difference(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(7, (1, 64, 30, 29))
    net.outputs.append(net.conv(net.conv(net.x, 64, (3, 3), pads=PADS), 64, (3, 3), pads=PADS))
    monkeypatch.setenv("ONNXQ_WINOGRAD", use)
    require_equal(net)


def test_another_word_is_refused() -> None:
    net = Net(8, (1, 4, 5, 5))
    net.outputs.append(net.conv(net.x, 4, (3, 3)))
    made = with_regions(net.model()).SerializeToString()
    before = os.environ["ONNXQ_WINOGRAD"]
    os.environ["ONNXQ_WINOGRAD"] = "sometimes"
    try:
        with pytest.raises(BadModel, match="ONNXQ_WINOGRAD = 'sometimes': may be always, never or nothing"):
            onnxq.session(made)
    finally:
        os.environ["ONNXQ_WINOGRAD"] = before
