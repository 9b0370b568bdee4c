"""Weights that onnxq wrote to files of their own come back with the codes that they had."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq import formats, quantize
from onnxq.checkpoints import schemes
from onnxq.checkpoints.checkpoint import open_folder_or_file
from onnxq.checkpoints.encode_arrays import decode_file, encode_arrays, write_weights
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.own_file import PRODUCTS
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.conversion.export_weights import export_weights
from onnxq.errors import OnnxqError
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
EXACT = ImportOptions(accuracy_level=0)
PARTIAL = ImportOptions(partial=True)
SCALED = [word for word in formats.names() if formats.get(word).scale_type is not None]


def same(a: QuantizedTensor, b: QuantizedTensor) -> bool:
    parts = [None if x is None else (x.dtype, x.tobytes()) for q in (a, b) for x in (q.codes, q.scales, q.zero_points)]
    return parts[:3] == parts[3:] and a.format.name == b.format.name and a.granularity == b.granularity


@settings(max_examples=30, deadline=None)
@given(
    word=st.sampled_from([*SCALED, "uniform3", "uniform12"]),
    rows=st.integers(1, 5),
    columns=st.integers(1, 3),
    how=st.sampled_from([None, Granularity(), Granularity(0), Granularity(1, 16), Granularity(1, 32)]),
    suffix=st.sampled_from([".npz", ".safetensors"]),
    seed=st.integers(0, 99),
)
def test_codes_of_every_format_come_back(
    word: str, rows: int, columns: int, how: Granularity | None, suffix: str, seed: int, tmp_path_factory: object
) -> None:
    w = np.random.default_rng(seed).standard_normal((rows, 256 * columns)).astype(np.float32)
    how = None if formats.get(word).has_fixed_block else how
    q = formats.quantize(w, word, how)
    path = tmp_path_factory.mktemp("own") / f"w{suffix}"  # type: ignore[attr-defined]
    write_weights(path, [("a.weight", lambda: q)])
    (layer,) = schemes.layers_of(open_folder_or_file(path))
    stored = layer.open()
    assert layer.name == "a" and layer.scheme == "onnxq" and stored.shape == w.shape
    assert stored.format is not None and same(stored.read(), q)  # type: ignore[arg-type]


TEXT = """g (int64[n] ids) => (float[n, 64] y) {
    x = Gather (table, ids)  h = MatMul (x, w)  r = Relu (h)  y = Gemm <transB = 1> (r, v, c)
}"""
CONSTANTS = {"table": tiny.normal(64, 96, seed=4), "w": tiny.normal(96, 64), "v": tiny.normal(64, 64, seed=2)}
CONSTANTS["c"] = tiny.normal(64, seed=3)
WORDS = ("int4", "uint4", "int8", "nf4", "mxfp4", "nf4_dq", "int4_dq", "q4_0")


def tensors(path: Path) -> dict[str, NDArray]:
    return {name: np.array(array) for name, array in open_checkpoint(path).items() if name != "onnxq.json"}


@pytest.mark.parametrize(("word", "suffix"), [(word, (".npz", ".safetensors")[i % 2]) for i, word in enumerate(WORDS)])
def test_out_of_a_model_and_into_a_blank_one(word: str, suffix: str, tmp_path: Path) -> None:
    model, small, back = tmp_path / "model.onnx", tmp_path / "small.onnx", tmp_path / "back.onnx"
    tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    quantize(model, small, Recipe(word, min_sqnr=-np.inf, keep_slow=True), target="onnxq", check=False)
    export_weights(small, tmp_path / f"w{suffix}")
    blank = {name: np.zeros_like(array) for name, array in CONSTANTS.items()}
    tiny.save(tiny.model(TEXT, blank), tmp_path, "blank.onnx")
    done = import_weights(tmp_path / "blank.onnx", tmp_path / f"w{suffix}", back, target="onnxq", check=False)
    assert sorted(done.match.prefixes.values()) == ["table", "v", "w"] and not done.match.rounded
    export_weights(back, tmp_path / "again.npz")
    wanted, found = tensors(tmp_path / f"w{suffix}"), tensors(tmp_path / "again.npz")
    renamed = {name.replace(".weight.", "."): array for name, array in found.items()}
    for name, array in wanted.items():
        assert renamed[name].dtype == array.dtype and renamed[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_products_that_had_to_become_floats_come_back(suffix: str, tmp_path: Path) -> None:
    """Blocks of nf4 over the ends of rows are unpacked when a file for ort-cpu is loaded. Of squares no size tells."""
    text = """g (float[n, 77] x) => (float[n, 77] y) {
        h = MatMul (x, v)  r = Relu (h)  s = MatMul (r, w)  y = MatMul (s, u)
    }"""
    own = {"v": tiny.normal(77, 64), "w": tiny.normal(64, 77, seed=1), "u": tiny.normal(77, 77, seed=2)}
    model, small, weights = tiny.save(tiny.model(text, own), tmp_path), tmp_path / "small.onnx", tmp_path / f"w{suffix}"
    recipe = Recipe("nf4", min_sqnr=-np.inf, keep_slow=True)
    quantize(model, small, recipe, check=False)
    rows = {row.name: row for row in export_weights(small, weights).rows}
    assert rows["u"].format is None and rows["u"].shape == (77, 77)
    blank = tiny.save(tiny.model(text, {name: np.zeros_like(w) for name, w in own.items()}), tmp_path, "blank.onnx")
    x = {"x": tiny.normal(5, 77, seed=7)}
    for start in (model, blank):
        done = import_weights(start, weights, tmp_path / "back.onnx", check=False)
        assert sorted(done.match.prefixes.values()) == ["u", "v", "w"] and not done.match.missing
        (wanted,), (found,) = (Session(path).run(x) for path in (small, tmp_path / "back.onnx"))
        assert tiny.sqnr(wanted, found) > 60
        (tmp_path / "back.onnx").unlink()
    decoded = {name: read() for name, read in decode_file(weights)}
    assert decoded["u"].shape == (77, 77)


@pytest.mark.parametrize(
    ("word", "file"),
    [("mxfp4", "w.npz"), ("nf4_dq", "w.npz"), ("bf16", "w.gguf"), ("bf16", "w.safetensors"), ("bf16", "w.npz")],
)
def test_a_tied_table_comes_back(word: str, file: str, tmp_path: Path) -> None:
    """The head's codes are called like its node: the table has the name of the constant."""
    text = """g (int64[n] ids) => (float[n, 64] y) {
        x = Gather (table, ids)  h = MatMul (x, w)  t = Transpose <perm = [1, 0]> (table)  [head] y = MatMul (h, t)
    }"""
    constants = {"table": CONSTANTS["table"], "w": tiny.normal(96, 96)}
    model, small, weights = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "s.onnx", tmp_path / file
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(model, small, recipe, target="onnxq", check=False)
    export_weights(small, weights)
    done = import_weights(model, weights, tmp_path / "back.onnx", target="onnxq", check=False, options=EXACT)
    assert not done.match.missing and not done.match.rounded
    w = {name: read() for name, read in decode_file(weights)}
    (y,) = Session(tmp_path / "back.onnx").run({"ids": np.arange(64)})
    np.testing.assert_allclose(y, w["table"] @ w["w"].T @ w["head.weight"].T, atol=1e-5)


