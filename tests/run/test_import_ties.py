"""import-weights where a model reads one weight in several places, and the checkpoint has it once."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.linear4bit import Linear4Bit, save_layers
from onnxq.errors import BadModel
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
EXACT = ImportOptions(accuracy_level=0)


def save(path: Path, tensors: dict[str, NDArray]) -> Path:
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    return path


LM = """g (int64[M] i) => (float[M,48] y) {
    e = Gather("embed.weight", i)
    ["/up/MatMul"] h = MatMul(e, w)  ["/lm_head/HEAD"] y = OP(h, "HEADNAME")
}"""
#: Heads that exporters make of a tied table: its transpose, or a copy of it.
HEADS = {
    "transposed": ("MatMul", "MatMul", "onnx::MatMul_9"),
    "copied": ("Gemm", "Gemm <transB = 1>", "lm_head.weight"),
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("has_head", [False, True])
def test_the_head_of_a_tied_table_follows_it(tmp_path: Path, kind: str, has_head: bool) -> None:
    op, call, name = HEADS[kind]
    table, new, head = normal(48, 16), normal(48, 16, seed=1), normal(48, 16, seed=2)
    text = LM.replace("HEADNAME", name).replace("HEAD", op).replace("OP", call)
    own = {"embed.weight": table, "w": normal(16, 16, seed=3), name: np.ascontiguousarray(table.T)}
    if kind == "copied":
        own[name] = table.copy()
    tensors = {"embed.weight": new, "up.weight": normal(16, 16, seed=4)} | (
        {"lm_head.weight": head} if has_head else {}
    )
    path = save(tmp_path / "w.safetensors", tensors)
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx")
    assert not done.match.missing and not done.match.unused
    (y,) = Session(done.output).run({"i": np.arange(48)})
    wanted = new @ tensors["up.weight"].T @ (head if has_head else new).T
    np.testing.assert_allclose(y, wanted, atol=1e-5)


@pytest.mark.parametrize("has_head", [False, True])
def test_the_head_of_a_blank_model_is_the_tied_table(tmp_path: Path, has_head: bool) -> None:
    text = LM.replace("HEADNAME", "onnx::MatMul_9").replace("HEAD", "MatMul").replace("OP", "MatMul")
    own = {"embed.weight": np.zeros((48, 16)), "w": np.zeros((16, 16)), "onnx::MatMul_9": np.zeros((16, 48))}
    model = tiny.save(tiny.model(text, {name: x.astype(np.float32) for name, x in own.items()}), tmp_path)
    tensors = {"embed.weight": normal(48, 16), "up.weight": normal(16, 16, seed=4)}
    tensors |= {"lm_head.weight": normal(48, 16, seed=2)} if has_head else {}
    done = import_weights(model, save(tmp_path / "w.safetensors", tensors), tmp_path / "q.onnx")
    assert not done.match.missing
    (y,) = Session(done.output).run({"i": np.arange(48)})
    head = tensors["lm_head.weight" if has_head else "embed.weight"]
    np.testing.assert_allclose(y, tensors["embed.weight"] @ tensors["up.weight"].T @ head.T, atol=1e-5)


ONCE = """g (float[M,24] x) => (float[M,24] y) {
    ["/q/MatMul"] a = MatMul(x, "onnx::1")  b = Tanh(a)
    ["/q_1/MatMul"] c = MatMul(b, "onnx::2")  d = Tanh(c)
    ["/q_2/MatMul"] e = MatMul(d, "onnx::3")  f = Tanh(e)
    ["/r/MatMul"] y = MatMul(f, "onnx::4")
}"""


@pytest.mark.parametrize("is_once", [True, False])
@pytest.mark.parametrize("word", ["float", "int4"])
def test_a_module_that_runs_several_times_is_one_layer(tmp_path: Path, is_once: bool, word: str) -> None:
    """As in ALBERT: whether the model has one constant or a copy for each, and the file has the weight once."""
    q, r = normal(24, 24), normal(24, 24, seed=1)
    text = ONCE.replace("onnx::2", "onnx::1").replace("onnx::3", "onnx::1") if is_once else ONCE
    own = {"onnx::1": q, "onnx::4": r} | ({} if is_once else {"onnx::2": q.copy(), "onnx::3": q.copy()})
    new = {"q.weight": normal(24, 24, seed=2), "r.weight": normal(24, 24, seed=3)}
    if word == "float":
        path, unpacked = save(tmp_path / "w.safetensors", new), new
    else:
        rng = np.random.default_rng(0)
        scales = rng.uniform(0.01, 0.05, (24, 3)).astype(np.float16)
        layers = {name: Linear4Bit.new(rng.integers(0, 256, (24, 12), np.uint8), scales, 8) for name in "qr"}
        unpacked = {f"{name}.weight": layer.unpack() for name, layer in layers.items()}
        path = tmp_path / "w.npz"
        save_layers(path, layers)
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx", options=EXACT)
    assert not done.match.missing and done.match.prefixes["/q_2/MatMul"] == "q"
    assert done.match.proposed["/q_1/MatMul"] == "by its weight, that of '/q/MatMul'"
    x = wanted = normal(3, 24, seed=4)
    for _ in range(3):
        wanted = np.tanh(wanted @ unpacked["q.weight"].T)
    (y,) = Session(done.output).run({"x": x})
    np.testing.assert_allclose(y, wanted @ unpacked["r.weight"].T, atol=1e-5)
    sizes = [np.prod(tensor.dims) for tensor in onnx.load(done.output).graph.initializer]
    assert sum(size >= 24 * 24 // 2 for size in sizes) == 2


def test_blank_products_are_not_taken_for_one(tmp_path: Path) -> None:
    """Their weights are all zero, and so the same."""
    zero = {f"onnx::{i}": np.zeros((24, 24), np.float32) for i in range(1, 5)}
    model = tiny.save(tiny.model(ONCE, zero), tmp_path)
    new = {"q.weight": normal(24, 24, seed=2), "r.weight": normal(24, 24, seed=3)}
    path = save(tmp_path / "w.safetensors", new)
    done = import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(partial=True))
    assert done.match.missing == ["/q_1/MatMul", "/q_2/MatMul"]


def test_copies_that_an_exporter_keeps_once_get_their_own_numbers(tmp_path: Path) -> None:
    """Before training norms are equal; torch's exporter keeps one and makes the others Identity of it."""
    text = """g (float[M,24] x) => (float[M,24] y) {
        "n2.weight" = Identity("n1.weight")  a = Mul(x, "n1.weight")  b = Mul(a, "n2.weight")
        ["/q/MatMul"] y = MatMul(b, "onnx::1")
    }"""
    own = {"n1.weight": np.ones(24, np.float32), "onnx::1": normal(24, 24)}
    new = {"n1.weight": normal(24, seed=1), "n2.weight": normal(24, seed=2), "q.weight": normal(24, 24, seed=3)}
    path = save(tmp_path / "w.safetensors", new)
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx")
    assert not done.match.unused
    x = normal(3, 24, seed=4)
    (y,) = Session(done.output).run({"x": x})
    np.testing.assert_allclose(y, (x * new["n1.weight"] * new["n2.weight"]) @ new["q.weight"].T, rtol=1e-4, atol=1e-5)


