"""What `onnxq convert` writes of a model without a graph comes back into the model that it was quantized from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray

from onnxq import quantize
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.conversion.convert import convert
from onnxq.conversion.export_folder import KINDS, export_folder
from onnxq.conversion.export_weights import export_weights
from onnxq.errors import BadModel
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
ALL = (*KINDS, "safetensors", "npz", "gguf")
FLOATS = (("nf4", "ort-cpu"), ("nf4", "onnxq"))
EXACT = ImportOptions(accuracy_level=0)
#: A transposed constant without a name, GPT-2's Conv1D, a Linear, and a parameter of somebody's own.
SQUARES = """g (float[n, 64] x) => (float[n, 64] y) {
    [a] h = MatMul (x, val_0)  r = Relu (h)  [b] s = Gemm (r, "conv1d.weight", "conv1d.bias")
    [c] t = Gemm <transB = 1> (s, "linear.weight")  u = Relu (t)  [d] y = MatMul (u, "own.weight")
}"""
OWN = {name: tiny.normal(64, 64, seed=i) for i, name in enumerate(("val_0", "own.weight"))}
OWN |= {f"{name}.weight": tiny.normal(64, 64, seed=i) for i, name in enumerate(("conv1d", "linear"), 2)}
OWN["conv1d.bias"] = tiny.normal(64, seed=9)


def quantized(folder: Path, model: onnx.ModelProto, word: str, target: str = "ort-cpu") -> Path:
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(tiny.save(model, folder), folder / "small.onnx", recipe, target=target, check=False)
    return folder / "small.onnx"


def written(small: Path, to: str) -> Path:
    out = small.with_name(f"weights.{to}")
    export_folder(small, to, out) if to in KINDS else export_weights(small, out)
    return out


def back(start: Path, weights: Path, feed: dict[str, NDArray], target: str = "ort-cpu") -> NDArray:
    out = weights.with_name("back.onnx")
    import_weights(start, weights, out, target=target, options=EXACT, check=False)
    (y,) = Session(out).run(feed)
    out.unlink()
    return y


@pytest.mark.parametrize("to", ALL)
@pytest.mark.parametrize(("word", "target"), [*FLOATS, ("int4", "ort-cpu"), ("q4_k", "onnxq")])
def test_squares_of_either_orientation(word: str, target: str, to: str, tmp_path: Path) -> None:
    """Of those that a layout has no codes for, too, and also where the model has no numbers to compare with."""
    small = quantized(tmp_path, tiny.model(SQUARES, OWN), word, target)
    blank = {name: np.full_like(w, i) for i, (name, w) in enumerate(OWN.items())}  # equal ones would become one
    starts = tmp_path / "model.onnx", tiny.save(tiny.model(SQUARES, blank), tmp_path, "blank.onnx")
    feed, weights = {"x": tiny.normal(5, 64, seed=7)}, written(small, to)
    (wanted,) = Session(small).run(feed)
    for start in starts:
        assert tiny.sqnr(wanted, back(start, weights, feed, target)) > 60, start


@pytest.mark.parametrize("between", ["", "onnx", "onnxq"])
@pytest.mark.parametrize("to", KINDS)
def test_floats_lie_as_the_constant_of_their_name(to: str, between: str, tmp_path: Path) -> None:
    """Whoever reads the folder takes what is called `conv1d.weight` for the parameter of that name, also when the model
    was written for another target in between."""
    small = quantized(tmp_path, tiny.model(SQUARES, OWN), "nf4")
    if between:
        small = convert(small, between, tmp_path / "other.onnx", accuracy_level=0, check=False).output
    weights = written(small, to)
    found = open_checkpoint(weights / "model.safetensors")
    for name in ("conv1d.weight", "linear.weight", "own.weight"):
        assert found[name].dtype == np.float32 and tiny.sqnr(OWN[name], found[name]) > 15, name


ODD = """g (int64[1, 16] ids) => (float[1, 16, 64] y) {
    e = Gather (table, ids)  p = Add (e, places)  q = Add (p, "embeddings.where")  s = Mul (q, half)
    t = Transpose <perm = [0, 2, 1]> (s)  k = Conv <pads = [1, 1]> (t, "conv.weight", "conv.bias")
    l = Conv <group = 32, pads = [1, 1]> (k, "depth.weight")  u = Transpose <perm = [2, 0, 1]> (l)
    v, w = LSTM <hidden_size = 32> (u, lstm_w, lstm_r)  z = Squeeze (v, one)  a = Transpose <perm = [1, 0, 2]> (z)
    [head] y = MatMul (a, val_0)
}"""
ARRAYS = {
    "table": tiny.normal(64, 32) * 5,
    "places": tiny.normal(16, 32, seed=1),
    "embeddings.where": tiny.normal(1, 16, 32, seed=2),
    "half": np.float32(0.5),
    "conv.weight": tiny.normal(32, 32, 3, seed=3),
    "conv.bias": tiny.normal(32, seed=4),
    "depth.weight": tiny.normal(32, 1, 3, seed=5) * 3,
    "lstm_w": tiny.normal(1, 128, 32, seed=6),
    "lstm_r": tiny.normal(1, 128, 32, seed=7),
    "one": np.array([1], np.int64),
    "val_0": tiny.normal(32, 64, seed=8),
}


@pytest.mark.parametrize("to", ALL)
@pytest.mark.parametrize(("word", "target"), [("int4", "ort-cpu"), ("nf4", "onnxq"), ("int8", "onnxq")])
def test_arrays_that_are_no_matrices(word: str, target: str, to: str, tmp_path: Path) -> None:
    """Kernels, tables of places, recurrent weights and single numbers, in codes or not, whatever their names are."""
    small = quantized(tmp_path, tiny.model(ODD, ARRAYS), word, target)
    feed = {"ids": np.arange(16)[None]}
    (wanted,) = Session(small).run(feed)
    assert tiny.sqnr(wanted, back(tmp_path / "model.onnx", written(small, to), feed, target)) > 60


@pytest.mark.parametrize("to", ALL)
@pytest.mark.parametrize(("word", "target"), [("int4", "ort-cpu"), ("int2", "onnxq")])
def test_numbers_for_names(word: str, target: str, to: str, tmp_path: Path) -> None:
    """What exporters call by a number is called like the node that multiplies by it; anything else as it is."""
    numbers = {name: f"onnx::{i}" for i, name in enumerate(ARRAYS)}
    model = tiny.model(ODD, ARRAYS)
    for node in model.graph.node:
        node.name = f"/block/{node.op_type.lower()}/{node.output[0]}/{node.op_type}"
        node.input[:] = [numbers.get(name, name) for name in node.input]
    for tensor in model.graph.initializer:
        tensor.name = numbers[tensor.name]
    small = quantized(tmp_path, model, word, target)
    out, start = tmp_path / "back.onnx", tmp_path / "model.onnx"
    done = import_weights(start, written(small, to), out, target=target, options=EXACT, check=False)
    assert {numbers[name] for name in ("lstm_w", "lstm_r", "conv.weight")} <= {*done.match.constants}
    (wanted,), (found,) = (Session(path).run({"ids": np.arange(16)[None]}) for path in (small, out))
    assert tiny.sqnr(wanted, found) > 60


def test_equal_shapes_are_no_reason(tmp_path: Path) -> None:
    """A constant that gets nothing is said to be of another shape only where it is."""
    tiny.save(tiny.model(ODD, ARRAYS), tmp_path)
    for where, why in (
        (np.zeros((1, 16, 32), np.int8), "embeddings.where of the model gets nothing"),
        (np.zeros((16, 32), np.int8), r"'embeddings.where' is of shape \[16, 32\], that of the model of \[1, 16, 32\]"),
    ):
        np.savez(tmp_path / "w.npz", **{**ARRAYS, "embeddings.where": where})
        with pytest.raises(BadModel, match=why):
            import_weights(tmp_path / "model.onnx", tmp_path / "w.npz", tmp_path / "back.onnx", check=False)


@pytest.mark.parametrize("to", ["safetensors", "gguf"])
def test_what_the_model_has_once_for_two_is_told(tmp_path: Path, to: str) -> None:
    """Of two scales that were equal before training an export keeps one."""
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        h = MatMul (x, "a.weight")  s = Mul (h, g1)  t = Tanh (s)  u = Mul (t, g2)  y = MatMul (u, "b.weight")
    }"""
    own = {f"{name}.weight": tiny.normal(64, 64, seed=i) for i, name in enumerate("ab")}
    scales = {name: tiny.normal(64, seed=i) for i, name in enumerate(("g1", "g2"), 2)}
    path = written(quantized(tmp_path, tiny.model(text, own | scales), "int8"), to)
    before = tiny.model(text.replace("g2", "g1"), own | {"g1": np.ones(64, np.float32)})
    with pytest.raises(BadModel, match="g2 goes nowhere"):
        import_weights(tiny.save(before, tmp_path, "before.onnx"), path, tmp_path / "q.onnx", options=EXACT)