def tied_decoder(folder: Path, name: str, *, is_blank: bool) -> Path:
    """As torch exports one: the head's matrix is turned in the graph, and its module and the table have one name."""
    text = """g (int64[n] ids) => (float[n, 96] y) {
        x = Gather ("lm_head.weight", ids)  a = LayerNormalization (x, "a.weight", "a.bias")
        val_1 = Transpose <perm = [1, 0]> ("up.weight")  b = MatMul (a, val_1)  c = Relu (b)
        val_2 = Transpose <perm = [1, 0]> ("down.weight")  d = MatMul (c, val_2)
        e = LayerNormalization (d, "e.weight", "e.bias")
        val_9 = Transpose <perm = [1, 0]> ("lm_head.weight")  [head] y = MatMul (e, val_9)
    }"""
    shapes = {"lm_head.weight": (96, 80), "up.weight": (80, 80), "down.weight": (80, 80)}
    shapes |= {f"{norm}.{part}": (80,) for norm in "ae" for part in ("weight", "bias")}
    own = {key: tiny.normal(*shape, seed=i) for i, (key, shape) in enumerate(shapes.items())}
    made = tiny.model(text, {key: np.zeros_like(w) for key, w in own.items()} if is_blank else own)
    head = made.graph.node[-1].metadata_props.add()
    head.key, head.value = "pkg.torch.onnx.name_scopes", "['', 'lm_head', 'linear']"
    return tiny.save(made, folder, name)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("target", ["onnx", "ort-cpu", "onnxq"])
