"""Depthwise convolutions of bf16 regions: pixels that are computed together, few channels, the rest of a row."""

from __future__ import annotations

import kernels
import pytest
from numbers_net import Net, steps
from test_bf16_region import require_rounded

from onnxq.runtime import native

pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.skipif("avx512_bf16" not in kernels.isas(), reason="without bfloat16 the bodies run"),
]

WINDOWS = {
    "3": {"kernel": (3, 3), "pads": [1, 1, 1, 1]},
    "3, every other": {"kernel": (3, 3), "pads": [1, 1, 1, 1], "strides": [2, 2]},
    "5": {"kernel": (5, 5), "pads": [2, 2, 2, 2]},
    "5, every other": {"kernel": (5, 5), "pads": [2, 2, 2, 2], "strides": [2, 2]},
    "5 × 3": {"kernel": (5, 3), "pads": [2, 1, 2, 1]},
    "7": {"kernel": (7, 7), "pads": [3, 3, 3, 3]},
    "7, every other": {"kernel": (7, 7), "pads": [3, 3, 3, 3], "strides": [2, 2]},
    "one row": {"kernel": (1, 7), "pads": [0, 3, 0, 3]},
    "3 × 5, every other": {"kernel": (3, 5), "pads": [1, 2, 1, 2], "strides": [1, 2]},
    "9": {"kernel": (9, 9), "pads": [4, 4, 4, 4]},
    "apart": {"kernel": (3, 3), "pads": [2, 2, 2, 2], "dilations": [2, 2]},
    "every third": {"kernel": (3, 3), "pads": [1, 1, 1, 1], "strides": [1, 3]},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("channels", [5, 8, 16, 24, 32, 40])
def test_of_rows_of_all_lengths(channels: int, window: str) -> None:
    given = dict(WINDOWS[window])
    shape = (channels, 1, *given.pop("kernel"))
    net = Net(1, (2, channels, 6, 7), declared=("n", channels, "h", "w"))
    y = net.conv("x", shape, group=channels, **given)
    net.outputs.append(net.node("Relu", [y]))
    if "strides" not in given:
        net.outputs.append(net.node("Add", ["x", net.conv("x", shape, group=channels, **given)]))
    made = require_rounded(net, *((1 + width % 2, channels, 5, width) for width in (1, 3, 4, 9, 16, 19)))
    assert all(line.split()[0] in ("read", "write", "conv") for line in steps(made))
