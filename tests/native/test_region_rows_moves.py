"""Float32 that steps move straight from an input, straight to an output, or out of what has been written.

No file of onnxq's asks for it. It is what ONNX makes of the same nodes, and neither the caller's arrays nor outputs
that are there already change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from region_runs import HAS_LIBRARY, InvalidArgument, by_definition, options

import onnxq

pytestmark = HAS_LIBRARY

END = 1 << 24
#: Of dimensions, their places among images, channels, rows and columns.
PLACES = {2: (3, 1), 3: (0, 3, 1), 4: (0, 2, 3, 1)}
PADS = ("constant", "reflect", "edge")
Range = tuple[int, int, int]


@dataclass
class Both:
    """A list of steps, and nodes of ONNX that mean the same. Tensors are named by the steps that make them."""

    shape: tuple[Any, ...]
    lines: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, NDArray] = field(default_factory=lambda: {"scale": np.float32(0.25), "zero": np.uint8(99)})
    shapes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def add(self, line: str, shape: tuple[Any, ...], op: str, inputs: list[Any], **attributes: Any) -> int:
        number = len(self.lines)
        self.lines.append(line)
        self.shapes[number] = shape
        names = [f"v{each}" if isinstance(each, int) else self.named(each) for each in inputs]
        self.nodes.append(helper.make_node(op, names, [f"v{number}"], **attributes))
        return number

    def named(self, value: str | NDArray) -> str:
        if isinstance(value, str):
            return value
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def read(self) -> int:
        return self.add(f"read in=0 stack={int(len(self.shape) > 2)}", self.shape, "Identity", ["x"])

    def slice(self, x: int, ranges: list[Range]) -> int:
        kept = np.empty(self.shapes[x])[tuple(slice(*each) for each in ranges)]
        said = [self._of_places(x, [each[i] for each in ranges], without) for i, without in enumerate((0, END, 1))]
        line = f"slice x={x} starts={said[0]} stops={said[1]} steps={said[2]}"
        starts, stops, steps = (np.array(each, np.int64) for each in zip(*ranges, strict=True))
        return self.add(line, kept.shape, "Slice", [x, starts, stops, np.arange(len(ranges)), steps])

    def pad(self, x: int, before: list[int], behind: list[int], mode: int = 0) -> int:
        line = f"pad x={x} before={self._of_places(x, before)} behind={self._of_places(x, behind)} mode={mode}"
        shape = tuple(map(sum, zip(before, self.shapes[x], behind, strict=True)))
        return self.add(line, shape, "Pad", [x, np.array([*before, *behind], np.int64)], mode=PADS[mode])

    def transpose(self, x: int, perm: list[int]) -> int:
        line = f"arrange x={x} perm={','.join(map(str, perm))} stack=1"
        return self.add(line, tuple(self.shapes[x][axis] for axis in perm), "Transpose", [x], perm=perm)

    def flatten(self, x: int) -> int:
        first, *rest = self.shapes[x]
        return self.add(f"flatten x={x}", (first, int(np.prod(rest))), "Flatten", [x])

    def plus(self, x: int) -> int:
        return self.add(f"plus x={x},{x}", self.shapes[x], "Add", [x, x])

    def rounded(self, x: int) -> int:
        codes = self.add(f"encode x={x} scale=1 zero=2", self.shapes[x], "QuantizeLinear", [x, "scale", "zero"])
        return self.add(f"decode x={codes}", self.shapes[x], "DequantizeLinear", [codes, "scale", "zero"])

    def write(self, x: int) -> None:
        self.outputs.append(f"y{len(self.outputs)}")
        self.lines.append(f"write x={x} out={len(self.outputs) - 1}")
        self.nodes.append(helper.make_node("Identity", [f"v{x}"], [self.outputs[-1]]))

    def _of_places(self, x: int, numbers: list[int], without: int = 0) -> str:
        places = PLACES[len(numbers)]
        return ",".join(str(numbers[places.index(i)]) if i in places else str(without) for i in range(4))

    def model(self, *nodes: onnx.NodeProto) -> onnx.ModelProto:
        graph = helper.make_graph(
            list(nodes) or self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def region(self) -> onnx.ModelProto:
        steps = "\n".join(["region 1", *self.lines])
        made = self.model(
            helper.make_node("Region", ["x", "scale", "zero"], self.outputs, name="region", domain="onnxq", steps=steps)
        )
        made.opset_import.append(helper.make_opsetid("onnxq", 1))
        return made

    def require_equal(self) -> None:
        x = np.random.default_rng(0).normal(0, 3, self.shape).astype(np.float32)
        given, expected = x.copy(), by_definition(self.model(), x)
        session = onnxq.session(self.region().SerializeToString(), options(threads=1, optimized=False))
        for _ in range(2):
            found = session.run(None, {"x": x})
            np.testing.assert_array_equal(x, given)
            for y, y0 in zip(found, expected, strict=True):
                np.testing.assert_array_equal(y, y0)


@pytest.mark.parametrize("shape", [(7, 6), (2, 5, 6), (2, 3, 4, 6)], ids=str)
@pytest.mark.parametrize("source", ["input", "made", "written"])
@pytest.mark.parametrize("move", ["slice", "pad", "flatten", "transpose", "nothing"])
@pytest.mark.parametrize("then", ["written", "added"])
def test_moves_have_memory_of_their_own(shape: tuple[int, ...], source: str, move: str, then: str) -> None:
    both = Both(shape)
    rank = len(shape)
    x = both.read() if source == "input" else both.plus(both.read())
    if source == "written":
        both.write(x)
    moved = {
        "slice": lambda: both.slice(x, [(1, END, 1)] + [(0, END, 2)] * (rank - 1)),
        "pad": lambda: both.pad(x, [1] * rank, [3] * rank),
        "flatten": lambda: both.flatten(x),
        "transpose": lambda: both.transpose(x, list(range(rank))[::-1]),
        "nothing": lambda: x,
    }[move]()
    both.write(both.plus(moved) if then == "added" else moved)
    both.write(x)
    both.require_equal()


def test_pads_that_are_far_larger_than_their_input() -> None:
    """Written behind a buffer of the caller's, they ended the process."""
    both = Both((4, 6))
    x = both.read()
    both.write(both.pad(x, [0, 0], [2_000_000, 0]))
    both.write(both.pad(x, [0, 0], [0, 2_000_000], mode=2))
    both.require_equal()