def test_a_table_that_has_its_own_numbers_is_not_the_heads(tmp_path: Path) -> None:
    """In a model of tied weights, and a checkpoint of two: the table is a constant in floats, the head a layer."""
    text = LM.replace("HEADNAME", "onnx::MatMul_9").replace("HEAD", "MatMul").replace("OP", "MatMul")
    table, new, head, up = (normal(48, 16, seed=1), normal(48, 16, seed=2), normal(48, 16, seed=3), normal(16, 16))
    own = {"embed.weight": table, "w": up, "onnx::MatMul_9": np.ascontiguousarray(table.T)}
    text, own = (
        text.replace("embed.weight", "embed"),
        {name.replace("embed.weight", "embed"): x for name, x in own.items()},
    )
    path = save(tmp_path / "w.safetensors", {"embed": new, "up.weight": up.T.copy(), "lm_head.weight": head})
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx")
    (y,) = Session(done.output).run({"i": np.arange(48)})
    np.testing.assert_allclose(y, new @ up @ head.T, atol=1e-5)


WRAPPED = """g (int64[M] i) => (float[M,16] y) {
    e = Gather("m.embed.weight", i)  ["/m/fc1/MatMul"] h = MatMul(e, "onnx::1")  a = Mul(h, "m.norm.weight")
    ["/m/fc2/MatMul"] y = MatMul(a, "onnx::2")
}"""


