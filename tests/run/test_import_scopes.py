"""import-weights and adapters where only an exporter's metadata tell which module a node computes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

import onnxq
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.linear4bit import Linear4Bit, save_layers
from onnxq.checkpoints.matching import names
from onnxq.checkpoints.matching.names import renaming
from onnxq.conversion.convert import convert
from onnxq.conversion.dequantize import dequantize
from onnxq.conversion.restore import Read, restore_all, weights_by_node
from onnxq.errors import BadModel
from onnxq.model.load import load_model
from onnxq.passes.prepare import prepare
from onnxq.quality import sqnr
from onnxq.runtime.session import Session
from onnxq.training.adapters.merge import merge_adapter
from onnxq.training.adapters.use import convert_adapter

pytestmark = pytest.mark.usefixtures("quick")
#: Two squares as torch.onnx.export(dynamo=True) writes them: the transpose of a weight is a constant without its name.
TEXT = """g (float[M,32] x) => (float[M,32] y) {
    [node_MatMul_1] a = MatMul(x, val_1)  b = Tanh(a)  [node_MatMul_2] y = MatMul(b, val_2)
}"""
MODULES = {"node_MatMul_1": "net.0.up", "node_MatMul_2": "net.0.down"}
OWN = {"val_1": normal(32, 32), "val_2": normal(32, 32, seed=1)}


def save(path: Path, tensors: dict[str, NDArray]) -> Path:
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    return path


def exported(folder: Path, text: str, own: dict[str, NDArray], modules: dict[str, str], *, opset: int = 18) -> Path:
    model = tiny.model(text, own, opset=opset)
    for node in model.graph.node:
        if node.name in modules:
            scopes = str(["", modules[node.name].split(".")[0], modules[node.name], "linear"])
            node.metadata_props.append(onnx.StringStringEntryProto(key="pkg.torch.onnx.name_scopes", value=scopes))
    return tiny.save(model, folder)


@pytest.mark.parametrize("opset", [18, 21])
def test_a_layer_belongs_to_the_product_of_its_module(tmp_path: Path, opset: int) -> None:
    """Whether the opset has to be raised, by a converter that drops metadata, or not; the numbers are others."""
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.01, 0.05, (32, 4)).astype(np.float16)
    layers = {
        name: Linear4Bit.new(rng.integers(0, 256, (32, 16), np.uint8), scales, 8) for name in ("net.0.down", "net.0.up")
    }
    save_layers(tmp_path / "w.npz", layers)
    model = exported(tmp_path, TEXT, OWN, MODULES, opset=opset)
    done = import_weights(model, tmp_path / "w.npz", tmp_path / "q.onnx", options=ImportOptions(accuracy_level=0))
    assert done.match.prefixes == MODULES and not done.match.proposed
    x = normal(3, 32, seed=4)
    (y,) = Session(done.output).run({"x": x})
    wanted = np.tanh(x @ layers["net.0.up"].unpack().T) @ layers["net.0.down"].unpack().T
    np.testing.assert_allclose(y, wanted, atol=1e-5)


def test_an_adapter_of_peft_belongs_to_the_products_of_its_modules(tmp_path: Path) -> None:
    model, folder, tensors = exported(tmp_path, TEXT, OWN, MODULES), tmp_path / "peft", dict[str, NDArray]()
    for seed, module in enumerate(MODULES.values()):
        tensors[f"base_model.model.{module}.lora_A.weight"] = normal(2, 32, seed=10 + seed)
        tensors[f"base_model.model.{module}.lora_B.weight"] = normal(32, 2, seed=20 + seed)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    save(folder / "adapter_model.safetensors", tensors)
    convert_adapter(model, folder, tmp_path / "beside.onnx")
    (up, down), x = (
        [
            OWN[name] + (tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]).T
            for name, module in zip(OWN, MODULES.values(), strict=True)
            for key in [f"base_model.model.{module}"]
        ],
        normal(3, 32, seed=4),
    )
    (y,) = Session(tmp_path / "beside.onnx").run({"x": x})
    np.testing.assert_allclose(y, np.tanh(x @ up) @ down, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wrapper", ["", "m."])
@pytest.mark.parametrize("kind", ["norms", "blank"])
def test_equal_constants_that_are_there_once_become_those_of_each_module(
    tmp_path: Path, wrapper: str, kind: str
) -> None:
    """Before training norms are equal, and in a model without numbers all is; a wrapper begins all of its names."""
    text = """g (float[M,32] x, int64[M] i) => (float[M,32] y) {
        [e] t = Gather(TABLE, i)  s = Add(x, t)
        [n1] a = LayerNormalization(s, ONE, ZERO)  [node_MatMul_1] b = MatMul(a, val_1)
        [n2] c = LayerNormalization(b, ONE, ZERO)  [node_MatMul_2] y = MatMul(c, val_2)
    }""".replace("ONE", f'"{wrapper}net.0.n1.weight"').replace("ZERO", f'"{wrapper}net.0.n1.bias"')
    own = OWN | {f"{wrapper}net.0.n1.weight": np.ones(32, np.float32)}
    own |= {f"{wrapper}net.0.n1.bias": np.zeros(32, np.float32), f"{wrapper}net.e.weight": normal(32, 32, seed=5)}
    if kind == "blank":
        own = {name: np.zeros_like(x) for name, x in own.items()}
    modules = {"e": "net.e", "n1": "net.0.n1", "n2": "net.0.n2"} | MODULES
    model = exported(
        tmp_path,
        text.replace("TABLE", f'"{wrapper}net.e.weight"'),
        own,
        {name: wrapper + module for name, module in modules.items()},
    )
    new = {f"{name}.weight": normal(32, 32, seed=6 + i) for i, name in enumerate(("net.e", "net.0.down", "net.0.up"))}
    new |= {f"net.0.{name}": normal(32, seed=9 + i) for i, name in enumerate(("n1.weight", "n1.bias", "n2.weight"))}
    new |= {"net.0.n2.bias": normal(32, seed=12)}
    done = import_weights(model, save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx")
    assert not done.match.unused and not done.match.missing
    x = normal(3, 32, seed=4)
    (y,) = Session(done.output).run({"x": x, "i": np.array([1, 0, 5])})
    wanted = x + new["net.e.weight"][[1, 0, 5]]
    for norm, product in (("n1", "up"), ("n2", "down")):
        z = (wanted - wanted.mean(1, keepdims=True)) / np.sqrt(wanted.var(1, keepdims=True) + 1e-5)
        wanted = (z * new[f"net.0.{norm}.weight"] + new[f"net.0.{norm}.bias"]) @ new[f"net.0.{product}.weight"].T
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-3)


def peft(folder: Path, sizes: dict[str, tuple[int, int]]) -> dict[str, NDArray]:
    """An adapter of these modules, [K, N], in `folder`; what it adds to each weight."""
    tensors, added = dict[str, NDArray](), dict[str, NDArray]()
    for seed, (module, (k, n)) in enumerate(sizes.items()):
        a, b = normal(2, k, seed=10 + seed), normal(n, 2, seed=20 + seed)
        tensors |= {f"base_model.model.{module}.lora_{word}.weight": x for word, x in (("A", a), ("B", b))}
        added[module] = (b @ a).T
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    save(folder / "adapter_model.safetensors", tensors)
    return added


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("nf4", "onnxq"),
        ("bf16", "onnxq"),
        ("w4a16", "ort-cpu"),
        ("nf4", "ort-cpu"),
        ("w4a16", "onnx"),
        ("fp16", "onnx"),
    ],
)
def test_a_quantized_model_still_tells_its_modules(word: str, target: str, tmp_path: Path) -> None:
    """Through quantize, and through what makes other files of that."""
    model = exported(tmp_path, TEXT, OWN, MODULES)
    added = peft(tmp_path / "peft", dict.fromkeys(MODULES.values(), (32, 32)))
    recipe = onnxq.Recipe(word, min_sqnr=float("-inf"), accuracy_level=0, keep_slow=True)
    onnxq.quantize(model, tmp_path / "q.onnx", recipe=recipe, target=target, check=False)
    files = {"q": tmp_path / "q.onnx"}
    if word == "w4a16":
        files["floats"] = dequantize(files["q"], tmp_path / "floats.onnx").output
        files["other"] = convert(files["q"], "onnxq", tmp_path / "other.onnx").output
    files["merged"] = merge_adapter(files["q"], tmp_path / "peft", tmp_path / "merged.onnx").output
    x = normal(3, 32, seed=4)
    for name, file in files.items():
        weights = {node: read.numbers().T for (node, _), read in restored_weights(file).items()}
        assert set(weights) == set(MODULES), name
        up, down = (weights[node] + added[module] for node, module in MODULES.items())
        convert_adapter(file, tmp_path / "peft", tmp_path / f"{name}.beside.onnx")
        (y,) = Session(tmp_path / f"{name}.beside.onnx").run({"x": x})
        assert sqnr(np.tanh(x @ up) @ down, y) > 40, name


def restored_weights(file: Path) -> dict[tuple[str, int], Read]:
    model = load_model(file)
    restore_all(model)
    prepare(model)
    return weights_by_node(model)


def test_metadata_of_a_quantized_model_name_modules_of_its_weights_alone(tmp_path: Path) -> None:
    """A few bytes for each: not what else an exporter says of nodes, nor what other nodes are part of."""
    text = TEXT.replace("b = Tanh(a)", "[act] t = Tanh(a)  [pairs] b = MatMul(t, a)")
    model = exported(tmp_path, text.replace("M,32", "32,32"), OWN, MODULES | {"act": "net.0.act", "pairs": "net.0"})
    onnxq.quantize(model, tmp_path / "q.onnx", "w4a16", target="onnxq", check=False)
    said = {
        node.name: {p.key: p.value for p in node.metadata_props} for node in onnx.load(tmp_path / "q.onnx").graph.node
    }
    assert {name: found for name, found in said.items() if found} == {
        name: {"onnxq.module": module} for name, module in MODULES.items()
    }


def test_a_tied_head_takes_an_adapter_where_its_codes_are_those_of_the_table(tmp_path: Path) -> None:
    """The head reads the transpose of the table's codes, 8 bits a channel."""
    text = """g (int64[M] i) => (float[M,48] y) {
        x = Gather("embed.weight", i)  [node_MatMul_1] a = MatMul(x, val_1)
        w = Transpose <perm = [1, 0]> ("embed.weight")  [node_MatMul_2] y = MatMul(a, w)
    }"""
    modules = {"node_MatMul_1": "net.0.up", "node_MatMul_2": "lm_head"}
    model = exported(tmp_path, text, {"val_1": OWN["val_1"], "embed.weight": normal(48, 32, seed=2)}, modules)
    added = peft(tmp_path / "peft", {"lm_head": (32, 48)})
    recipe = onnxq.Recipe("nf4", min_sqnr=float("-inf"), accuracy_level=0, keep_slow=True)
    onnxq.quantize(model, tmp_path / "q.onnx", recipe=recipe, check=False)
    assert "Transpose" in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    convert_adapter(tmp_path / "q.onnx", tmp_path / "peft", tmp_path / "beside.onnx")
    floats = dequantize(tmp_path / "q.onnx", tmp_path / "floats.onnx").output
    x = np.arange(48)
    w = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(floats).graph.initializer}
    (head,), (up,) = ([x for x in w.values() if x.shape == shape] for shape in ((32, 48), (32, 32)))
    table = head.T  # which is made of it
    wanted = (table @ up) @ (table.T + added["lm_head"])
    (y,) = Session(tmp_path / "beside.onnx").run({"i": x})
    assert sqnr(wanted, y) > 80


