"""import-weights on checkpoints of other tools: what the written file computes, where layers go, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from tiny import normal

from onnxq import formats
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.gguf_file import write_gguf
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.cli import main
from onnxq.errors import BadData, BadModel, OnnxqError
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
EXACT = ImportOptions(accuracy_level=0)
FOREIGN = Path(__file__).parents[2] / "models" / "foreign_checkpoints.npz"


def foreign(case: str, folder: Path) -> NDArray[np.float32]:
    """A checkpoint that another project's code made, and its weight [32, 64]."""
    with np.load(FOREIGN) as file:
        (folder / "model.safetensors").write_bytes(file[f"{case}.safetensors"].tobytes())
        (folder / "config.json").write_bytes(file[f"{case}.config"].tobytes())
        wanted: NDArray[np.float32] = file[f"{case}.wanted"]
        return wanted


def save(path: Path, tensors: dict[str, NDArray]) -> Path:
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    return path


@pytest.mark.parametrize(
    ("case", "target", "label", "error"),
    [
        ("gptq4_ordered", "ort-cpu", "uint4 b32", 1e-6),
        ("gptq4_ordered", "onnxq", "uint4 b32", 1e-6),
        ("gptq2_symmetric", "onnxq", "int2 b32", 1e-6),
        ("awq", "onnx", "uint4 b32 stored", 1e-6),
        ("compressed_pack3_affine", "ort-cpu", "uint4 b32", 1e-6),
        ("compressed_mxfp4", "onnxq", "mxfp4 b32", 1e-6),
        ("compressed_mxfp4", "ort-cpu", "int8 b32", 1e-6),
        ("compressed_nvfp4", "onnxq", "nvfp4 b16", 2e-3),
        ("compressed_fp8", "ort-cpu", "float8_e4m3 stored", 1e-6),
        ("compressed_mxfp8", "onnxq", "int8 b32", 1e-2),
        ("bitsandbytes_nf4_nested", "ort-cpu", "nf4 b64", 1e-6),
        ("bitsandbytes_nf4_nested", "onnxq", "nf4_dq_bnb b64", 1e-6),
        ("bitsandbytes_int8", "ort-cpu", "int8 b64", 1e-6),
        ("hqq4", "onnxq", "uniform4 b32 stored", 1e-6),
        ("hqq4_columns", "ort-cpu", "int8 b32", 1e-2),
        ("mlx4", "ort-cpu", "uint4 b32", 1e-3),
        ("torchao_int4", "onnxq", "int4 b32", 1e-6),
    ],
)
def test_the_file_computes_what_the_checkpoint_says(
    tmp_path: Path, case: str, target: str, label: str, error: float
) -> None:
    w = foreign(case, tmp_path).astype(np.float64)
    done = import_weights(None, tmp_path, tmp_path / "q.onnx", target=target, options=EXACT)
    (choice,) = done.plan
    assert choice.label == label
    assert bool(done.match.rounded) == (error in (1e-2, 1e-3))
    x = normal(5, 64)
    bias = Session(done.output).run({"x": np.zeros((1, 64), np.float32)})[0]
    for library in (False, True):
        (y,) = Session(done.output, library=library).run({"x": x})
        assert np.linalg.norm(y - bias - x @ w.T) <= error * np.linalg.norm(x @ w.T)


def test_columns_are_gathered_once_for_products_of_one_input(tmp_path: Path) -> None:
    """Sorted columns in a MatMul and a Gemm of one value, and in a Gemm that turns its input."""
    w = foreign("gptq4_ordered", tmp_path)
    from onnxq.checkpoints.tensors import open_checkpoint

    parts = dict(open_checkpoint(tmp_path / "model.safetensors"))
    (tmp_path / "model.safetensors").unlink()
    save(
        tmp_path / "w.safetensors",
        {f"{name}.{part.removeprefix('layer.')}": np.array(x) for name in "abc" for part, x in parts.items()},
    )
    text = """g (float[M,64] x) => (float[M,32] y, float[M,32] z, float[32,M] t) {
        [a] y = MatMul(x, v)  [b] z = Gemm <transB = 1> (x, w)
        u = Transpose <perm = [1, 0]> (x)  s = Relu(u)  [c] r = Gemm <transA = 1, transB = 1> (s, q)
        t = Transpose <perm = [1, 0]> (r)
    }"""
    constants = {"v": normal(64, 32), "w": normal(32, 64, seed=1), "q": normal(32, 64, seed=2)}
    model = tiny.save(tiny.model(text, constants), tmp_path)
    done = import_weights(model, tmp_path / "w.safetensors", tmp_path / "q.onnx", options=EXACT)
    x, bias = normal(3, 64, seed=5), parts["layer.bias"]
    y, z, t = Session(done.output).run({"x": x})
    np.testing.assert_allclose(y, x @ w.T + bias, atol=1e-4)
    np.testing.assert_allclose(z, y, atol=1e-5)
    np.testing.assert_allclose(t.T, np.maximum(x, 0) @ w.T + bias, atol=1e-4)
    import onnx

    assert [node.op_type for node in onnx.load(done.output).graph.node].count("Gather") == 2