def test_a_tied_decoder_comes_back(target: str, suffix: str, tmp_path: Path) -> None:
    """Whether its table and its head are two of the file or one, and into one whose matrices were all equal."""
    model = tied_decoder(tmp_path, "m.onnx", is_blank=False)
    small, weights = tmp_path / "s.onnx", tmp_path / f"w{suffix}"
    quantize(model, small, Recipe("int4", min_sqnr=-np.inf, keep_slow=True), target=target, check=False)
    names = {row.name for row in export_weights(small, weights).rows if row.format}
    assert (names >= {"lm_head.weight", "val_9"}) == (target == "onnx")
    ids = {"ids": np.arange(96)}
    for start in (model, tied_decoder(tmp_path, "blank.onnx", is_blank=True)):
        back = tmp_path / f"back_{start.name}"
        done = import_weights(start, weights, back, target=target, check=False)
        assert not done.match.rounded and not done.match.missing and not done.match.notes
        np.testing.assert_array_equal(Session(back).run(ids)[0], Session(small).run(ids)[0])


@pytest.mark.parametrize("word", ["uint4", "mxfp4"])
def test_gguf_of_a_model_that_is_no_llama_comes_back(word: str, tmp_path: Path) -> None:
    model, small = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path), tmp_path / "small.onnx"
    quantize(model, small, Recipe(word, min_sqnr=-np.inf, keep_slow=True), target="onnxq", check=False)
    rows = export_weights(small, tmp_path / "w.gguf").rows
    done = import_weights(model, tmp_path / "w.gguf", tmp_path / "back.onnx", target="onnxq", check=False)
    assert sorted(done.match.prefixes.values()) == ["table", "v", "w"] and not done.match.rounded
    export_weights(tmp_path / "back.onnx", tmp_path / "again.gguf")
    first, second = ((tmp_path / name).read_bytes() for name in ("w.gguf", "again.gguf"))
    assert {row.format for row in rows if row.format} and len(first) >= len(second) - 512


#: What is quantized under other names than the file has, in other forms, or beside constants of none of its own.
COMPUTED = {
    "an attention": (
        """g (float[1, 8, 64] x) => (float[1, 8, 64] y) {
            q = MatMul (x, w)  k = MatMul (x, v)  h = MatMul (x, u)  t = Transpose <perm = [0, 2, 1]> (k)
            p = MatMul (q, t)  s = Mul (p, scale)  a = Softmax <axis = -1> (s)  y = MatMul (a, h)
        }""",
        {"w": (64, 64), "v": (64, 64), "u": (64, 64), "scale": ()},
    ),
    "a norm behind a kernel": (
        """g (float[1, 3, 8, 8] x) => (float[1, 64] y) {
            c = Conv <kernel_shape = [3, 3]> (x, kernel)  n = BatchNormalization (c, gain, beta, mean, variance)
            r = Relu (n)  p = GlobalAveragePool (r)  f = Flatten (p)  y = MatMul (f, w)
        }""",
        {"kernel": (64, 3, 3, 3), "gain": (64,), "beta": (64,), "mean": (64,), "variance": (64,), "w": (64, 64)},
    ),
    "a kernel of whole numbers": (
        """g (float[1, 3, 8, 8] x) => (float[1, 64] y) {
            kernel = DequantizeLinear (whole, step)  c = Conv <kernel_shape = [3, 3]> (x, kernel)
            r = Relu (c)  p = GlobalAveragePool (r)  f = Flatten (p)  y = MatMul (f, w)
        }""",
        {"whole": (64, 3, 3, 3), "step": (), "w": (64, 64)},
    ),
    "operators of several layers": (
        """g (float[1, 8, 64] x) => (float[1, 8, 64] y) {
            a = com.microsoft.Attention <num_heads = 2> (x, "a.attn.weight", "a.attn.bias")
            p = MatMul (a, "a.fc.weight")  h = com.microsoft.FastGelu (p, "a.fc.bias")
            q = MatMul (h, "b.fc.weight")  y = com.microsoft.FastGelu (q, "a.fc.bias")
        }""",
        {
            "a.attn.weight": (64, 192),
            "a.attn.bias": (192,),
            "a.fc.weight": (64, 64),
            "b.fc.weight": (64, 64),
            "a.fc.bias": (64,),
        },
    ),
}


