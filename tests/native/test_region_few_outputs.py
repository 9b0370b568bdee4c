"""Convolutions with few outputs, of which neighbouring pixels are computed together: the same codes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net
from region_runs import HAS_LIBRARY, require_equal

pytestmark = HAS_LIBRARY

KINDS: dict[str, dict[str, Any]] = {
    "9x9": {"kernel": (9, 9), "pads": [4, 4, 4, 4]},
    "3x3": {"kernel": (3, 3), "pads": [1, 1, 1, 1]},
    "strided": {"kernel": (3, 5), "pads": [0, 2, 1, 1], "strides": [2, 3]},
    "no-pads": {"kernel": (2, 7)},
    "dilated-rows": {"kernel": (3, 3), "pads": [2, 1, 2, 1], "dilations": [2, 1]},
    "dilated": {"kernel": (3, 3), "pads": [2, 2, 2, 2], "dilations": [2, 2]},
    "1x1": {"kernel": (1, 1)},
    "wide-pads": {"kernel": (1, 3), "pads": [2, 5, 1, 6]},
}


@pytest.mark.sweep
@pytest.mark.each_value
@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_few_outputs(kind: str, outputs: int) -> None:
    """Of three, and of many channels; the bias and the scale of each output; and without a bias."""
    for inputs, bias in ((3, True), (20, False)):
        net = Net(outputs, (2, inputs, 9, 14))
        net.outputs.append(net.conv(net.x, outputs, act="Relu", bias=bias, **KINDS[kind]))
        require_equal(net)


def test_all_widths() -> None:
    """What is left of the columns, or all of them, is computed pixel by pixel, and so is nothing but pads."""
    net = Net(1, (1, 6, 4, 4), declared=("n", 6, "h", "w"))
    y = net.conv(net.x, 3, (3, 3), pads=[1, 1, 1, 1])
    net.outputs += [net.conv(y, 3, (5, 5), pads=[2, 2, 2, 2]), net.conv(y, 1, (1, 1))]
    require_equal(net, *[(1, 6, 3, w) for w in range(1, 40)])
    require_equal(net, (0, 6, 5, 5), (3, 6, 1, 31), (2, 6, 33, 64))


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_what_is_added_to_it(op: str) -> None:
    net = Net(2, (2, 6, 7, 17))
    a = net.conv(net.x, 3, (3, 3), pads=[1, 1, 1, 1])
    net.outputs.append(net.binary(op, net.conv(a, 3, (3, 3), "Relu", pads=[1, 1, 1, 1]), a))
    require_equal(net)


def test_an_image_that_is_read_to_its_end() -> None:
    """What windows have beyond the last pixel of the last image is multiplied by zeros."""
    net = Net(3, (2, 130, 5, 23))
    net.outputs.append(net.conv(net.conv(net.x, 130, (1, 1)), 2, (3, 3)))
    require_equal(net)


@pytest.mark.sweep
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_of_them(data: st.DataObject) -> None:
    integer = st.integers
    net = Net(data.draw(integer(0, 2**32)), (data.draw(integer(1, 3)), *(data.draw(integer(1, 24)) for _ in range(3))))
    kernel = (data.draw(integer(1, 5)), data.draw(integer(1, 9)))
    pads = [data.draw(integer(k - 1, k + 1)) for k in (*kernel, *kernel)]
    strides = [data.draw(integer(1, 3)) for _ in range(2)]
    net.outputs.append(net.conv(net.x, data.draw(integer(1, 10)), kernel, pads=pads, strides=strides))
    require_equal(net)