@pytest.mark.parametrize("is_blank", [True, False])
def test_products_of_one_blank_constant_get_their_own_layers(tmp_path: Path, is_blank: bool) -> None:
    """A wrapper begins all names of the model; the table is of the products' shape, too."""
    own = {"m.embed.weight": normal(16, 16), "m.norm.weight": normal(16), "onnx::1": normal(16, 16, seed=1)}
    own |= {"onnx::2": normal(16, 16, seed=2)}
    if is_blank:
        own = {name: np.zeros_like(x) for name, x in own.items()}
        del own["onnx::2"]
    text = WRAPPED.replace("onnx::2", "onnx::1") if is_blank else WRAPPED
    new = {f"{name}.weight": normal(16, 16, seed=3 + i) for i, name in enumerate(("embed", "fc1", "fc2"))}
    path = save(tmp_path / "w.safetensors", new | {"norm.weight": normal(16, seed=6)})
    done = import_weights(tiny.save(tiny.model(text, own), tmp_path), path, tmp_path / "q.onnx")
    assert not done.match.unused and not done.match.missing
    (y,) = Session(done.output).run({"i": np.arange(16)})
    wanted = (new["embed.weight"] @ new["fc1.weight"].T * normal(16, seed=6)) @ new["fc2.weight"].T
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 16), (16, 8)])
def test_floats_that_go_nowhere_are_refused_where_a_weight_of_their_shape_gets_none(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    """What the model has no weight for, as a pooler, is left, and so are buffers that it has with these numbers."""
    text = 'g (float[M,16] x) => (float[M,16] y) { [a] h = MatMul(x, w1)  i = Mul(h, "rope")  [b] y = MatMul(i, w2) }'
    own = {"w1": normal(16, 16), "w2": normal(16, 16, seed=1), "rope": normal(16, seed=2)}
    model = tiny.save(tiny.model(text, own), tmp_path)
    new = {"a.weight": normal(16, 16, seed=3), "inv_freq": own["rope"], "pooler.weight": normal(*shape, seed=4)}
    path = save(tmp_path / "w.safetensors", new)
    told = "b of the model gets nothing"
    if shape == (16, 16):
        told = "pooler.weight goes nowhere, and b, of such shapes, gets nothing"
    with pytest.raises(BadModel, match=f"': {told}; --partial"):
        import_weights(model, path, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()
    done = import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(partial=True))
    assert done.match.unused == ["inv_freq", "pooler.weight"] and done.match.missing == ["b"]
    assert next(choice for choice in done.plan if choice.node == "b").reason == (
        "not matched" if shape == (16, 16) else "not in the checkpoint"
    )


def calling(folder: Path, text: str, own: dict[str, NDArray], calls: dict[str, str], op: str = "op") -> Path:
    """As torch.onnx.export(dynamo=True) writes it: metadata tell what each node was called as, and in which module."""
    model = tiny.model(text, own)
    for node in model.graph.node:
        module, call = calls.get(node.name, "|").split("|")
        said = {"pkg.torch.onnx.name_scopes": f"['', '{module}', 'op']"}
        called = op if node.name != "d" else "instance_norm"
        said |= (
            {"pkg.torch.onnx.fx_node": f"%n : call_function[target=torch.ops.aten.{called}]({call})"} if call else {}
        )
        node.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=word) for key, word in said.items())
    return tiny.save(model, folder)


#: Nodes that read one constant, of which a call names the parameter, and what the checkpoint has for both.
SHARED = {
    "a literal": ("a|args = (%x, %p_s), kwargs = {}", "|args = (%h, 0.5), kwargs = {}", ["s"]),
    "of a copy": ("a|args = (%x, %p_s), kwargs = {}", "|args = (%clone, 0.5), kwargs = {}", ["s"]),
    "made of numbers": ("a|args = (%x, %p_s), kwargs = {}", "a|args = (%h, %full), kwargs = {}", ["s"]),
    "parameters": ("|args = (%x, %p_s), kwargs = {}", "|args = (%h, %p_weight), kwargs = {}", ["s", "weight"]),
    "of modules": ("m|args = (%x, %p_m_s)", "m|args = (%h, %p_m_weight)", ["m.s", "m.weight"]),
}


