"""Shapes that only repeat dimensions become constants; all others stay, and nothing computes something else."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from tiny import normal

from onnxq.passes.prepare import prepare

HEAD = "a = Conv<pads = [1, 1, 1, 1]>(x, w)  t = Transpose<perm = [0, 2, 3, 1]>(a)"
BATCH = "s = Shape(a)  g = Gather<axis = 0>(s, zero)  u = Unsqueeze(g, first)"
CONSTANTS = {
    "w": normal(8, 4, 3, 3),
    "zero": np.array(0),
    "one": np.array([1]),
    "three": np.array(3),
    "first": np.array([0]),
    "rest": np.array([-1, 4]),
    "minus": np.array([-1]),
    "eight": np.array([8]),
}
#: From `a` and `t` to `y`.
FOLDED = {
    "heads": f"{HEAD}  {BATCH}  c = Concat<axis = 0>(u, rest)  y = Reshape(t, c)",
    "slice": f"{HEAD}  s = Shape(x)  u = Slice(s, first, one, first)  c = Concat<axis = 0>(u, rest)  y = Reshape(t, c)",
    "second": f"""{HEAD}  s = Shape(x)  g = Gather(s, first)  h = Gather(s, three)  i = Unsqueeze(h, first)
                  b = Transpose<perm = [0, 3, 2, 1]>(x)  r = Relu(b)  c = Concat<axis = 0>(g, i, minus)
                  z = Reshape(r, c)  y = Identity(z)""",
    "declared": f"{HEAD}  s = Shape(x)  g = Gather(s, one)  c = Concat<axis = 0>(minus, g, one)  y = Reshape(a, c)",
}
KEPT = {
    "another place": f"{HEAD}  s = Shape(t)  g = Gather(s, one)  c = Concat<axis = 0>(g, rest)  y = Reshape(t, c)",
    "pixels": f"""{HEAD}  s = Shape(x)  g = Gather(s, three)  i = Unsqueeze(g, first)  c = Concat<axis = 0>(minus, i)
                  y = Reshape(t, c)""",
    "allowzero": f"{HEAD}  {BATCH}  c = Concat<axis = 0>(u, minus, eight)  y = Reshape<allowzero = 1>(t, c)",
}


def _model(body: str) -> tiny.onnx.ModelProto:
    used = {name: value for name, value in CONSTANTS.items() if any(f"{name}{end}" in body for end in ",)")}
    return tiny.model(f"g (float[n, 4, h, v] x) => (float[] y) {{ {body} }}", used)


@pytest.mark.parametrize("word", FOLDED)
def test_what_repeats_dimensions_is_a_constant(word: str) -> None:
    proto = _model(FOLDED[word])
    made = tiny.read(proto)
    prepare(made)
    assert not {"Shape", "Gather", "Concat", "Slice", "Unsqueeze"} & set(tiny.ops(made))
    for shape in ((1, 4, 6, 8), (3, 4, 5, 4)):
        x = normal(*shape)
        np.testing.assert_array_equal(tiny.evaluate(proto, x=x)[0], tiny.evaluate(made, x=x)[0])


@pytest.mark.parametrize("word", KEPT)
def test_what_may_be_another_number_stays(word: str) -> None:
    made = tiny.read(_model(KEPT[word]))
    prepare(made)
    assert "Shape" in tiny.ops(made)


#: What each of the two passes of `FoldConstants` alone finds: a part of a shape, in front of `FoldShapes`; what is cast
#: of numbers that this one found, behind it.
BOTH = {
    "in front": f"{HEAD}  {BATCH}  m = Neg(one)  f = Mul(m, m)  c = Concat<axis = 0>(u, m, f)  y = Reshape(a, c)",
    "behind": f"{HEAD}  s = Shape(x)  g = Gather(s, one)  e = Cast<to = 1>(g)  y = Mul(a, e)",
}


@pytest.mark.parametrize("word", BOTH)
def test_constants_are_folded_in_front_of_shapes_and_behind_them(word: str) -> None:
    proto = _model(BOTH[word])
    made = tiny.read(proto)
    prepare(made)
    assert not {"Shape", "Concat", "Cast", "Neg"} & set(tiny.ops(made))
    x = normal(2, 4, 6, 8)
    np.testing.assert_array_equal(tiny.evaluate(proto, x=x)[0], tiny.evaluate(made, x=x)[0])