def test_an_int8_model_takes_no_adapters_and_is_told_so(tmp_path: Path) -> None:
    model = exported(tmp_path, TEXT, OWN, MODULES)
    peft(tmp_path / "peft", dict.fromkeys(MODULES.values(), (32, 32)))
    data = [{"x": normal(8, 32, seed=seed)} for seed in range(8)]
    onnxq.quantize(model, tmp_path / "q.onnx", "w8a8", target="onnxq", data=data, check=False)
    with pytest.raises(BadModel, match=r"that it does not round \(.*\): adapters are for models of"):
        convert_adapter(tmp_path / "q.onnx", tmp_path / "peft", tmp_path / "beside.onnx")


@pytest.mark.parametrize("word", ["", "module.", "_orig_mod.", "base_model.model.", "m.", "ema.model."])
def test_what_only_wraps_a_model_is_no_part_of_names(word: str, tmp_path: Path) -> None:
    """Whatever the numbers; the file that is written calls its weights as the model does, and takes others again."""
    model = exported(tmp_path, TEXT, OWN, {node: f"m.{module}" for node, module in MODULES.items()})
    x, file = normal(3, 32, seed=4), model
    for seed, prefix in enumerate((word, "")):
        tensors = [normal(32, 32, seed=30 + 2 * seed + i) for i in range(2)]
        source = dict(zip((f"{prefix}{module}.weight" for module in MODULES.values()), tensors, strict=True))
        done = import_weights(file, save(tmp_path / f"{seed}.safetensors", source), tmp_path / f"{seed}.onnx")
        file = done.output
        (y,) = Session(file).run({"x": x})
        np.testing.assert_allclose(y, np.tanh(x @ tensors[0].T) @ tensors[1].T, rtol=1e-4, atol=1e-4)
        assert not done.match.proposed
    names = {each.name for each in onnx.load(file).graph.initializer}
    assert names == {f"m.{module}.weight.T" for module in MODULES.values()}


