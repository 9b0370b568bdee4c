"""Steps of regions that are tables, and those that move codes: the same numbers as their bodies, by every kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import FUNCTIONS, Net, operators, with_regions
from region_runs import HAS_LIBRARY, InvalidArgument, options, require_equal, said, saying

import onnxq
from onnxq.errors import BadModel

pytest.importorskip("onnxruntime")
pytestmark = HAS_LIBRARY


@pytest.mark.parametrize("word", FUNCTIONS)
def test_functions_are_tables(word: str) -> None:
    net = Net(20, (2, 70, 5, 6))
    a = net.conv(net.x, 70, (1, 1))
    net.outputs.append(net.conv(net.function(a, word), 5, (1, 1)))
    made = require_equal(net)
    assert operators(made) == ["Region"]
    (region,) = made.graph.node
    is_line = word == "by channel" or word.startswith("line")  # with a knee or without
    made_by = "affine" if is_line else "table"
    assert [step.split()[0] for step in said(region)] == ["quantize", "conv", made_by, "conv", "dequantize"]


@pytest.mark.parametrize("word", ["by channel", "curve by channel", "line from 0 on"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_constants_by_channel_in_any_rank(rank: int, word: str) -> None:
    net = Net(22, (3, 7, 5, 4)[:rank] if rank > 2 else (3, 7, 5, 4))
    a = net.conv(net.x, 9, (1,) * max(1, rank - 2) if rank > 2 else (1, 1))
    if rank == 2:
        a = net.flatten(net.pool("GlobalAveragePool", a))
    net.outputs.append(net.function(a, word))
    made = require_equal(net)
    assert operators(made) == ["Region"]


def test_differences() -> None:
    net = Net(23, (2, 20, 6, 7))
    a, b = net.conv(net.x, 20, (1, 1)), net.conv(net.x, 20, (1, 1))
    net.outputs += [net.binary("Sub", a, b), net.binary("Sub", net.pool("GlobalAveragePool", b), a)]
    made = require_equal(net)
    assert operators(made) == ["Region"]


def _ints(net: Net, *values: int) -> str:
    return net.constant(np.array(values, np.int64))


def _slices(net: Net, x: str) -> list[str]:
    n, c, h, w = net.shapes[x]
    some = [_ints(net, 1, -1), _ints(net, c - 1, -(2**40)), _ints(net, 1, 3), _ints(net, 1, -2)]
    return [
        net.moved("Slice", x, (n, c - 2, h, (w + 1) // 2), some),
        net.moved("Slice", x, (n, c, h // 2, w), [_ints(net, 1), _ints(net, 2**62), _ints(net, 2), _ints(net, 2)]),
    ]


def _pads(net: Net, x: str) -> list[str]:
    n, c, h, w = net.shapes[x]
    made = []
    for mode in ("constant", "reflect", "edge"):
        pads = _ints(net, 0, 1, 2, 0, 0, 0, 1, 3)
        made.append(net.moved("Pad", x, (n, c + 1, h + 3, w + 3), [pads], mode=mode))
    return made


def _resizes(net: Net, x: str) -> list[str]:
    n, c, h, w = net.shapes[x]
    made = []
    for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            modes = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest, "mode": "nearest"}
            ratios = net.constant(np.float32([1, 1, 2, 1.5]))
            made.append(net.moved("Resize", x, (n, c, 2 * h, int(1.5 * w)), ["", ratios], **modes))
            made.append(net.moved("Resize", x, (n, c, 5, 1), ["", "", _ints(net, n, c, 5, 1)], **modes))
    return made


def _orders(net: Net, x: str) -> list[str]:
    n, c, h, w = net.shapes[x]
    turned = net.node("Transpose", [x], perm=[0, 2, 3, 1])
    heads = net.moved("Reshape", turned, (n, h * w * c // 4, 4), [_ints(net, 0, -1, 4)], x) if c % 4 == 0 else None
    made = [] if heads is None else [heads]
    split = net.node("Reshape", [x, _ints(net, 0, 4, c // 4, h, w)])
    shuffled = net.node("Transpose", [split], perm=[0, 2, 1, 3, 4])
    made.append(net.moved("Reshape", shuffled, net.shapes[x], [_ints(net, 0, -1, h, w)], x))
    for mode in ("DCR", "CRD"):
        made.append(net.moved("DepthToSpace", x, (n, c // 4, 2 * h, 2 * w), blocksize=2, mode=mode))
    made.append(net.moved("SpaceToDepth", x, (n, 4 * c, h // 2, w // 2), blocksize=2))
    made.append(net.moved("Transpose", x, (n, c, w, h), perm=[0, 1, 3, 2]))
    made.append(net.moved("Reshape", x, (n, c * h * w), [_ints(net, n, -1)]))
    return made


def _splits(net: Net, x: str) -> list[str]:
    names = net.split(x, [1, net.shapes[x][1] - 3, 2])
    return [net.concat([names[2], names[0]]), names[1]]


MOVES = {"slice": _slices, "pad": _pads, "resize": _resizes, "order": _orders, "split": _splits}


@pytest.mark.parametrize("word", MOVES)
def test_moves(word: str) -> None:
    """Behind a convolution, and in front of another, whose pads they lie in."""
    net = Net(24, (2, 12, 6, 8))
    a = net.conv(net.x, 12, (1, 1))
    for y in MOVES[word](net, a):
        if len(net.shapes[y]) == 4:
            y = net.conv(y, 3, (3, 3), pads=[1, 1, 1, 1])
        net.outputs.append(y)
    net.outputs.append(net.conv(a, 3, (3, 3), pads=[1, 1, 1, 1]))
    made = require_equal(net)
    assert operators(made) == ["Region"]


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_concatenation_along_any_axis(axis: int) -> None:
    net = Net(25, (2, 6, 5, 4))
    a, b = net.conv(net.x, 7, (1, 1)), net.conv(net.x, 7, (1, 1))
    net.outputs.append(net.conv(net.concat([a, b, a], axis), 3, (3, 3), pads=[1, 1, 1, 1]))
    made = require_equal(net)
    assert operators(made) == ["Region"]


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_slices_and_pads(data: st.DataObject) -> None:
    size = st.integers(1, 7)
    shape = tuple(data.draw(st.tuples(st.integers(1, 2), st.integers(1, 9), size, size)))
    net = Net(26, shape)
    a = net.conv(net.x, shape[1], (1, 1))
    starts, stops = ([data.draw(st.integers(-9, 9)) for _ in shape] for _ in range(2))
    steps = [data.draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    made = [len(range(n)[start:stop:step]) for n, start, stop, step in zip(shape, starts, stops, steps, strict=True)]
    given_ = [_ints(net, *starts), _ints(net, *stops), _ints(net, 0, 1, 2, 3), _ints(net, *steps)]
    if all(made):
        net.outputs.append(net.moved("Slice", a, tuple(made), given_))
    mode = data.draw(st.sampled_from(["constant", "edge"]))
    pads = [data.draw(st.integers(0, 3)) for _ in range(8)]
    padded = tuple(n + pads[i] + pads[4 + i] for i, n in enumerate(shape))
    net.outputs.append(net.moved("Pad", a, padded, [_ints(net, *pads)], mode=mode))
    require_equal(net)


HOSTILE = {
    "table x=0 table=2 scale=1 zero=2": "256 codes",
    "affine x=0 weight=1 bias=1 scale=1 zero=2": "has numbers for 1 channels of",
    "affine x=0 weight=2 bias=1 scale=1 zero=2": "reads input 2 as its weight",
    "affine x=0 weight=1 scale=1 zero=2": "bias",
    "affine x=0 weight=1 bias=1": "scale",
    "affine x=0 weight=1 bias=1 scale=1 zero=2 knee=1": "has numbers for 1 channels of",
    "affine x=0 weight=1 bias=1 scale=1 zero=2 knee=2": "reads input 2 as its knee",
    "slice x=0 starts=0,0,0,0 stops=1,1,1,1 steps=1,1,1,0": "in steps of 0",
    "pad x=0 before=0,-9,0,0 behind=0,0,0,0": "more than its input allows",
    "pad x=0 before=0,0,9,0 behind=0,0,0,0 mode=1": "more than its input allows",
    "pad x=0 before=16777216,16777216,16777216,0 behind=0,0,0,0": "more bytes than any memory",
    "resize x=0": "must say one of",
    "resize x=0 sizes=1": "reads input 1 as its sizes",
    "resize x=0 ratios=1": "another number of sizes",
    "arrange x=0 shape=-1,-1": "leaves two dimensions open",
    "arrange x=0 shape=5,5": "does not hold its input",
    "arrange x=0 shape=0,0,0,0,0,0": "copies a dimension",
    "arrange x=0 perm=0,0,1,2": "no order of its dimensions",
    "arrange x=0 perm=0,1": "no order of its dimensions",
    "arrange x=0 shape=16777216,16777216,16777216,16777216": "does not hold its input",
    "arrange x=0 shape=-1": "rank is not 2, 3 or 4",
    "depth_to_space x=0 block=2": "does not consist of",
    "concat x=0,0 axis=9 scale=1 zero=2": "out of range",
    "constant codes=1 scale=1 zero=2": "reads input 1 as its codes",
}


@pytest.mark.parametrize("step", HOSTILE, ids=range(len(HOSTILE)))
def test_steps_that_cannot_be_right(step: str) -> None:
    net = Net(27, (1, 3, 6, 6), declared=("n", "c", "h", "w"))
    net.outputs.append(net.conv(net.x, 4, (3, 3)))
    text = f"region 1\nquantize in=0 scale=1 zero=2\n{step}\ndequantize x=1 out=0"
    hostile = saying(with_regions(net.model()), text).SerializeToString()
    with pytest.raises((BadModel, InvalidArgument), match="onnxq node 'region'") as error:
        onnxq.session(hostile, options(optimized=False)).run(None, {"x": np.zeros((1, 3, 6, 6), np.float32)})
    assert HOSTILE[step] in str(error.value)