@pytest.mark.parametrize("kind", SHARED)
def test_what_a_call_was_given_tells_equal_constants_apart(tmp_path: Path, kind: str) -> None:
    first, second, names = SHARED[kind]
    text = """g (float[2,4] x) => (float[2,4] y) { [a] h = Mul(x, "S")  t = Tanh(h)  [b] y = Mul(t, "S") }"""
    text = text.replace('"S"', f'"{names[0]}"')
    half = np.full(4, 0.5, np.float32)
    model = calling(tmp_path, text, {names[0]: half}, {"a": first, "b": second})
    new = {name: normal(4, seed=i) for i, name in enumerate(names)}
    done = import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx", check=False)
    x = normal(2, 4, seed=5)
    wanted = np.tanh(x * new[names[0]]) * (new[names[1]] if len(names) > 1 else half)
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], wanted, rtol=1e-5, atol=1e-6)
    assert done.match.constants == names


def test_a_norm_without_parameters_keeps_its_ones(tmp_path: Path) -> None:
    """A BatchNorm that is not affine has statistics alone, ones and zeros before training as another's parameters."""
    text = """g (float[N,4] x) => (float[N,4] y) {
        [a] h = BatchNormalization(x, "a.running_var", "a.running_mean", "a.running_mean", "a.running_var")
        [b] t = LayerNormalization(h, "c.weight")  [c] y = LayerNormalization(t, "c.weight", "c.bias")
    }"""
    parts = {"running_mean": np.zeros(4, np.float32), "running_var": np.ones(4, np.float32)}
    own = {f"a.{part}": x for part, x in parts.items()} | {"c.weight": np.ones(4, np.float32)}
    own["c.bias"] = np.zeros(4, np.float32)
    model = calling(
        tmp_path,
        text,
        own,
        {
            "a": "a|args = (%x, None, None, %b_a_running_mean, %b_a_running_var, False, 0.1, 1e-05), kwargs = {}",
            "b": "b|args = (%h, [4], None, None, 1e-05, False), kwargs = {}",
            "c": "c|args = (%t, [4], %p_c_weight, %p_c_bias, 1e-05, False), kwargs = {}",
        },
    )
    new = {name: normal(4, seed=i) ** 2 + 0.5 for i, name in enumerate(own)}
    done = import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx", check=False)
    x = normal(3, 4, seed=9)
    wanted = (x - new["a.running_mean"]) / np.sqrt(new["a.running_var"] + 1e-5)
    for scale, shift in ((1.0, 0.0), (new["c.weight"], new["c.bias"])):
        wanted = wanted - wanted.mean(1, keepdims=True)
        wanted = wanted / np.sqrt((wanted**2).mean(1, keepdims=True) + 1e-5) * scale + shift
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], wanted, rtol=1e-4, atol=1e-4)
    assert not done.match.unused


def test_a_parameter_is_told_by_its_own_name_before_what_others_are_called(tmp_path: Path) -> None:
    """Where no call tells it: gamma is not weight, since a module has both, and what goes nowhere is said."""
    text = (
        """g (float[2,4] x) => (float[2,4] y) { [a] h = Mul(x, "m.gamma")  t = Tanh(h)  [b] y = Mul(t, "m.gamma") }"""
    )
    model = calling(tmp_path, text, {"m.gamma": np.ones(4, np.float32)}, {"a": "m|", "b": "m|"})
    new = {f"m.{name}": normal(4, seed=i) for i, name in enumerate(("gamma", "weight"))}
    with pytest.raises(BadModel, match=r"m\.weight goes nowhere"):
        import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx")