@pytest.mark.parametrize("suffix", [".npz", ".gguf", ".safetensors"])
@pytest.mark.parametrize("case", COMPUTED)
def test_what_preparing_makes_of_a_model_comes_back(case: str, suffix: str, tmp_path: Path) -> None:
    """Into one with other numbers, all of which are replaced."""
    text, shapes = COMPUTED[case]

    def made(seed: int) -> dict[str, NDArray]:
        found = {name: tiny.normal(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
        found = {n: np.abs(x) + 0.125 if n in ("variance", "scale", "step") else x for n, x in found.items()}
        return {n: np.rint(99 * x).astype(np.int8) if n == "whole" else np.float32(x) for n, x in found.items()}

    model, small, weights = tiny.save(tiny.model(text, made(0)), tmp_path), tmp_path / "s.onnx", tmp_path / f"w{suffix}"
    recipe = Recipe("w4a16", min_sqnr=-np.inf, keep_slow=True)
    quantize(model, small, recipe, target="onnxq", check=False)
    names = {row.name for row in export_weights(small, weights).rows}
    assert case != "an attention" or names == {"w", "v", "u"}  # and none of what is in the operator
    fixed = {name: x for name, x in made(0).items() if name == "scale"}
    other = tiny.save(tiny.model(text, made(50) | fixed), tmp_path, "other.onnx")
    import_weights(other, weights, tmp_path / "back.onnx", target="onnxq", check=False, options=EXACT)
    x = {"x": tiny.normal(1, *((8, 64) if "[1, 8, 64]" in text else (3, 8, 8)), seed=7)}
    (wanted,), (found,) = (Session(path).run(x) for path in (small, tmp_path / "back.onnx"))
    assert tiny.sqnr(wanted, found) > 35


@pytest.mark.parametrize("suffix", [".npz", ".gguf", ".safetensors"])
@pytest.mark.parametrize("opset", [13, 18])
def test_an_lstm_that_was_joined_of_its_parts_comes_back(suffix: str, opset: int, tmp_path: Path) -> None:
    """Into the model with the parts, which then has the LSTM."""
    text = """g (float[2, 24] x, float[2, 32] h, float[2, 32] c) => (float[2, 32] k, float[2, 32] n) {
        first = Gemm (x, w, b)  second = MatMul (h, r)  sum = Add (first, second)  p, q, s, t = Split <axis = 1> (sum)
        i = Sigmoid (p)  f = Sigmoid (q)  g = Tanh (s)  o = Sigmoid (t)  kept = Mul (f, c)  fresh = Mul (i, g)
        k = Add (kept, fresh)  a = Tanh (k)  n = Mul (o, a) }"""
    text = text if opset < 18 else text.replace("axis = 1>", "axis = 1, num_outputs = 4>")
    shapes = {"w": (24, 128), "r": (32, 128), "b": (128,)}

    def saved(name: str, seed: int) -> Path:
        numbers = {word: tiny.normal(*shape, seed=seed + i) for i, (word, shape) in enumerate(shapes.items())}
        return tiny.save(tiny.model(text, numbers, opset=opset), tmp_path, name)

    small, weights = tmp_path / "s.onnx", tmp_path / f"w{suffix}"
    quantize(saved("m.onnx", 0), small, Recipe("w8a8-dynamic", keep_slow=True), target="onnxq", check=False)
    assert "w_gates" in {row.name for row in export_weights(small, weights).rows}
    import_weights(saved("o.onnx", 50), weights, tmp_path / "back.onnx", target="onnxq", check=False, options=EXACT)
    feed = {word: tiny.normal(2, size, seed=i) for i, (word, size) in enumerate({"x": 24, "h": 32, "c": 32}.items())}
    for wanted, found in zip(*(Session(path).run(feed) for path in (small, tmp_path / "back.onnx")), strict=True):
        assert tiny.sqnr(wanted, found) > 30


@pytest.mark.parametrize("suffix", [".npz", ".gguf"])
@pytest.mark.parametrize(
    ("scheme", "target"), [("w8a8-dynamic", "onnx"), ("w8a8-dynamic", "ort-cpu"), ("w8a8", "ort-cpu")]
)
def test_weights_of_products_that_round_what_they_read_come_back(
    scheme: str, target: str, suffix: str, tmp_path: Path
) -> None:
    text = "g (float[n, 96] x) => (float[n, 64] y) { h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }"
    own = {"w": tiny.normal(96, 128), "v": tiny.normal(128, 64, seed=1)}
    model, small, weights = tiny.save(tiny.model(text, own), tmp_path), tmp_path / "s.onnx", tmp_path / f"w{suffix}"
    recipe, x = Recipe(scheme, min_sqnr=-np.inf, keep_slow=True), {"x": tiny.normal(32, 96, seed=7)}
    quantize(model, small, recipe, data=[x] * 4, target=target, check=False)
    export_weights(small, weights)
    other = tiny.save(tiny.model(text, {name: -w for name, w in own.items()}), tmp_path, "other.onnx")
    done = import_weights(other, weights, tmp_path / "back.onnx", check=False, options=EXACT)
    assert sorted(done.match.prefixes.values()) == ["v", "w"] and not done.match.missing
    (wanted,), (found,) = (Session(path).run(x) for path in (model, tmp_path / "back.onnx"))
    assert tiny.sqnr(wanted, found) > 35


SQUARE = "g (float[1, 64] x) => (y, z) { [a] h = MatMul(x, w)  r = Add(h, table)  y = MatMul(r, v)  z = MatMul(r, u) }"
SQUARES = {name: tiny.normal(64, 64, seed=i) for i, name in enumerate("wvu")} | {"table": tiny.normal(64, 64, seed=9)}


def test_square_matrices_of_gguf_are_not_taken_the_wrong_way_round(tmp_path: Path) -> None:
    """Formats that GGUF has no form of are floats there: beside constants that lie as in the graph, products do not."""
    model, small = tiny.save(tiny.model(SQUARE, SQUARES), tmp_path), tmp_path / "small.onnx"
    recipe = Recipe("nf4", min_sqnr=-np.inf, keep_slow=True)
    quantize(model, small, recipe, target="onnxq", check=False)
    export_weights(small, tmp_path / "w.gguf")
    back = tmp_path / "back.onnx"
    done = import_weights(model, tmp_path / "w.gguf", back, target="onnxq", check=False)
    assert sorted(done.match.prefixes.values()) == ["u", "v", "w"]
    x = {"x": tiny.normal(1, 64, seed=7)}
    for wanted, found in zip(Session(small).run(x), Session(back).run(x), strict=True):
        assert tiny.sqnr(wanted, found) > 25
    before = (tmp_path / "w.gguf").read_bytes()  # files once did not say which of them are products
    (tmp_path / "w.gguf").write_bytes(before.replace(PRODUCTS.encode(), b"x" * len(PRODUCTS)))
    with pytest.raises(OnnxqError, match="does not fit"):
        import_weights(model, tmp_path / "w.gguf", tmp_path / "no.onnx", target="onnxq", check=False)


@pytest.mark.parametrize("without", ["v", "v.codes"])
def test_a_weight_may_be_left_out_of_a_file(without: str, tmp_path: Path) -> None:
    model = tiny.save(
        tiny.model(
            TEXT.replace("(r, v, c)", '(r, "v.weight", "v.bias")'),
            {{"v": "v.weight", "c": "v.bias"}.get(name, name): x for name, x in CONSTANTS.items()},
        ),
        tmp_path,
    )
    path = tmp_path / "w.safetensors"
    quantize(model, tmp_path / "q.onnx", Recipe("int4", min_sqnr=-np.inf, keep_slow=True), target="onnxq", check=False)
    export_weights(tmp_path / "q.onnx", path)
    name = without.replace("v", "v.weight")
    says = (
        r"the file has no 'v\.weight\.codes'" if "codes" in without else r"onnx': v\.weight of the model gets nothing"
    )
    with pytest.raises(OnnxqError, match=says):
        import_weights(model, path, tmp_path / "o.onnx", options=ImportOptions(without=(name,)))
    done = import_weights(model, path, tmp_path / "o.onnx", options=ImportOptions(without=(name,), partial=True))
    assert "v.bias" in done.match.constants


def test_encoded_arrays_go_into_a_model(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    arrays = {"w": CONSTANTS["w"].T, "v": CONSTANTS["v"], "table": CONSTANTS["table"]}
    encode_arrays(arrays, tmp_path / "w.safetensors", "q8_0")
    with pytest.raises(OnnxqError, match="y of the model gets nothing"):
        import_weights(model, tmp_path / "w.safetensors", tmp_path / "back.onnx", check=False)
    done = import_weights(model, tmp_path / "w.safetensors", tmp_path / "back.onnx", check=False, options=PARTIAL)
    assert len(done.match.blocks) == 3 and not done.match.rounded


def broken(change: str, table: dict, arrays: dict) -> None:
    entry = table["w"]
    if change == "format":
        entry["format"] = "int5000"
    elif change == "shape":
        entry["shape"] = [1 << 39, 1 << 39]
    elif change == "negative":
        entry["shape"] = [-64, 96]
    elif change == "axis":
        entry["axis"] = 7
    elif change == "block":
        entry["block"] = 0
    elif change == "part":
        entry["parts"] = ["codes"]
    elif change == "stranger":
        entry["parts"] = ["codes", "../../etc/passwd"]
    elif change == "word":
        table["w"] = "int4"
    elif change == "short":
        arrays["w.codes"] = arrays["w.codes"][:-1]
    elif change == "type":
        arrays["w.codes"] = arrays["w.codes"].astype(np.float32)
    elif change == "infinite":
        arrays["w.scales"] = np.full_like(arrays["w.scales"], np.inf)
    elif change == "scales":
        arrays["w.scales"] = arrays["w.scales"][:3]


CHANGES = ("format", "shape", "negative", "axis", "block", "part", "stranger", "word", "short", "type", "infinite")


@pytest.mark.parametrize("change", [*CHANGES, "scales"])
def test_what_is_broken_is_one_sentence(change: str, tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    encode_arrays({"w": CONSTANTS["w"].T}, tmp_path / "w.npz", "int4")
    with np.load(tmp_path / "w.npz") as stored:
        arrays = {name: stored[name] for name in stored}
    table = json.loads(bytes(arrays.pop("onnxq.json")))
    broken(change, table, arrays)
    np.savez(tmp_path / "w.npz", **arrays, **{"onnxq.json": np.frombuffer(json.dumps(table).encode(), np.uint8)})
    with pytest.raises(OnnxqError) as error:
        import_weights(model, tmp_path / "w.npz", tmp_path / "back.onnx", check=False)
    assert "\n" not in str(error.value) and "bug" not in str(error.value), error.value
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "w.npz"]