@pytest.mark.parametrize("to", ["safetensors", "npz", "gguf"])
def test_arrays_are_left_out_by_the_names_that_messages_say(tmp_path: Path, to: str) -> None:
    """Whether they are in codes, of a product or a kernel, or plain."""
    text = """g (float[n, 64, 1] x) => (float[n, 64] y) {
        k = Conv (x, "k.weight", "k.bias")  h = Flatten (k)  m = MatMul (h, "a.weight")  y = MatMul (m, "b.weight")
    }"""
    own = {f"{name}.weight": tiny.normal(64, 64, seed=i) for i, name in enumerate("ab")}
    own |= {"k.weight": tiny.normal(64, 64, 1), "k.bias": tiny.normal(64)}
    path = written(quantized(tmp_path, tiny.model(text, own), "int8"), to)
    fewer = text.replace('k = Conv (x, "k.weight", "k.bias")  h = Flatten (k)  m', "h = Flatten (x)  m")
    fewer = fewer.replace('MatMul (h, "a.weight")', "Relu (h)")
    model = tiny.save(tiny.model(fewer, {"b.weight": own["b.weight"]}), tmp_path, "fewer.onnx")
    with pytest.raises(BadModel):
        import_weights(model, path, tmp_path / "q.onnx", options=EXACT)
    names = ("a.weight", "k.weight", "k.bias")
    options = ImportOptions(accuracy_level=0, without=names)
    done = import_weights(model, path, tmp_path / "q.onnx", options=options)
    assert not {*done.match.unused} - {"onnxq.json"} and not done.match.surplus