def test_squares_that_an_exporter_turned_are_not_what_was_passed(tmp_path: Path) -> None:
    """A module that runs twice, whose weight lies as [inputs, outputs] in the file, without its name."""
    text = """g (float[2,4] x) => (float[2,4] y) { [a] h = MatMul(x, val_0)  t = Tanh(h)  [b] y = MatMul(t, val_0) }"""
    call = "m|args = (%x, %p_m_weight), kwargs = {}"
    model = calling(tmp_path, text, {"val_0": normal(4, 4)}, {"a": call, "b": call})
    w, x = normal(4, 4, seed=1), normal(2, 4, seed=2)
    done = import_weights(model, save(tmp_path / "w.safetensors", {"m.weight": w}), tmp_path / "q.onnx", check=False)
    wanted = np.tanh(x @ w.T) @ w.T
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", ["4,1", "4,1,1"])
def test_a_norm_of_groups_of_one_channel_keeps_the_ones_in_it(tmp_path: Path, shape: str) -> None:
    """Which are another norm's before training; its own parameters are behind it, with no Reshape between."""
    size, text = (
        shape.removeprefix("4,").replace("1", "5"),
        """g (float[1,4,SIZE] x) => (float[1,4,SIZE] y) {
        [a] h = InstanceNormalization(x, "o.weight", "o.bias")  [b] s = Mul(h, val_1)  [c] t = Add(s, val_2)
        [d] y = InstanceNormalization(t, "o.weight", "o.bias")
    }""",
    )
    blank = {"weight": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
    own = {f"o.{part}": x for part, x in blank.items()}
    own |= {f"val_{i}": x.reshape([int(n) for n in shape.split(",")]) for i, x in enumerate(blank.values(), 1)}
    calls = dict.fromkeys("abc", "g|args = (%x, 4, %p_g_weight, %p_g_bias, 1e-05, False), kwargs = {}")
    calls["d"] = "o|args = (%t, %p_o_weight, %p_o_bias, None, None, True, 0.1, 1e-05, False), kwargs = {}"
    model = calling(tmp_path, text.replace("SIZE", size), own, calls, op="group_norm")
    new = {f"{name}.{part}": normal(4, seed=len(part) + i) for i, name in enumerate("go") for part in blank}
    done = import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx", check=False)
    x = wanted = normal(1, 4, *map(int, size.split(",")), seed=9)
    axes, as_channels = tuple(range(2, x.ndim)), (4, *[1] * (x.ndim - 2))
    for name in "go":
        wanted = wanted - wanted.mean(axes, keepdims=True)
        wanted = wanted / np.sqrt((wanted**2).mean(axes, keepdims=True) + 1e-5)
        wanted = wanted * new[f"{name}.weight"].reshape(as_channels) + new[f"{name}.bias"].reshape(as_channels)
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], wanted, rtol=1e-4, atol=1e-4)
    assert not done.match.unused


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float", "bf16"])
def test_a_tied_table_of_floats_is_stored_once_and_in_its_type(dtype: type, tmp_path: Path) -> None:
    """Torch calls it by the last module that has it, and the checkpoint by the first."""
    text = """g (int64[M] i) => (T[M,80] y) {
        e = Gather("head.weight", i)  u = Transpose <perm = [1, 0]> ("up.weight")  h = MatMul(e, u)
        t = Transpose <perm = [1, 0]> ("head.weight")  y = MatMul(h, t)
    }""".replace("T[", "bfloat16[" if dtype is not np.float32 else "float[")
    own = {"head.weight": normal(80, 40).astype(dtype), "up.weight": normal(40, 40, seed=1).astype(dtype)}
    new = {name: normal(*w.shape, seed=5 + i).astype(dtype) for i, (name, w) in enumerate(own.items())}
    made, new = tiny.model(text, own), {"embed.weight": new["head.weight"], "up.weight": new["up.weight"]}
    for node, module in ((made.graph.node[0], "embed"), (made.graph.node[-1], "head")):
        said = onnx.StringStringEntryProto(key="pkg.torch.onnx.name_scopes", value=f"['', '{module}', 'op']")
        node.metadata_props.append(said)
    model, path = tiny.save(made, tmp_path), save(tmp_path / "w.safetensors", new)
    done = import_weights(model, path, tmp_path / "q.onnx")
    stored = [list(tensor.dims) for tensor in onnx.load(done.output).graph.initializer if len(tensor.dims) == 2]
    assert sorted(stored) == [[40, 40], [80, 40]]
    assert done.output.stat().st_size < 80 * 40 * 2 * np.dtype(dtype).itemsize
    (y,) = Session(done.output).run({"i": np.arange(80)})
    e, u = (w.astype(np.float32) for w in new.values())
    assert tiny.sqnr(e @ u.T @ e.T, y.astype(np.float32)) > (100 if dtype is np.float32 else 40)