LLAMA = """g (float[M,256] x) => (float[M,256] y) {
    n = Mul(x, "model.layers.0.input_layernorm.weight")
    ["/model/layers.0/self_attn/q_proj/MatMul"] a = MatMul(n, onnx_MatMul_1)
    ["/model/layers.0/self_attn/o_proj/MatMul"] b = MatMul(a, onnx_MatMul_2)
    ["/model/layers.0/mlp/down_proj/MatMul"] y = MatMul(b, onnx_MatMul_3)
}"""


def llama(folder: Path) -> tuple[Path, dict[str, NDArray]]:
    constants = {f"onnx_MatMul_{i}": normal(256, 256, seed=i) / 16 for i in (1, 2, 3)}
    constants["model.layers.0.input_layernorm.weight"] = np.ones(256, np.float32)
    return tiny.save(tiny.model(LLAMA, constants), folder), constants


def gguf_of(folder: Path, constants: dict[str, NDArray]) -> tuple[Path, dict[str, NDArray]]:
    """What llama.cpp's converter makes of it, and the weights that it stands for, as the model has them."""
    heads, rows = 4, 256
    # LlamaModel.permute, an index at a time: the rows of a head's two halves take turns.
    place = [h * 64 + (i % 2) * 32 + i // 2 for h in range(heads) for i in range(rows // heads)]
    words = {"attn_q": ("q8_0", 1), "attn_output": ("q4_k", 2), "ffn_down": ("q6_k", 3)}
    weights, wanted = {}, {}
    for name, (word, i) in words.items():
        w = constants[f"onnx_MatMul_{i}"].T
        q = formats.quantize(w[place] if name == "attn_q" else w, word)
        weights[f"blk.0.{name}.weight"] = q
        back = np.empty_like(w)
        back[place if name == "attn_q" else slice(None)] = q.dequantize()
        wanted[name] = back
    norm = normal(256, seed=9)
    tensors: list[tuple[str, Any]] = [(name, lambda q=q: q) for name, q in weights.items()]
    tensors.append(("blk.0.attn_norm.weight", lambda: norm))
    metadata = {"general.architecture": "llama", "llama.attention.head_count": heads}
    write_gguf(folder / "w.gguf", tensors, metadata)
    return folder / "w.gguf", wanted | {"norm": norm}


@pytest.mark.parametrize(
    ("target", "labels", "error"),
    [
        ("onnxq", ["q8_0 b32", "q4_k b32 stored", "int8 b16"], 1e-6),
        ("ort-cpu", ["q8_0 b32", "uint8 b32", "int8 b16"], 1e-2),
    ],
)
def test_a_gguf_file_goes_into_an_exported_llama(tmp_path: Path, target: str, labels: list[str], error: float) -> None:
    """By llama.cpp's names and the model's own numbers; rows of attn_q are put back in the exporter's order."""
    model, constants = llama(tmp_path)
    path, wanted = gguf_of(tmp_path, constants)
    done = import_weights(model, path, tmp_path / "q.onnx", target=target, options=EXACT)
    assert [choice.label for choice in done.plan] == labels
    assert all("by the converter's names" in why for why in done.match.proposed.values())
    assert not done.match.unused and done.match.constants == ["blk.0.attn_norm.weight"]
    assert list(done.match.rounded) == (["/model/layers.0/self_attn/o_proj/MatMul"] if target == "ort-cpu" else [])
    x = normal(4, 256, seed=3)
    y = x * wanted["norm"]
    for name in ("attn_q", "attn_output", "ffn_down"):
        y = y @ wanted[name].astype(np.float64).T
    (found,) = Session(done.output).run({"x": x})
    assert np.linalg.norm(found - y) <= error * np.linalg.norm(y)


def test_other_numbers_are_not_taken_for_the_same_layer(tmp_path: Path) -> None:
    model, constants = llama(tmp_path)
    other = constants | {"onnx_MatMul_2": normal(256, 256, seed=77) / 16}
    path, _ = gguf_of(tmp_path, other)
    with pytest.raises(BadModel, match=r"'blk.0.attn_output' would go to node .* their weights are not alike \(-"):
        import_weights(model, path, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()
    with pytest.raises(BadModel, match=r"has no product called blk.0.attn_q, blk.0.attn_output, blk.0.ffn_down"):
        import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(match="names"))
    done = import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(match="unchecked"))
    assert len(done.match.prefixes) == 3