@pytest.mark.parametrize("decoder", ["more", "alike"])
def test_a_model_that_is_a_part_of_a_checkpoint_gets_that_part(decoder: str, tmp_path: Path) -> None:
    """An encoder, whose table the checkpoint has once; a decoder has its names too, and more. Of two towers that are
    alike nothing tells which it is. Places that are waves are in no checkpoint, as Marian's are."""
    text = """g (int64[M] i) => (float[M,32] y) {
        t = Gather("embed_tokens.weight", i)  p = Gather("embed_positions.weight", i)  x = Add(t, p)
        ["/block.0/up/MatMul"] a = MatMul(x, val_1)  b = Tanh(a) ["/block.0/down/MatMul"] c = MatMul(b, val_2)
        y = Mul(c, "block.0.norm.weight")
    }"""
    own = OWN | {"embed_tokens.weight": normal(9, 32, seed=2), "block.0.norm.weight": normal(32, seed=3)}
    places = np.sin(np.arange(9)[:, None] / 100 ** (np.arange(32) / 32)).astype(np.float32)
    own |= {"embed_positions.weight": places}
    shapes = {"block.0.up.weight": (32, 32), "block.0.down.weight": (32, 32), "block.0.norm.weight": (32,)}
    parts = {"decoder": shapes | {"block.0.cross.weight": (32, 32)} if decoder == "more" else shapes, "encoder": shapes}
    names = {f"{part}.{name}": shape for part, found in parts.items() for name, shape in found.items()}
    new = {name: normal(*shape, seed=50 + seed) for seed, (name, shape) in enumerate(names.items())}
    new["shared.weight"] = normal(9, 32, seed=40)
    model, checkpoint = exported(tmp_path, text, own, {}), save(tmp_path / "w.safetensors", new)
    if decoder == "alike":
        with pytest.raises(BadModel, match="go nowhere"):
            import_weights(model, checkpoint, tmp_path / "q.onnx")
        return
    done = import_weights(model, checkpoint, tmp_path / "q.onnx")
    i = np.arange(5)
    (y,) = Session(done.output).run({"i": i})
    up, down, norm = (new[f"encoder.{name}"] for name in shapes)
    np.testing.assert_allclose(
        y, np.tanh((new["shared.weight"] + places)[i] @ up.T) @ down.T * norm, rtol=1e-4, atol=1e-4
    )


