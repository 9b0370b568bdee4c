"""import-weights where the model multiplies by several layers of the checkpoint at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.matching.names import first_call
from onnxq.errors import BadModel
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
#: As onnxruntime-genai's builder writes a layer, and what stands behind the last one.
TEXT = """g (float[M,32] x) => (float[M,40] y) {
    ["/model/layers.0/attn/qkv_proj/MatMul"] a = MatMul(x, "model.layers.0.attn.qkv_proj.MatMul.weight")
    ["/model/layers.0/attn/qkv_proj/Add"] b = Add(a, "model.layers.0.attn.qkv_proj.Add.bias")  c = Tanh(b)
    ["/model/layers.0/mlp/gate_up_proj/MatMul"] d = MatMul(c, "model.layers.0.mlp.gate_up_proj.MatMul.weight")
    e = Tanh(d)  y = Mul(e, "model.layers.1.final_norm_layernorm.weight")
}"""
PARTS = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32)}
PARTS |= {"mlp.gate_proj": (20, 64), "mlp.up_proj": (20, 64)}


def checkpoint(seed: int, noise: float) -> dict[str, NDArray]:
    """Weights near those of seed 0, and biases of q and k alone."""
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in PARTS.items()}
    shapes |= {f"model.layers.0.{name}.bias": shape[:1] for name, shape in list(PARTS.items())[:2]}  # type: ignore[misc]
    shapes |= {"model.norm.weight": (40,)}  # type: ignore[dict-item]
    rng = np.random.default_rng(seed)
    own = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return {name: (x + noise * rng.standard_normal(x.shape)).astype(np.float32) for name, x in own.items()}


def joined(tensors: dict[str, NDArray]) -> list[NDArray]:
    w = [tensors[f"model.layers.0.{name}.weight"] for name in PARTS]
    biases = [tensors.get(f"model.layers.0.{name}.bias", np.zeros(16, np.float32)) for name in list(PARTS)[:3]]
    return [np.concatenate(w[:3]).T, np.concatenate(biases), np.concatenate(w[3:]).T, tensors["model.norm.weight"]]


def save(path: Path, tensors: dict[str, NDArray]) -> Path:
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    return path


@pytest.mark.parametrize("way", ["auto", "unchecked"])
def test_rows_of_layers_lie_one_after_another(way: str, tmp_path: Path) -> None:
    names = ["attn.qkv_proj.MatMul.weight", "attn.qkv_proj.Add.bias", "mlp.gate_up_proj.MatMul.weight"]
    own = joined(checkpoint(1, 0))
    constants = dict(zip((f"model.layers.0.{name}" for name in names), own, strict=False))
    constants["model.layers.1.final_norm_layernorm.weight"] = own[3]
    model = tiny.save(tiny.model(TEXT, constants), tmp_path)
    new = checkpoint(2, 0.05)
    if way == "unchecked":
        new |= {name: x * 7 for name, x in checkpoint(3, 9.0).items() if name != "model.norm.weight"}
        with pytest.raises(BadModel, match=r"qkv_proj.*, but their weights are not alike"):
            import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx")
    options = ImportOptions(match=way)
    done = import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx", options=options)
    assert not done.match.unused and not done.match.missing
    qkv, bias, mlp, norm = joined(new)
    x = normal(3, 32, seed=9) / 50
    (y,) = Session(done.output).run({"x": x})
    np.testing.assert_allclose(y, np.tanh(np.tanh(x @ qkv + bias) @ mlp) * norm, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        pytest.param({"q": (32, 1)}, r"q_proj\.bias' is of shape \[32, 1\], not \[32\]", id="a matrix"),
        pytest.param({"q": ()}, r"q_proj\.bias' is of shape \[\], not \[32\]", id="a number"),
        pytest.param({"q": (16,), "k": (32,)}, r"q_proj\.bias' is of shape \[16\], not \[32\]", id="as long together"),
    ],
)
def test_each_bias_is_as_long_as_its_own_rows(shapes: dict[str, tuple[int, ...]], says: str, tmp_path: Path) -> None:
    names = ["attn.qkv_proj.MatMul.weight", "attn.qkv_proj.Add.bias", "mlp.gate_up_proj.MatMul.weight"]
    own = joined(checkpoint(1, 0))
    constants = dict(zip((f"model.layers.0.{name}" for name in names), own, strict=False))
    constants["model.layers.1.final_norm_layernorm.weight"] = own[3]
    model, new = tiny.save(tiny.model(TEXT, constants), tmp_path), checkpoint(1, 0.01)
    new |= {f"model.layers.0.self_attn.{part}_proj.bias": np.ones(shape, np.float32) for part, shape in shapes.items()}
    with pytest.raises(BadModel, match=says):
        import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx")


#: As torch's older exporter writes its attention: rows of one layer in one or two products, or layers of several sizes.
ATTENTION = {"of itself": [(72, 24)], "of another": [(24, 24), (48, 24)], "of sizes": [(24, 24), (24, 16), (24, 16)]}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("case", ATTENTION)
def test_attention_without_names(case: str, has_bias: bool, tmp_path: Path) -> None:
    """It runs twice. Without biases its layer of outputs has lost its name, too."""
    sizes, text, own, wanted = ATTENTION[case], list[str](), dict[str, NDArray](), list[NDArray]()
    names = ["in_proj_weight"] if case != "of sizes" else [f"{part}_proj_weight" for part in "qkv"]
    layers = [normal(*size, seed=10 + i) for i, size in enumerate(sizes)]
    given = layers if case == "of sizes" else [np.concatenate(layers)]
    new = {f"at.{name}": w for name, w in zip(names, given, strict=True)} | {"at.out_proj.weight": normal(24, 24)}
    new |= {"at.in_proj_bias": normal(72, seed=8)} if has_bias else {}
    x, start = {"x": normal(3, 24, seed=9), "m": normal(3, sizes[-1][1], seed=7)}, 0
    for i, (n, k) in enumerate([*sizes, *[(24, 24)] * (not has_bias)]):
        source, is_out = "m" if 0 < i < len(sizes) else "x", i == len(sizes)
        own[f"onnx::MatMul_{i + 1}"] = normal(k, n, seed=i)
        wanted.append(x[source] @ (new["at.out_proj.weight"] if is_out else layers[i]).T)
        for run in "12":
            last = f"y{run}{i} = Add(h{run}{i}, b{i})" if has_bias else f"y{run}{i} = Identity(h{run}{i})"
            text.append(f'["/at/MatMul_{run}{i}"] h{run}{i} = MatMul({source}, "onnx::MatMul_{i + 1}")  {last}')
        if has_bias:
            own[f"b{i}"], wanted[i] = normal(n, seed=20 + i), wanted[i] + new["at.in_proj_bias"][start : start + n]
            start += n
    outputs = [f"y{run}{i}" for run in "12" for i in range(len(wanted))]
    if has_bias:
        own["at.out_proj.weight"] = normal(24, 24, seed=5)
        text.append('z = Gemm <transB = 1> (x, "at.out_proj.weight")')
        outputs, wanted = [*outputs, "z"], [*wanted, *wanted, x["x"] @ new["at.out_proj.weight"].T]
    else:
        wanted = wanted * 2
    text.sort(key=lambda line: line.partition("MatMul_")[2][:1])
    types = f"g (float[3,24] x, float[3,{sizes[-1][1]}] m) => ({', '.join(f'float[M,N] {y}' for y in outputs)})"
    model = tiny.save(tiny.model(f"{types} {{ {' '.join(text)} }}", own), tmp_path)
    done = import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx", check=False)
    assert not done.match.unused and not done.match.bare
    for y, found in zip(wanted, Session(done.output).run(x), strict=True):
        np.testing.assert_allclose(found, y, atol=1e-4)


def test_attention_whose_layer_keeps_its_name(tmp_path: Path) -> None:
    """Where keys are values the model itself takes the layer apart; what runs again is numbered."""
    text = """g (float[3,24] x, float[3,24] m) => (float[3,24] y, float[3,24] z) {
        s = Constant <value = int64[2] {24, 48}> ()  q, kv = Split <axis = 0> ("at.in_proj_weight", s)
        qt = Transpose (q)  kt = Transpose (kv)  t = Constant <value = int64[2] {24, 24}> ()
        ["/at/MatMul"] a = MatMul (x, qt)  ["/at/MatMul_1"] b = MatMul (m, kt)  c, d = Split <axis = 1> (b, t)
        e = Add (a, c)  f = Add (e, d)  ["/at/MatMul_4"] y = MatMul (f, "onnx::MatMul_9")
        ["/at_1/MatMul"] g = MatMul (y, qt)  ["/at_1/MatMul_4"] z = MatMul (g, "onnx::MatMul_10")
    }"""
    shapes = {"at.in_proj_weight": (72, 24), "onnx::MatMul_9": (24, 24), "onnx::MatMul_10": (24, 24)}
    own = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    layer, out = normal(72, 24, seed=5), normal(24, 24, seed=6)
    model = tiny.save(tiny.model(text, own), tmp_path)
    new = save(tmp_path / "w.safetensors", {"at.in_proj_weight": layer, "at.out_proj.weight": out})
    done = import_weights(model, new, tmp_path / "q.onnx", check=False)
    assert not done.match.unused and not done.match.bare
    x, m = normal(3, 24, seed=7), normal(3, 24, seed=8)
    y = (x @ layer[:24].T + m @ layer[24:48].T + m @ layer[48:].T) @ out.T
    for wanted, found in zip((y, y @ layer[:24].T @ out.T), Session(done.output).run({"x": x, "m": m}), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_where_nothing_tells_which_it_is_said_what_helps(tmp_path: Path) -> None:
    """A module that multiplies by two parameters of one shape."""
    text = """g (float[3,24] x) => (float[3,24] y) {
        ["/a/MatMul"] h = MatMul(x, "onnx::MatMul_1")  ["/a/MatMul_1"] z = MatMul(h, "onnx::MatMul_2")
        ["/fc/Gemm"] y = Gemm <transB = 1> (z, "fc.weight")
    }"""
    own = {
        "onnx::MatMul_1": normal(24, 24),
        "onnx::MatMul_2": normal(24, 24, seed=1),
        "fc.weight": normal(24, 24, seed=9),
    }
    new = {name: normal(24, 24, seed=2 + i) for i, name in enumerate(("a.p", "a.q", "fc.weight"))}
    model, path = tiny.save(tiny.model(text, own), tmp_path), save(tmp_path / "w.safetensors", new)
    with pytest.raises(
        BadModel, match=r"a\.p, a\.q go nowhere, .* get nothing \(torch's older exporter .*dynamo=True\)"
    ):
        import_weights(model, path, tmp_path / "q.onnx")


@pytest.mark.parametrize(
    ("module", "there", "first"),
    [
        ("a.1_1", "a.1", "a.1"),
        ("cells_0.r_1", "cells_0.r", "cells_0.r"),
        ("a_1.r_1", "a.r", "a.r"),
        ("r_1", "r_1", "r_1"),
        ("r_1", "s", "r_1"),
    ],
)
def test_the_module_of_what_is_called_again(module: str, there: str, first: str) -> None:
    """Not every number at the end of a name says that."""
    assert first_call(module, {there, "r"}.__contains__ if there == "r_1" else {there}.__contains__) == first
