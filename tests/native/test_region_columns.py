"""Images of one column, whose pixels are computed together as those of one row: the same numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net
from region_runs import HAS_LIBRARY, require_equal

pytestmark = HAS_LIBRARY
HEIGHTS = (1, 2, 3, 5, 17, 31, 64, 95)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_all_heights(stride: int) -> None:
    """Some of which leave less to read behind the last pixel than is read together."""
    net = Net(1, (2, 20, 9, 1), declared=("n", 20, "h", 1))
    y = net.conv(net.x, 40, (3, 1), "Relu", pads=[1, 0, 1, 0], strides=[stride, 1])
    net.outputs += [net.conv(y, 70, (1, 1)), net.conv(y, 3, (5, 1), pads=[2, 0, 2, 0], dilations=[1, 1])]
    require_equal(net, *[(n, 20, h, 1) for n in (1, 2) for h in HEIGHTS], (0, 20, 9, 1))


def test_rows_that_become_one_column() -> None:
    """By kernels that are as wide as the image; of what others read with pads at the sides, too."""
    net = Net(2, (2, 17, 12, 4))
    a = net.conv(net.x, 33, (1, 1), "Relu")
    y = net.conv(a, 35, (3, 4), pads=[1, 0, 1, 0], strides=[2, 1])
    net.outputs += [net.conv(y, 16, (3, 1)), net.conv(a, 5, (3, 3), pads=[1, 1, 1, 1])]
    require_equal(net)


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_what_is_added_to_it(op: str) -> None:
    net = Net(3, (2, 24, 41, 1))
    a = net.conv(net.x, 24, (3, 1), "Relu", pads=[1, 0, 1, 0])
    b = net.conv(a, 24, (5, 1), "Relu", pads=[2, 0, 2, 0])
    net.outputs.append(net.binary(op, b, a))
    require_equal(net)


@pytest.mark.sweep
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_of_them(data: st.DataObject) -> None:
    integer = st.integers
    shape = (data.draw(integer(1, 3)), data.draw(integer(1, 40)), data.draw(integer(2, 70)), data.draw(integer(1, 2)))
    net = Net(data.draw(integer(0, 2**32)), shape)
    kernel = (data.draw(integer(1, 4)), shape[3])
    pads = [kernel[0] - 1, 0, data.draw(integer(0, 3)), 0]
    strides, group = [data.draw(integer(1, 4)), data.draw(integer(1, 3))], data.draw(st.sampled_from([1, shape[1]]))
    net.outputs.append(net.conv(net.x, shape[1] if group > 1 else 37, kernel, pads=pads, strides=strides, group=group))
    require_equal(net)