def test_what_an_exporter_folded_into_a_constant_is_not_given_a_weight(tmp_path: Path) -> None:
    """As 1 + the weight of a norm is: it has another name than modules have."""
    text = "g (float[M,32] x) => (float[M,32] y) { [node_mul] a = Mul(x, add_2)  [node_MatMul_1] y = MatMul(a, val_1) }"
    own = {"add_2": 1 + normal(32, seed=5), "val_1": OWN["val_1"]}
    model = exported(tmp_path, text, own, {"node_mul": "net.norm", "node_MatMul_1": "net.up"})
    source = save(tmp_path / "w.npz", {"net.norm.weight": normal(32, seed=6), "net.up.weight": normal(32, 32, seed=7)})
    with pytest.raises(BadModel, match=r"net\.norm\.weight goes nowhere, and add_2"):
        import_weights(model, source, tmp_path / "q.onnx")


@pytest.mark.parametrize(
    ("own", "theirs", "wanted"),
    [
        (("net.scale", "net.fc.weight"), ("scale", "fc.weight"), "scale"),
        (("fc.weight", "up.weight"), ("a.fc.weight", "a.up.weight", "b.fc.weight", "b.up.weight", "b.head.weight"), ""),
        (("m.fc.weight", "m.up.weight"), ("bert.fc.weight", "bert.up.weight", "head.weight"), "bert.fc.weight"),
        (("text_model.fc.weight",), ("vision_model.fc.weight", "head.weight"), ""),
        (("0.q.weight",), ("encoder.0.q.weight", "decoder.0.q.weight", "decoder.0.c.weight"), "encoder.0.q.weight"),
    ],
    ids=["beside modules", "of two alike", "in a wrapper, beside a head", "of another tower", "an encoder"],
)
def test_a_name_is_told_by_what_others_begin_with(own: tuple[str, ...], theirs: tuple[str, ...], wanted: str) -> None:
    assert renaming(own, theirs)(own[0]) == (wanted or own[0])


def test_what_many_names_end_with_tells_first_words_with_others_alone() -> None:
    """Each with each of these would be 10^8 pairs."""
    own = {*(f"a{i}.x.weight" for i in range(10000)), "m.fc.weight", "m.up.weight", "m.x.weight"}
    theirs = {*(f"b{i}.x.weight" for i in range(10000)), "net.fc.weight", "net.up.weight", "net.x.weight"}
    start = time.process_time()
    renamed = renaming(own, theirs, is_bold=True)
    assert time.process_time() - start < 10
    assert renamed("m.fc.weight") == "m.fc.weight"  # most names tell nothing of it
    votes = names._votes(own, theirs)
    assert votes["m.", "net."] == 3 and sum(votes.values()) == 3