def stored(w: NDArray, name: str) -> dict[str, NDArray]:
    """[out, in] as Linear4bit."""
    q: QuantizedTensor = formats.get("int4").encode(w, Granularity(1, 32))
    codes, scales = (q.codes + 8).astype(np.uint8), np.asarray(q.scales)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return {f"{name}.weight_4bit": packed, f"{name}.scales_4bit": scales}


def test_layers_of_other_names_are_found_by_shape_role_and_order(tmp_path: Path) -> None:
    text = """g (float[M,64] x) => (float[M,32] y) {
        [n1] a = MatMul(x, c1)  [n2] b = MatMul(a, c2)  ["h.3/attn/query/MatMul"] c = MatMul(b, c3)
        [n4] y = MatMul(c, c4)
    }"""
    constants = {f"c{i}": normal(64, n, seed=i) for i, n in ((1, 64), (2, 64), (3, 64), (4, 32))}
    model = tiny.save(tiny.model(text, constants), tmp_path)
    names = {"c1": "enc.2", "c2": "enc.10", "c3": "blocks.3.attn.q_proj", "c4": "final"}
    tensors: dict[str, NDArray] = {}
    for constant in ("c4", "c3", "c2", "c1"):
        tensors |= stored(constants[constant].T, names[constant])
    path = save(tmp_path / "w.npz", tensors)
    done = import_weights(model, path, tmp_path / "q.onnx")
    assert done.match.prefixes == {"n1": "enc.2", "n2": "enc.10", "h.3/attn/query/MatMul": names["c3"], "n4": "final"}
    whys = [done.match.proposed[node].rpartition(",")[0] for node in ("n1", "n2", "h.3/attn/query/MatMul", "n4")]
    assert whys == ["by its place in order", "by its place in order", "by its role", "by its shape"]
    # Without numbers of its own the model cannot say whether an order is the right one.
    empty = tmp_path / "empty"
    empty.mkdir()
    zeros = {name: np.zeros_like(x) for name, x in constants.items()}
    zeros = {name: x + i for i, (name, x) in enumerate(zeros.items())}
    blank = tiny.save(tiny.model(text, zeros), empty)
    with pytest.raises(BadModel, match=r"has no product called enc\.10, enc\.2"):
        import_weights(blank, path, tmp_path / "r.onnx")
    done = import_weights(blank, path, tmp_path / "r.onnx", options=ImportOptions(match="unchecked"))
    assert done.match.prefixes["n2"] == "enc.10"