#: Modules that are equal before training, and one that is not.
EQUAL = """g (float[n, 64] x) => (float[n, 64] y) {
    a = LayerNormalization (x, "a.weight", "a.bias")  [up] b = Gemm <transB = 1> (a, "up.weight", "up.bias")
    c = Relu (b)  [down] d = Gemm <transB = 1> (c, "down.weight", "down.bias")
    e = LayerNormalization (d, "e.weight", "e.bias")  [out] y = Gemm <transB = 1> (e, "out.weight", "out.bias")
}"""


def of_modules(*, is_trained: bool) -> dict[str, NDArray]:
    products = {f"{name}.weight": tiny.normal(64, 64, seed=i) for i, name in enumerate(("up", "down", "out"))}
    vectors = [f"{name}.{part}" for name in "ae" for part in ("weight", "bias")]
    vectors += [f"{name}.bias" for name in ("up", "down", "out")]
    found = products | {name: 1 + 0.25 * tiny.normal(64, seed=i) for i, name in enumerate(vectors, 3)}
    if is_trained:
        return found
    equal = {f"{name}.bias": np.zeros(64, np.float32) for name in ("a", "e", "up", "down", "out")}
    blank = dict.fromkeys(("up.weight", "down.weight"), np.full((64, 64), 0.125, np.float32))
    return found | {"e.weight": found["a.weight"]} | blank | equal


@pytest.mark.parametrize("to", ALL)
@pytest.mark.parametrize("target", ["onnx", "ort-cpu", "onnxq"])
def test_equal_constants_come_back_by_all_of_their_names(to: str, target: str, tmp_path: Path) -> None:
    """Into models in which they differ, too. onnxruntime rounds what is multiplied by codes of standard operators."""
    model = tiny.model(EQUAL, of_modules(is_trained=False))
    weights = written(small := quantized(tmp_path, model, "int4", target), to)
    feed = {"x": tiny.normal(4, 64, seed=7)}
    (wanted,) = Session(small).run(feed)
    for is_trained in (False, True):
        start = tiny.save(tiny.model(EQUAL, of_modules(is_trained=is_trained)), tmp_path, "start.onnx")
        assert tiny.sqnr(wanted, back(start, weights, feed, target)) > (35 if target == "onnx" or to == "gguf" else 100)


@pytest.mark.parametrize("target", ["onnx", "onnxq"])
def test_equal_biases_of_products_in_integers_come_back_by_all_of_their_names(target: str, tmp_path: Path) -> None:
    """And those of norms whose channels were scaled; a region has them as whole numbers."""
    trained = of_modules(is_trained=True)
    own = of_modules(is_trained=False) | {f"{name}.weight": trained[f"{name}.weight"] for name in ("up", "down")}
    source = tiny.save(tiny.model(EQUAL, own), tmp_path)
    data, small = [{"x": tiny.normal(4, 64, seed=i)} for i in range(4)], tmp_path / "small.onnx"
    recipe = Recipe("w8a8", min_sqnr=-np.inf, keep_slow=True)
    quantize(source, small, recipe, target=target, data=data, check=False)
    (wanted,) = Session(small).run(data[0])
    start = tiny.save(tiny.model(EQUAL, trained), tmp_path, "start.onnx")
    assert tiny.sqnr(wanted, back(start, written(small, "npz"), data[0])) > 30


def test_a_constant_that_a_file_has_once_is_that_of_all_that_are_equal(tmp_path: Path) -> None:
    """As those that onnxq once wrote have, of a model that has matrices as the file does when it is prepared."""
    text = EQUAL.replace("[up] b = Gemm <transB = 1> (a, ", "v = Transpose <perm = [1, 0]> (up.t) [up] b = Gemm (a, ")
    text = text.replace('"up.weight"', "v").replace("up.t", '"up.weight"')
    own = of_modules(is_trained=True)
    own["e.weight"] = own["a.weight"]
    weights = written(quantized(tmp_path, tiny.model(text.replace("e.weight", "a.weight"), own), "int4"), "npz")
    assert "e.weight" not in open_checkpoint(weights)
    feed = {"x": tiny.normal(4, 64, seed=7)}
    (wanted,) = Session(tmp_path / "small.onnx").run(feed)
    start = tiny.save(tiny.model(text, own), tmp_path, "start.onnx")
    np.testing.assert_allclose(back(start, weights, feed), wanted, atol=1e-5)