ROWS, ALL = "before=0,0,0,0 behind=0,0,0,16777216", "before=16777216,0,0,16777216 behind=0,16777216,0,0"
TOO_LARGE = {
    f"pad x=0 {ALL}\nwrite x=1 out=0": "more bytes than any memory has",
    "\n".join([*(f"pad x={i} {ROWS}" for i in range(70)), "write x=70 out=0"]): "more than 1073741824 pixels",
}


@pytest.mark.parametrize("text", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_pads_that_no_memory_holds_are_refused(text: str) -> None:
    """Which shapes tell before anything is computed."""
    both = Both((1, 4, 6))
    both.write(both.read())
    both.lines = [both.lines[0], *text.split("\n")]
    session = onnxq.session(both.region().SerializeToString(), options(optimized=False))
    with pytest.raises(InvalidArgument, match=TOO_LARGE[text]):
        session.run(None, {"x": np.zeros(both.shape, np.float32)})


def test_sizes_beside_none_are_refused_as_others() -> None:
    """All together they are no bytes; what steps count of them would not fit its type."""
    both = Both(("n", "h", "w", "c"))
    both.write(both.plus(both.read()))
    session = onnxq.session(both.region().SerializeToString(), options(optimized=False))
    with pytest.raises(InvalidArgument, match="more bytes than any memory has"):
        session.run(None, {"x": np.zeros((0, 1 << 58, 1, 1), np.float32)})


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_lists_of_moves_compute_what_their_nodes_do(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    both = Both(data.draw(st.sampled_from([(4, 6), (1, 1), (2, 3, 4), (2, 2, 3, 4)])))
    made = [both.read()]
    for _ in range(draw(1, 8)):
        x = data.draw(st.sampled_from(made))
        shape = both.shapes[x]
        kind = data.draw(st.sampled_from(["slice", "pad", "transpose", "flatten", "plus", "rounded", "read", "write"]))
        if kind == "write":
            both.write(x)
        elif kind == "slice":
            made.append(both.slice(x, [_range(draw, size) for size in shape]))
        elif kind == "pad" and 0 not in shape:
            made.append(both.pad(x, *_pads(draw, shape)))
        elif kind == "transpose":
            made.append(both.transpose(x, data.draw(st.permutations(range(len(shape))))))
        elif kind in ("flatten", "plus", "rounded"):
            made.append(getattr(both, kind)(x))
        elif kind == "read":
            made.append(both.read())
    both.write(data.draw(st.sampled_from(made)))
    both.write(made[-1])
    both.require_equal()


def _range(draw: Any, size: int) -> Range:
    if draw(0, 1):
        return (0, END, 1)
    start, stop = draw(-size - 1, size), draw(-size - 1, size + 1)
    return (start, stop, draw(1, 3)) if draw(0, 1) else (start, draw(-size - 1, 0) or -END, -draw(1, 3))


def _pads(draw: Any, shape: tuple[int, ...]) -> tuple[list[int], list[int], int]:
    mode = draw(0, 2)
    most = [size - 1 if mode == 1 else 40 for size in shape]
    least = [-(size // 2) if mode == 0 else 0 for size in shape]
    before, behind = ([draw(low, min(high, 40)) for low, high in zip(least, most, strict=True)] for _ in range(2))
    return before, behind, mode