def test_an_empty_model_gets_plain_floats(tmp_path: Path) -> None:
    """Kernels, biases and tables by name, products behind a Transpose, from two files and an index."""
    text = """g (int64[M] i) => (float[M,48] y) {
        e = Gather("emb.weight", i)  n = Mul(e, "norm.weight")
        t = Transpose <perm = [1, 0]> ("up.weight")  p = MatMul(n, t)  y = Add("up.bias", p)
    }"""
    empty = {"emb.weight": (10, 32), "norm.weight": (32,), "up.weight": (48, 32), "up.bias": (48,)}
    model = tiny.save(tiny.model(text, {name: np.zeros(shape, np.float32) for name, shape in empty.items()}), tmp_path)
    full = {name: normal(*shape, seed=i).astype(np.float16) for i, (name, shape) in enumerate(empty.items())}
    folder = tmp_path / "w"
    folder.mkdir()
    shards = {"a.safetensors": ["emb.weight", "up.weight"], "b.safetensors": ["norm.weight", "up.bias"]}
    for file, names in shards.items():
        save(folder / file, {name: full[name] for name in names})
    index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    done = import_weights(model, folder, tmp_path / "q.onnx")
    assert not done.match.unused and not done.match.missing
    i = np.array([3, 0, 9])
    (y,) = Session(done.output).run({"i": i})
    wide = {name: x.astype(np.float32) for name, x in full.items()}
    np.testing.assert_allclose(
        y, (wide["emb.weight"][i] * wide["norm.weight"]) @ wide["up.weight"].T + wide["up.bias"], rtol=1e-4, atol=1e-4
    )
    save(folder / "b.safetensors", {"norm.weight": np.full(32, np.nan, np.float16), "up.bias": full["up.bias"]})
    with pytest.raises(BadModel, match=r"'norm.weight' holds numbers that are not finite"):
        import_weights(model, folder, tmp_path / "r.onnx")
    assert not (tmp_path / "r.onnx").exists()


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        ({"weight_map": {"a": "../secret.safetensors"}}, "is in '../secret.safetensors', which is no file beside it"),
        ({"weight_map": {"a": "/etc/passwd"}}, "which is no file beside it"),
        ({"weight_map": {"a": ".."}}, "which is no file beside it"),
        ({"weight_map": {"a": "none.safetensors"}}, "no such file"),
        ({"weight_map": {"b": "w.safetensors"}}, "which does not hold it"),
        ({"weight_map": {}}, "names no tensors"),
        ({"weight_map": ["a"]}, "is not an index of tensors"),
        ([], "is not an index of tensors"),
    ],
)
def test_hostile_indices(tmp_path: Path, index: Any, sentence: str) -> None:
    save(tmp_path / "secret.safetensors", {"a": np.ones(3, np.float32)})
    folder = tmp_path / "w"
    folder.mkdir()
    save(folder / "w.safetensors", {"a": np.ones(3, np.float32)})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadData, match=sentence):
        import_weights(None, folder, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


def test_hostile_folders(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    with pytest.raises(BadData, match=r"without .safetensors, .gguf or .npz files"):
        import_weights(None, folder, tmp_path / "q.onnx")
    for name in ("a", "b"):
        save(folder / f"{name}.safetensors", stored(normal(16, 32), "x"))
    with pytest.raises(BadData, match=r"tensor 'x.weight_4bit' is in 'a.safetensors' and in 'b.safetensors'"):
        import_weights(None, folder, tmp_path / "q.onnx")
    (folder / "b.safetensors").unlink()
    for config, sentence in (("[]", "is a list, not an object"), ("{", "cannot be read"), ("[" * 99999, "nested too")):
        (folder / "config.json").write_text(config)
        with pytest.raises(OnnxqError, match=sentence):
            import_weights(None, folder, tmp_path / "q.onnx")
    (folder / "config.json").write_text('{"quantization_config": 3, "quantization": []}')
    assert import_weights(None, folder, tmp_path / "q.onnx").plan.scheme == "linear4bit"


def test_the_command_says_what_was_found_and_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    model, constants = llama(tmp_path)
    gguf_of(tmp_path, constants)
    result = CliRunner().invoke(main, ["import-weights", model.name, "w.gguf"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("model.gguf.onnx: 3 products from w.gguf for ort-cpu")
    for words in (
        "found by structure: ",
        "dB)",
        "rounded: ",
        "q4_k as uint8",
        "other constants: blk.0.attn_norm.weight",
    ):
        assert words in result.stdout
    foreign("gptq4", tmp_path)
    table = json.loads(CliRunner().invoke(main, ["import-weights", ".", "--json", "-o", "g.onnx"]).stdout)
    assert table["formats"] == {"layer": "uint4"} and table["output"] == "g.onnx"


def test_norms_of_other_names_are_taken_if_they_are_the_same(tmp_path: Path) -> None:
    """By the end of their names, where the model's own numbers are like them, or it has none."""
    text = """g (float[M,64] x) => (float[M,64] y) {
        a = Mul(x, "h.0.norm.weight")  b = Mul(a, "h.1.norm.weight")  c = Mul(b, "h.2.norm.weight")
        ["h/fc/MatMul"] y = MatMul(c, w)
    }"""
    own = {f"h.{i}.norm.weight": normal(64, seed=i) for i in range(2)} | {"h.2.norm.weight": np.ones(64, np.float32)}
    model = tiny.save(tiny.model(text, own | {"w": normal(64, 64, seed=7)}), tmp_path)
    near, other, new = own["h.0.norm.weight"] * np.float32(1.01), normal(64, seed=8) + 1, normal(64, seed=9)
    norms = {f"model.layers.{i}.norm.weight": x for i, x in enumerate((near, other, new))}
    path = save(tmp_path / "w.safetensors", norms | stored(normal(64, 64, seed=7).T, "h.fc"))
    words = r"model.layers.1.norm.weight goes nowhere, and h.1.norm.weight, of such shapes, gets nothing"
    with pytest.raises(BadModel, match=words):
        import_weights(model, path, tmp_path / "q.onnx", options=EXACT)
    done = import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(accuracy_level=0, partial=True))
    assert done.match.constants == ["model.layers.0.norm.weight", "model.layers.2.norm.weight"]
    assert done.match.unused == ["model.layers.1.norm.weight"]
    x = normal(3, 64)
    (y,) = Session(done.output).run({"x": x})
    w = formats.get("int4").encode(np.ascontiguousarray(normal(64, 64, seed=7).T), Granularity(1, 32)).dequantize()
    np.testing.assert_allclose(y, (x * near * own["h.1.norm.weight"] * new) @ w.T, atol=1e-5)


def test_floats_lie_as_the_models_own_do(tmp_path: Path) -> None:
    """[in, out] by the same name (GPT-2's Conv1D), by another one of unlike sides, and of squares by the numbers."""
    text = """g (float[M,16] x) => (float[M,32] y) {
        [a] p = MatMul(x, "a.weight")  [b] q = MatMul(p, c1)  [c] y = MatMul(q, c2)
    }"""
    own = {"a.weight": normal(16, 16, seed=1), "c1": normal(16, 16, seed=2), "c2": np.zeros((16, 32), np.float32)}
    model = tiny.save(tiny.model(text, own), tmp_path)
    full = {"a.weight": normal(16, 16, seed=5), "b.weight": own["c1"] * np.float32(1.01), "c.weight": normal(16, 32)}
    done = import_weights(model, save(tmp_path / "w.safetensors", full), tmp_path / "q.onnx")
    assert set(done.match.prefixes) == {"a", "b", "c"} and not done.match.unused
    x = normal(3, 16)
    (y,) = Session(done.output).run({"x": x})
    np.testing.assert_allclose(y, x @ full["a.weight"] @ full["b.weight"] @ full["c.weight"], atol=1e-5)
    assert done.match.turned == ["b.weight"]


@pytest.mark.parametrize("match", ["names", "unchecked"])
def test_squares_of_other_numbers_lie_as_outputs_by_inputs(match: str, tmp_path: Path) -> None:
    text = "g (float[M,16] x) => (float[M,16] y) { " + " ".join(
        f"[n{i}] {'y' if i == 5 else f'h{i}'} = MatMul({f'h{i - 1}' if i else 'x'}, c{i})" for i in range(6)
    )
    model = tiny.save(tiny.model(text + " }", {f"c{i}": normal(16, 16, seed=i) for i in range(6)}), tmp_path)
    full = {f"n{i}.weight": normal(16, 16, seed=10 + i) / 4 for i in range(6)}
    path = save(tmp_path / "w.safetensors", full)
    done = import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(match=match))
    x = wanted = normal(3, 16)
    for w in full.values():
        wanted = wanted @ w.T
    (y,) = Session(done.output).run({"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-5)
    assert not done.match.turned


def test_a_table_that_is_also_multiplied_by_is_one_layer(tmp_path: Path) -> None:
    text = """g (int64[M] i) => (float[M,48] y) {
        e = Gather("embed_tokens.weight", i)  t = Transpose <perm = [1, 0]> ("embed_tokens.weight")
        ["/lm_head/MatMul"] y = MatMul(e, t)
    }"""
    table = normal(48, 64)
    model = tiny.save(tiny.model(text, {"embed_tokens.weight": table}), tmp_path)
    q = formats.quantize(table, "q8_0")
    extra = normal(7, 64)
    write_gguf(tmp_path / "w.gguf", [("token_embd.weight", lambda: q), ("position_embd.weight", lambda: extra)])
    done = import_weights(model, tmp_path / "w.gguf", tmp_path / "q.onnx", target="onnxq", options=EXACT)
    assert [choice.label for choice in done.plan] == ["q8_0 b32", "q8_0 b32"]
    assert done.match.unused == ["position_embd.weight"]  # plain floats may be left over
    (y,) = Session(done.output).run({"i": np.arange(48)})
    np.testing.assert_allclose(y, q.dequantize() @ q.dequantize().T, atol=1e-4)
