"""What is known of the elements of a shape that a model computes: never another number than the model's own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq.model.types import infer_types
from onnxq.passes.sizes import DEEPEST, MOST, sizes_of

NUMBERS = {"zero": [0], "one": [1], "two": [2], "last": [-1], "much": [2**31], "heads": [4, -1], "step": [2]}
S = "s = Shape(x)"
#: How a shape is computed to `c`, and its elements: a number, or an axis of x. None: it cannot be said.
KNOWN: dict[str, tuple[str, list[int | str] | None]] = {
    "whole": ("c = Shape(x)", ["x0", "x1", "x2"]),
    "from the second": ("c = Shape<start = 1>(x)", ["x1", "x2"]),
    "but the last": ("c = Shape<end = -1>(x)", ["x0", "x1"]),
    "the last": (f"{S} c = Gather(s, last)", ["x2"]),
    "some": (f"{S} t = Concat<axis = 0>(two, zero) c = Gather(s, t)", ["x2", "x0"]),
    "slice": (f"{S} c = Slice(s, one, much)", ["x1", "x2"]),
    "slice of the last": (f"{S} c = Slice(s, last, much, zero, one)", ["x2"]),
    "with steps": (f"{S} c = Slice(s, zero, much, zero, step)", None),
    "joined": (f"{S} g = Gather(s, one) c = Concat<axis = 0>(g, heads, g)", ["x1", 4, -1, "x1"]),
    "cast": (f"{S} g = Gather(s, one) i = Cast<to = 6>(g) c = Cast<to = 7>(i)", ["x1"]),
    "cut off": (f"{S} g = Gather(s, one) i = Cast<to = 2>(g) c = Cast<to = 7>(i)", None),
    "computed": (f"{S} g = Gather(s, one) c = Mul(g, two)", None),
    "taken twice": (f"{S} t = Slice(s, one, much) c = Gather(t, one)", ["x2"]),
}


def _read(body: str) -> tuple[ir.Model, ir.Value]:
    used = {name: np.array(value) for name, value in NUMBERS.items() if any(f"{name}{end}" in body for end in ",)")}
    model = tiny.read(tiny.model(f"g (float[n, 6, v] x) => (int64[r] c) {{ {body} }}", used))
    return model, model.graph.outputs[0]


@pytest.mark.parametrize("word", KNOWN)
def test_elements_are_those_that_the_model_computes(word: str) -> None:
    body, wanted = KNOWN[word]
    model, c = _read(body)
    found = sizes_of(c, infer_types(model))
    assert wanted == (found and [size if isinstance(size, int) else f"{size[0].name}{size[1]}" for size in found])
    if found is not None:
        x = normal(5, 6, 7)
        numbers = [size if isinstance(size, int) else x.shape[size[1]] for size in found]
        assert numbers == tiny.evaluate(model, x=x)[0].tolist()


@pytest.mark.parametrize(
    ("body", "is_known"),
    [
        (f"{S} c = Gather(s, two)", True),
        (f"{S} c = Slice(s, one, two)", True),
        (f"{S} c = Gather(s, last)", False),
        (f"{S} c = Slice(s, one, much)", False),
        ("c = Shape(x)", False),
    ],
)
def test_one_axis_needs_no_rank(body: str, is_known: bool) -> None:
    assert (sizes_of(_read(body)[1]) is not None) == is_known


def test_long_and_deep_shapes_are_not_read() -> None:
    def joined(times: int) -> str:
        return f"{S} g = Gather(s, one) c = Concat<axis = 0>({', '.join(['g'] * times)})"

    assert sizes_of(_read(joined(MOST))[1]) is not None
    assert sizes_of(_read(joined(MOST + 1))[1]) is None
    doubled = "".join(f" a{i + 1} = Concat<axis = 0>(a{i}, a{i})" for i in range(4 * DEEPEST))
    assert sizes_of(_read(f"{S} a0 = Gather(s, one) {doubled} c = Identity(a{4 * DEEPEST})")[1]) is None
    turned = "".join(f" a{i + 1} = Cast<to = {6 + i % 2}>(a{i})" for i in range(2000))
    assert sizes_of(_read(f"{S} a0 = Gather(s, one) {turned} c = Cast<to = 7>(a2000)")[1]) is None
