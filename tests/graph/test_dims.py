"""What is said of dimensions is so, whatever the sizes of inputs are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tiny
from tiny import normal

from onnxq.model import graph
from onnxq.model.dims.dimensions import add, sizes_of
from onnxq.model.dims.known import Dim, Dims, Least, Sizes
from onnxq.model.types import infer_types, types_of
from onnxq.passes.fold_shapes import FoldShapes

CONSTANTS = {
    "zero": np.array(0),
    "unit": np.array(1),
    "pair": np.array(2),
    "one": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "first": np.array([0]),
    "last": np.array([-1]),
    "huge": np.array([2**40]),
    "pixels": np.array([2, 3]),
    "both": np.array([0, 1]),
    "flat": np.array([0, -1]),
    "heads": np.array([0, 0, 2, 2]),
    "w": normal(5, 4, 3, 3),
    "v": normal(4, 5, 3, 3),
    "m": normal(4, 6),
    "row": normal(1, 4),
    "table": normal(6, 4),
    "table9": normal(1, 9, 4),
    "token": normal(1, 1, 4),
    "table3": normal(1, 1, 4),
    "square": normal(9, 9),
    "matrix": normal(4, 4),
    "twice": np.array([1, 1, 2, 2], np.float32),
    "half": np.array([0.5, 1], np.float32),
    "rows": np.array([0, 0, 1, 0, 0, 0, -1, 2]),
    "more": np.array([1, 2]),
    "third": np.array([3]),
    "times": np.array([1, 3, 1]),
    "none": np.zeros(0, np.float32),
}
#: Of x [n, 4, h, v] and r [n, t, 4]; by what it is about.
BODIES = {
    "windows": """a = Conv(x, w)  b = ConvTranspose(x, v)  c = MaxPool<kernel_shape = [2, 2]>(a)
                  y = GlobalAveragePool(c)""",
    "resized": """a = Resize<mode = "nearest">(x, , twice)  s = Shape(x)  b = Resize<mode = "linear">(a, none, , s)
                  c = Resize<mode = "nearest", axes = [-2, 1]>(x, , half)  d = Add(x, b)  e = Shape(r)
                  f = Slice(e, first, two, first)  g = Slice(s, two, huge, first)
                  i = Resize<axes = [2, 3], keep_aspect_ratio_policy = "not_larger">(x, , , g)
                  j = Resize<axes = [3, 2]>(x, , , f)  y = Concat<axis = 0>(x, d)""",
    "padded": """a = Pad(x, rows)  b = Pad<mode = "edge">(x, more, , third)  c = Pad<mode = "wrap">(r, both, , one)
                 y = Pad(a, rows)""",
    "pixels": """a = Resize<mode = "nearest">(x, , twice)  b = SpaceToDepth<blocksize = 2>(a)
                 c = DepthToSpace<blocksize = 2>(b)  d = Slice(r, first, two, two)  e = Unsqueeze(d, one)
                 f = GridSample(x, e)  g = LpPool<kernel_shape = [2, 2]>(x)  y = Add(a, c)""",
    "places": """a = ArgMax<axis = -1>(r)  b = ArgMin<axis = 1, keepdims = 0>(x)  c = GatherElements<axis = 2>(r, a)
                 d = Tile(r, times)  e = Tile(c, times)  f = ReduceL2<axes = [1]>(r)  g = Sum(r, row, f)
                 y = Mean(d, f)""",
    "elements": """s = Shape(x)  g = Gather(s, zero)  u = Unsqueeze(g, first)  k = Gather(s, one)  d = Add(k, three)
                   e = Mul(d, two)  o = Div(e, three)  p = Sub(o, one)  c = Concat<axis = 0>(u, last)
                   i = Slice(s, one, three, first)  j = Squeeze(u, first)  l = Cast<to = 6>(huge)
                   f = Unsqueeze(g, both)  y = Reshape(x, c)""",
    "shape": "s = Shape<start = 1>(x)  t = Shape<start = -2, end = -1>(x)  y = Identity(s)",
    "turned": "a = Transpose<perm = [0, 2, 3, 1]>(x)  b = Transpose(a)  y = Relu(b)",
    "products": "a = MatMul(r, m)  b = Transpose<perm = [0, 2, 1]>(r)  c = MatMul(r, b)  y = Softmax(c)",
    "repeated": "a = Add(r, row)  b = Mul(row, r)  c = Sub(a, b)  y = Where(q, c, row)",
    "reshaped": "a = Reshape(x, flat)  b = Reshape(r, heads)  y = Transpose<perm = [0, 2, 1, 3]>(b)",
    "joined": "a = Concat<axis = -1>(r, r)  b = Concat<axis = 1>(r, r)  c, d = Split<axis = 2>(a)  y = Identity(b)",
    "reduced": """a = ReduceMean<axes = [2, 3]>(x)  b = ReduceSum<keepdims = 0>(x, pixels)  c = Unsqueeze(b, last)
                  y = Squeeze(c, last)""",
    "cut": """s = Shape(r)  t = Slice(s, one, two, first)  a = Slice(table9, first, t, one)  b = Add(r, a)
              c = Slice(x, one, three, one)  d = Slice(x, first, last, two)  y = Slice(r, last, huge, one)""",
    "expanded": """s = Shape(r)  u = Unsqueeze(zero, both)  h = Unsqueeze(zero, first)  n = Gather(s, first)
                   c = Concat<axis = 0>(n, last, last)  d = Reshape(c, last)  k = Shape(d)
                   o = ConstantOfShape<value = int64[1] {1}>(k)  f = Mul(o, last)  e = Equal(d, f)  j = Where(e, o, d)
                   a = Expand(token, j)  b = Expand(r, j)  g = Expand(table3, s)  l = Concat<axis = 1>(a, r)
                   i = Shape(l)  y = Add(l, l)""",
    "counted": """s = Shape(r)  n = Gather(s, zero)  t = Gather(s, unit)  a = Range(zero, n, unit)
                  b = Range(zero, t, unit)  c = Range(unit, t, unit)  d = Range(zero, t, pair)
                  e = Unsqueeze(a, last)  f = Add(e, b)  g = CumSum(r, zero)  h = Sin(g)
                  k = Trilu(h)  y = GreaterOrEqual(f, zero)""",
    "flattened": """a = Flatten(x)  b = Flatten<axis = 0>(r)  c = Flatten<axis = 3>(r)  d = Flatten<axis = -1>(r)
                    e = Flatten<axis = 2>(matrix)  f = Slice(r, first, one, two)  g = Flatten<axis = 2>(f)
                    y = Flatten<axis = 1>(g)""",
    "looked up": """s = Shape(r)  i = Cast<to = 7>(r)  z = Mul(i, first)  a = Gather(table, z)
                    y = Gather<axis = 1>(x, zero)""",
}

#: Bodies of operators with axes.
NEWER = ("resized", "padded")


def _used(body: str) -> dict[str, np.ndarray]:
    return {name: value for name, value in CONSTANTS.items() if any(f"{name}{end}" in body for end in ",)")}


def _model(word: str) -> tuple[ir.Model, list[str]]:
    body = BODIES[word]
    text = f"g (float[n, 4, h, v] x, float[n, t, 4] r, bool[n, t, 4] q) => (float[] y) {{ {body} }}"
    made = tiny.read(tiny.model(text, _used(body), opset=19 if word in NEWER else 17))
    names = [out.name or "" for node in made.graph for out in node.outputs]
    made.graph.outputs[:] = [out for node in made.graph for out in node.outputs]
    for out in made.graph.outputs:
        out.shape = out.type = None
    return made, names


def _are_right(claims: Dims, found: Iterable[int], values: dict[str, np.ndarray]) -> bool:
    def size_of(claim: Dim) -> int:
        if isinstance(claim, Least):
            return min(claim.most, size_of(claim.of))
        return claim if isinstance(claim, int) else values[str(claim[0].name)].shape[claim[1]]

    return list(map(size_of, claims)) == list(found)


@pytest.mark.parametrize("word", BODIES)
def test_what_is_said_holds_for_all_sizes(word: str) -> None:
    made, names = _model(word)
    sizes = Sizes()
    sizes.add_inputs(made.graph, are_required=True)
    for node in made.graph:
        add(node, sizes)
    outputs = {out.name: out for node in made.graph for out in node.outputs}
    session = ort.InferenceSession(ir.to_proto(made).SerializeToString())
    said = 0
    for n, h, v, t in ((2, 5, 4, 3), (1, 6, 7, 9), (3, 4, 4, 1)):
        feed = {"x": normal(n, 4, h, v), "r": normal(n, t, 4), "q": normal(n, t, 4) > 0}
        values = dict(feed) | dict(zip(names, session.run(None, feed), strict=True))

        for name, out in outputs.items():
            found, elements = sizes.dims.get(out), sizes.elements.get(out)
            if found is not None:
                shape = values[name].shape
                assert len(shape) == len(found), name
                assert _are_right(found, shape, values), (name, found, shape)
                said += len(found)
            if elements is not None:
                assert _are_right(elements.sizes, values[name].reshape(-1), values), (name, elements)
                assert values[name].ndim == (0 if elements.is_scalar else 1), name
                said += len(elements.sizes)
    assert said > 3


MASKED = """s = Shape(x)  n = Gather(s, first)  t = Gather(s, one)  k = Transpose<perm = [0, 2, 1]>(x)  p = MatMul(x, k)
            a = Add(p, mask)  w = Softmax(a)  b = MatMul(w, x)  c = Concat<axis = 0>(n, t, two, two)
            y = Reshape(b, c)"""


@pytest.mark.parametrize(("images", "folds"), [("n", True), ("other", False)])
def test_masks_are_repeated_only_where_all_inputs_are_of_one_batch(images: str, folds: bool) -> None:
    used = {name: CONSTANTS[name] for name in ("first", "one", "two")}
    text = f"g (float[n, t, 4] x, float[{images}, u, t] mask) => (float[] y) {{ {MASKED} }}"
    made = tiny.read(tiny.model(text, used))
    FoldShapes()(made)
    assert (graph.constant(tiny.find(made, "Reshape").inputs[1]) is not None) == folds


#: Scores p of x [n, t, 4] and r [n, u, 4], to be repeated for a mask j where u is 1; by what is 1 of them.
OF_ONE = {
    "an image": """g = Slice(table9, first, l, one)  k = Transpose<perm = [0, 2, 1]>(g)  p = MatMul(g, k)
                   d = ReduceMean<axes = [2]>(x)  j = Transpose<perm = [0, 2, 1]>(d)""",
    "an image, masks of heads": """g = Slice(table9, first, l, one)  k = Transpose<perm = [0, 2, 1]>(g)
                                   p = MatMul(g, k)  d = ReduceMean<axes = [2]>(x)  j = Unsqueeze(d, last)""",
    "a query": """q = ReduceMean<axes = [1]>(x)  k = Transpose<perm = [0, 2, 1]>(x)  p = MatMul(q, k)
                  d = Slice(square, first, l, first)  j = Slice(d, first, l, one)""",
    "the last query": """q = Slice(x, last, huge, one)  k = Transpose<perm = [0, 2, 1]>(x)  p = MatMul(q, k)
                         d = Slice(square, first, l, first)  j = Slice(d, first, l, one)""",
    "what is no product of two": "p = MatMul(r, matrix)  j = MatMul(x, matrix)",
}


@pytest.mark.parametrize("joins", ["a = Add(p, j)", "z = Cast<to = 9>(j)  a = Where(z, j, p)"])
@pytest.mark.parametrize("word", OF_ONE)
def test_scores_of_one_are_repeated_for_masks(word: str, joins: str) -> None:
    body = f"""s = Shape(x)  l = Gather(s, one)  {OF_ONE[word]}  {joins}  e = Softmax(a)
               f = Shape(e)  h = Slice(f, first, two, first)  c = Concat<axis = 0>(h, last)  y = Reshape(e, c)"""
    text = f"g (float[n, t, 4] x, float[n, u, 4] r) => (float[] y) {{ {body} }}"
    model = tiny.model(text, _used(body))
    made, folded = tiny.read(model), tiny.read(model)
    FoldShapes()(folded)
    a = tiny.find(made, "Softmax").inputs[0]
    assert a is not None
    dims = sizes_of(made).of(a)
    made.graph.outputs.append(a)
    feed = {"x": normal(3, 5, 4), "r": normal(3, 1, 4)}
    y, added = tiny.evaluate(made, **feed)
    assert dims is not None
    assert _are_right(dims, added.shape, feed | {"a": added})
    np.testing.assert_array_equal(tiny.evaluate(folded, **feed)[0], y)


def test_scores_that_numbers_say_are_repeated_are() -> None:
    """By a bias for each of four heads, of scores of one."""
    used = {"row": normal(4, 3, 3)}
    text = """g (float[1, 3, 4] x) => (float[] a) {
        k = Transpose<perm = [0, 2, 1]>(x)  p = MatMul(x, k)  b = Add(p, row)  a = Softmax(b)
    }"""
    made = tiny.read(tiny.model(text, used))
    sizes = sizes_of(made)
    assert sizes.of(made.graph.outputs[0]) == (4, 3, 3)


#: Of a and b, whose second axes are as long as somebody says when the model runs.
SAID_LATER = {
    "parts": "a, b = Split<axis = 2>(r, said)",
    "every second": "a = Slice(r, first, last, two, said)  b = Neg(a)",
    "tables of two lengths": """s = Shape(r)  g = Gather(s, one)  a = Slice(table, first, g, first)
                                b = Slice(long, first, g, first)""",
}


@pytest.mark.parametrize("word", SAID_LATER)
def test_what_is_not_known_is_not_taken_for_something_else(word: str) -> None:
    used = {name: CONSTANTS[name] for name in ("first", "last", "one", "two", "table") if name in SAID_LATER[word]}
    used |= {"long": normal(12, 4)} if "long" in SAID_LATER[word] else {}
    text = f"g (float[n, t, 4] r, int64[p] said) => (float[] a, float[] b) {{ {SAID_LATER[word]} }}"
    made = tiny.read(tiny.model(text, used))
    a, b = (sizes_of(made).of(value) for value in made.graph.outputs)
    assert a is not None and b is not None
    if word == "tables of two lengths":
        assert a[0] != b[0]
    else:
        assert not isinstance(a[2], int) and not isinstance(b[2], int)


@pytest.mark.parametrize("body", ["p = Pad(x, much)", "p = Tile(x, much)", "p = Resize(x, , , much)"])
@pytest.mark.parametrize("number", [1 << 62, -(1 << 62), (1 << 63) - 1])
def test_sizes_that_no_tensor_has_are_not_believed(body: str, number: int) -> None:
    much = np.array([number, *[0] * 7]) if "Pad" in body else np.array([number] * 4)
    text = f"g (float[1, 4, 8, 8] x) => (float[] y) {{ {body}  s = Shape(p)  y = Reshape(x, s) }}"
    made = tiny.read(tiny.model(text, {"much": much}))
    FoldShapes()(made)
    assert graph.constant(tiny.find(made, "Reshape").inputs[1]) is None


def test_numbers_between_nodes_are_not_believed() -> None:
    """They are those of the exporter's sample, where only the inputs were made free of them afterwards."""
    text = """g (float[n, t, 4] r) => (float[n, t, 4] y) <float[1, 7, 4] a, float[1, 7, 4] b>
              { a = Neg(r)  b = Relu(a)  y = Abs(b) }"""
    model = tiny.read(tiny.model(text, {}))
    assert infer_types(model)["a"].shape == (1, 7, 4)
    types = types_of(model)
    assert types["a"].shape == types["b"].shape == types["r"].shape == ("n", "t", 4)


def test_names_of_equal_sizes_are_equal() -> None:
    """What a table that is cut off at a size is added to keeps that size, which ONNX's inference does not see."""
    text = """g (float[n, t, 4] r) => (float[n, t, k] y, float[p, q] c) {
        s = Shape(r)  g = Gather(s, one)  c = Slice(table, first, g, first)  a = Add(r, c)  b = Mul(c, a)
        u = Concat<axis = 0>(s, last)  f = Reshape(b, flat)  y = Relu(a)
    }"""
    model = tiny.read(tiny.model(text, {name: CONSTANTS[name] for name in ("one", "first", "last", "table", "flat")}))
    plain, types = infer_types(model), types_of(model)
    assert types["a"].shape == types["b"].shape == types["y"].shape == types["r"].shape == ("n", "t", 4)
    assert plain["a"].shape != plain["r"].shape
    assert types["c"].shape == (None, 4)
    assert types["f"].shape is not None and types["f"].shape[0] == "n"
    assert types["a"].dtype is ir.DataType.FLOAT
