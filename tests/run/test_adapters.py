"""`onnxq lora` without training: adapters beside codes, by runs, in PEFT's folders, and merged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

import onnxq
from onnxq.algorithms.low_rank import Factors
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.cli import main
from onnxq.errors import BadData, BadModel, BadOutput, BadRecipe
from onnxq.model.load import load_model
from onnxq.runtime.own_files.adapter_file import read_adapter_file, write_adapter_file
from onnxq.training.adapters.adapter import Adapter
from onnxq.training.adapters.merge import merge_adapter
from onnxq.training.adapters.peft import read_peft
from onnxq.training.adapters.products import chosen, parse_pattern, products_of, restored
from onnxq.training.adapters.use import convert_adapter, make_base

X = np.random.default_rng(0).standard_normal((5, adapters.WIDTH)).astype(np.float32)
CASES = [("nf4", "onnxq"), ("nf4_dq", "onnxq"), ("int4", "onnxq"), ("int4", "ort-cpu"), ("nf4", "ort-cpu")]
CASES += [("uint4", "onnx"), ("fp16", "ort-cpu"), ("bf16", "onnx"), ("float8_e4m3", "ort-cpu"), ("float8_e5m2", "onnx")]


def written(made: Adapter, path: Path) -> Path:
    arrays = {f"{name}.lora_{word}": x for name, pair in made.factors.items() for word, x in zip("AB", pair)}  # noqa: B905
    write_adapter_file(path, arrays)
    return path


def run(path: Path) -> list[NDArray]:
    options = onnxruntime.SessionOptions()  # by whose optimizer products on codes may round activations
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxq.session(path, options).run(["y", "h"], {"x": X})


def near(wanted: Any, got: Any) -> None:
    for right, found in zip(wanted, got, strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=2e-4 * np.abs(right).max())


@pytest.mark.parametrize(("word", "target"), CASES, ids=str)
def test_an_adapter_beside_codes_adds_its_product_and_nothing_else(word: str, target: str, tmp_path: Path) -> None:
    base, made = adapters.quantized(tmp_path, word, target), adapters.adapter()
    source = written(made, tmp_path / "a.onnx_adapter")
    done = convert_adapter(base, source, tmp_path / "beside.onnx")
    assert done.ranks == {adapters.UP: 3, adapters.DOWN: 4}
    near(adapters.answer(X, *adapters.weights(base, tmp_path), made), run(tmp_path / "beside.onnx"))
    kept = {each.name: each.raw_data for each in onnx.load(base).graph.initializer}
    now = {each.name: each.raw_data for each in onnx.load(tmp_path / "beside.onnx").graph.initializer}
    assert kept.items() <= now.items()


def test_one_base_takes_several_adapters_run_by_run_and_none(tmp_path: Path) -> None:
    path = adapters.quantized(tmp_path, "int4", "ort-cpu")
    make_base(path, tmp_path / "base.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "base.onnx")
    assert [each.name for each in session.get_inputs()] == ["x"]
    for number, (rank, seed) in enumerate([(3, 5), (1, 30), (3, 5)]):
        made = adapters.adapter(rank, seed)
        loaded, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        loaded.Load(str(written(made, tmp_path / f"{number}.onnx_adapter")))
        options.add_active_adapter(loaded)
        convert_adapter(path, tmp_path / f"{number}.onnx_adapter", tmp_path / f"{number}.onnx")
        near(run(tmp_path / f"{number}.onnx"), session.run(["y", "h"], {"x": X}, options))
        near(run(path), session.run(["y", "h"], {"x": X}))
    with pytest.raises(BadModel, match=f"has inputs for an adapter of node '{adapters.UP}' already"):
        make_base(tmp_path / "base.onnx", tmp_path / "again.onnx")


def test_peft_and_back_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    base, made = adapters.quantized(tmp_path), adapters.adapter()
    source = written(made, tmp_path / "a.onnx_adapter")
    convert_adapter(base, source, tmp_path / "peft")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["model.layers.0.up_proj", "model.layers.0.down_proj"]
    assert (config["r"], config["lora_alpha"]) == (3, 3) and list(config["rank_pattern"].values()) == [4]
    convert_adapter(base, tmp_path / "peft", tmp_path / "b.onnx_adapter")
    first, second = (read_adapter_file(tmp_path / f"{word}.onnx_adapter") for word in "ab")
    assert first.keys() == second.keys()
    for name, x in first.items():
        np.testing.assert_array_equal(x, second[name])


def peft(folder: Path, config: dict[str, Any], tensors: dict[str, NDArray]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | config))
    write_arrays(folder / "adapter_model.safetensors", ((k, lambda x=x: x) for k, x in tensors.items()), replace=True)
    return folder


def pair(module: str, rank: int = 2, k: int = adapters.WIDTH, n: int = adapters.INNER) -> dict[str, NDArray]:
    a, b = tiny.normal(rank, k, seed=1), tiny.normal(n, rank, seed=2)
    return {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}


UP = "base_model.model.model.layers.0.up_proj"
HEAD = pair("model.layers.0.up_proj")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("word", ["", "nf4", "tq2_0"])
def test_the_bases_weight_beside_an_adapter_is_no_part_of_it(word: str, dtype: type, tmp_path: Path) -> None:
    """PEFT stores it of heads, as the base had it, of which codes hold as much as they can."""
    model = adapters.quantized(tmp_path, word) if word else tiny.save(adapters.network(), tmp_path)
    products = list(products_of(restored(load_model(model))))
    plain = read_peft(peft(tmp_path / "a", {}, HEAD), products).adapter.factors[adapters.UP]
    both = HEAD | {f"{UP}.base_layer.weight": adapters.UP_WEIGHT.T.astype(dtype)}
    found = read_peft(peft(tmp_path / "b", {}, both), products).adapter.factors
    assert list(found) == [adapters.UP] and all(map(np.array_equal, found[adapters.UP], plain))


@pytest.mark.parametrize(
    ("module", "config", "factor"),
    [
        ("model.layers.0.up_proj", {"r": 2, "lora_alpha": 6}, 3),
        ("model.layers.0.up_proj", {"r": 2, "lora_alpha": 6, "use_rslora": True}, 6 / 2**0.5),
        ("model.layers.0.up_proj", {"r": 9, "lora_alpha": 9, "alpha_pattern": {"up_proj": 1.0}}, 0.5),
        ("model.layers.0.up_proj", {"lora_alpha": 2, "alpha_pattern": {r"^layers\.0\.up_proj": 8}}, 1),
        ("model.layers.0.up_proj", {"lora_alpha": 2, "init_lora_weights": "gaussian"}, 1),
        ("transformer.model.layers.0.up_proj", {"lora_alpha": 2, "init_lora_weights": False}, 1),
        ("h.0.mlp.c_fc", {"lora_alpha": 2}, 1),
    ],
    ids=str,
)
def test_a_folder_of_peft_is_read_as_peft_means_it(
    module: str, config: dict[str, Any], factor: float, tmp_path: Path
) -> None:
    model = restored(load_model(tiny.save(adapters.network(), tmp_path)))
    found = read_peft(peft(tmp_path / "p", config, tensors := pair(module)), list(products_of(model)))
    a, b = found.adapter.factors[adapters.UP]
    first, second = tensors.values()
    np.testing.assert_array_equal(a, first.T)
    np.testing.assert_allclose(b, second.T * factor, rtol=1e-6)
    assert (found.modules[adapters.UP][1] == "") == (module == "model.layers.0.up_proj")


@pytest.mark.parametrize("module", ["albert.query", "base.albert.query"])  # by its name, and by the end of it
@pytest.mark.parametrize("copies", ["none", "constants", "nodes"])
def test_an_adapter_is_beside_every_run_of_its_module_and_of_no_other(
    copies: str, module: str, tmp_path: Path, quick: None
) -> None:
    weights = {"w": tiny.normal(64, 64), "other": tiny.normal(64, 64, seed=1)}
    again = "w" if copies == "none" else "w_1"
    if copies == "constants":  # of which calibration made other codes
        weights["w_1"] = weights["w"] + tiny.normal(64, 64, seed=2) / 10
    copied = "w_1 = Identity(w) " if copies == "nodes" else ""
    text = (
        f"g (float[M,64] x) => (float[M,64] y) {{ {copied}[albert_query] a = MatMul(x, w) b = Tanh(a) "
        f"[albert_query_1] c = MatMul(b, {again}) d = Tanh(c) [albert_query_2] y = MatMul(d, other) }}"
    )
    proto = tiny.model(text, weights)
    for node in proto.graph.node:
        node.name = node.name.replace("albert_", "/albert/") + "/MatMul" * node.name.startswith("albert")
    model, added = tiny.save(proto, tmp_path), pair(module, n=64)
    folder = peft(tmp_path / "p", {"lora_alpha": 4, "r": 2}, added)
    done = convert_adapter(model, folder, tmp_path / "beside.onnx")
    assert list(done.ranks) == ["/albert/query/MatMul", "/albert/query_1/MatMul"]
    a, b = added.values()
    runs = [weights["w"], weights.get(again, weights["w"])]
    wanted = X
    for w in runs:
        wanted = np.tanh(wanted @ (w + 2 * (b @ a).T))
    merge_adapter(model, folder, tmp_path / "merged.onnx")
    assert len(onnx.load(tmp_path / "merged.onnx").graph.initializer) == len(weights)  # one weight stays one
    for name in ("beside", "merged"):
        (got,) = onnxq.session(tmp_path / f"{name}.onnx").run(["y"], {"x": X})
        np.testing.assert_allclose(got, wanted @ weights["other"], rtol=0, atol=1e-3)


def test_an_adapter_is_beside_every_product_of_the_weight_that_has_its_name(tmp_path: Path) -> None:
    text = (
        "g (float[M,64] x) => (float[M,64] y) { [node_linear] a = MatMul(x, query) b = Tanh(a) "
        "[node_linear_1] c = MatMul(b, other) [node_linear_2] y = MatMul(c, query) }"
    )
    proto = tiny.model(text, {"query": tiny.normal(64, 64), "other": tiny.normal(64, 64, seed=1)})
    folder = peft(tmp_path / "p", {"lora_alpha": 2}, pair("query", n=64))
    done = convert_adapter(tiny.save(proto, tmp_path), folder, tmp_path / "beside.onnx")
    assert list(done.ranks) == ["node_linear", "node_linear_2"]


@pytest.mark.parametrize(
    ("config", "tensors", "sentence"),
    [
        ({"peft_type": "LOHA"}, {}, "adapter of kind LOHA"),
        ({"use_dora": True}, pair("model.layers.0.up_proj"), "has use_dora, which adds more than a low-rank product"),
        ({"bias": "all"}, pair("model.layers.0.up_proj"), "has bias 'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, pair("model.layers.0.up_proj"), "init_lora_weights 'pissa_niter_4'"),
        ({"init_lora_weights": "olora"}, pair("model.layers.0.up_proj"), "init_lora_weights 'olora', which changes"),
        ({"lora_alpha": "x"}, {}, "lora_alpha: expected float, got str"),
        ({"alpha_pattern": {"(": 1.0}}, pair("model.layers.0.up_proj"), r"alpha_pattern '\(' is not a regular exp"),
        ({}, pair("model.layers.7.gate_proj"), "adapts model.layers.7.gate_proj, which the model does not have"),
        ({}, pair("model.layers.0.up_proj", n=7), "matrices of 64×2 and 2×7 for node '/model/layers.0/up_proj/MatMul'"),
        ({}, {"base_model.model.a.lora_embedding_A": np.zeros((2, 2), np.float32)}, "is no low-rank matrix beside a"),
        ({}, dict([*pair("model.layers.0.up_proj").items()][:1]), "not both matrices of module 'model.layers.0.up_pr"),
        ({}, {k: x * np.nan for k, x in pair("model.layers.0.up_proj").items()}, "are infinite or none at all"),
        ({"lora_alpha": 1e300}, pair("model.layers.0.up_proj"), "are infinite or none at all"),
        ({}, {}, "holds no tensors"),
        ({}, pair("up") | {"up.lora_B.default.weight": tiny.normal(4, 4)}, "matrix B of module 'up' twice"),
        ({}, HEAD | {f"{UP}.base_layer.weight": adapters.UP_WEIGHT.T + np.float32(0.1)}, r"not those of node .*dB\)"),
        (
            {},
            HEAD | {f"{UP}.base_layer.weight": np.zeros((3, 3), np.float32)},
            r"not those of .* \(3×3 of float32",
        ),
        ({}, HEAD | {f"{UP}.base_layer.weight": np.full((96, 64), 1e300)}, r"not those of node"),
        ({}, HEAD | {"a.base_layer.weight": np.zeros((3, 3), np.float32)}, "weights of module 'a', and no low-rank"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_folder_that_is_no_adapter_for_the_model_is_refused_in_a_sentence(
    config: dict[str, Any], tensors: dict[str, NDArray], sentence: str, tmp_path: Path
) -> None:
    base = tiny.save(adapters.network(), tmp_path)
    folder = peft(tmp_path / "p", config, tensors)
    with pytest.raises(BadData, match=sentence):
        convert_adapter(base, folder, tmp_path / "out.onnx_adapter")
    assert not (tmp_path / "out.onnx_adapter").exists()


def test_other_bad_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    base = tiny.save(adapters.network(), tmp_path)
    whole = written(adapters.adapter(), tmp_path / "whole.onnx_adapter").read_bytes()
    bad: dict[str, bytes] = {"junk": b"junk" * 90, "short": whole[: len(whole) // 2], "empty": b""}
    for name, content in bad.items():
        (tmp_path / f"{name}.onnx_adapter").write_bytes(content)
        with pytest.raises(BadData, match=f"{name}.onnx_adapter' cannot be read as an adapter of onnxruntime"):
            convert_adapter(base, tmp_path / f"{name}.onnx_adapter", tmp_path / "out")
    write_adapter_file(tmp_path / "lone.onnx_adapter", {f"{adapters.UP}.lora_A": np.zeros((64, 2), np.float32)})
    write_adapter_file(tmp_path / "other.onnx_adapter", {"w": np.zeros((64, 2), np.float32)})
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "pickle" / "adapter_model.bin").write_bytes(b"")
    (tmp_path / "bare").mkdir()
    for name, sentence in {
        "none.onnx_adapter": "no such file",
        "lone.onnx_adapter": "has only one matrix of product",
        "other.onnx_adapter": "holds 'w', which is no low-rank matrix",
        "pickle": "holds a pickle",
        "bare": "has no adapter_config.json",
        "model.onnx": "is no adapter: give a file that ends in .onnx_adapter, or a folder of PEFT",
    }.items():
        with pytest.raises(BadData, match=sentence):
            convert_adapter(base, tmp_path / name, tmp_path / "out")
    source = tmp_path / "whole.onnx_adapter"
    with pytest.raises(BadOutput, match=r"is none of \.onnx_adapter, \.onnx and a folder"):
        convert_adapter(base, source, tmp_path / "out.bin")
    with pytest.raises(BadOutput, match="is read, so it cannot be the output"):
        convert_adapter(base, source, base)
    (tmp_path / "there.onnx_adapter").touch()
    with pytest.raises(BadOutput, match="exists; give --force"):
        convert_adapter(base, source, tmp_path / "there.onnx_adapter")
    relu = tiny.save(tiny.model("m (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path, "relu.onnx")
    with pytest.raises(BadModel, match="no products of activations and a matrix"):
        convert_adapter(relu, source, tmp_path / "out.onnx_adapter")


@pytest.mark.parametrize("name", ["out.onnx_adapter", "out.onnx"])
def test_numbers_beyond_the_models_float16_are_refused_by_name(name: str, tmp_path: Path) -> None:
    text = "g (float16[M,16] x) => (float16[M,16] y) { [up] h = MatMul(x, w) [down] y = MatMul(h, w) }"
    model = tiny.save(tiny.model(text, {"w": tiny.normal(16, 16).astype(np.float16)}), tmp_path)
    small = Factors(tiny.normal(16, 2), tiny.normal(2, 16))
    large = Adapter({"up": small, "down": Factors(small.a, small.b * np.float32(1e11))})
    with pytest.raises(BadData, match=r"^the adapter of node 'down' has numbers up to .*too large for float16"):
        convert_adapter(model, written(large, tmp_path / "a.onnx_adapter"), tmp_path / name)
    assert not (tmp_path / name).exists()
    convert_adapter(model, written(Adapter({"up": small}), tmp_path / "b.onnx_adapter"), tmp_path / name)
    wide = Adapter({"up": Factors(*(x * np.float32(2e3) for x in small))})  # only their product is too large
    with pytest.raises(BadData, match="node 'up' and its adapter make weights too large for float16"):
        merge_adapter(model, written(wide, tmp_path / "c.onnx_adapter"), tmp_path / "merged.onnx")


def test_ranks_are_by_patterns_of_which_the_last_counts(tmp_path: Path) -> None:
    products = list(products_of(restored(load_model(tiny.save(adapters.network(), tmp_path)))))
    assert chosen(products, dict(map(parse_pattern, ["8"]))) == {adapters.UP: 8, adapters.DOWN: 8}
    assert chosen(products, {"*": 4, "re:down": 0}) == {adapters.UP: 4}
    assert chosen(products, {"*up*": 1000}) == {adapters.UP: 64}
    for patterns, sentence in {
        "x*=4": "'x\\*' matches no product",
        "*=-1": "invalid rank -1",
        "*=0": "no product has",
    }.items():
        with pytest.raises(BadRecipe, match=sentence):
            chosen(products, dict([parse_pattern(patterns)]))
    with pytest.raises(BadRecipe, match="invalid --lora 'a=b'"):
        parse_pattern("a=b")


@pytest.mark.parametrize(("word", "target"), [("nf4", "onnxq"), ("uint4", "ort-cpu"), ("int4", "onnx")], ids=str)
def test_merging_adds_the_adapter_to_the_weights_and_tells_what_it_loses(
    word: str, target: str, tmp_path: Path, quick: None
) -> None:
    base, made = adapters.quantized(tmp_path, word, target), adapters.adapter()
    made = Adapter({adapters.UP: made.factors[adapters.UP]})
    up, down = adapters.weights(base, folder_in(tmp_path, "one"))
    done = merge_adapter(base, written(made, tmp_path / "a.onnx_adapter"), tmp_path / "merged.onnx", accuracy_level=0)
    products = [sum("Mat" in node.op_type for node in onnx.load(path).graph.node) for path in (base, done.output)]
    assert products == [2, 2] or target == "onnx"
    now = adapters.weights(tmp_path / "merged.onnx", folder_in(tmp_path, "two"))
    np.testing.assert_array_equal(now[1], down)
    a, b = made.factors[adapters.UP]
    wanted = up + a @ b
    loss = done.losses[adapters.UP]
    assert loss is not None and 14 < loss.weight < 35 and loss.adapter < loss.weight
    assert loss.weight == pytest.approx(tiny.sqnr(wanted, now[0]), abs=0.1)
    assert loss.adapter == pytest.approx(tiny.sqnr(a @ b, now[0] - up), abs=0.1)
    near(adapters.answer(X, *now), run(tmp_path / "merged.onnx"))
    assert done.check is not None and done.check.sqnr > 10


def test_merging_what_adds_nothing_keeps_the_codes(tmp_path: Path, quick: None) -> None:
    base, (up, down) = adapters.quantized(tmp_path, "uint4", "ort-cpu"), adapters.adapter().factors.values()
    idle = Adapter({adapters.UP: up, adapters.DOWN: Factors(down.a, down.b * 0)})
    source = written(idle, tmp_path / "a.onnx_adapter")
    before = adapters.weights(base, folder_in(tmp_path, "one"))
    done = merge_adapter(base, source, tmp_path / "merged.onnx", accuracy_level=0)
    after = adapters.weights(tmp_path / "merged.onnx", folder_in(tmp_path, "two"))
    np.testing.assert_array_equal(after[1], before[1])
    assert list(done.losses) == [adapters.UP] and done.unchanged == [adapters.DOWN]
    words = ["lora", "merge", str(base), str(source), "-o", str(tmp_path / "again.onnx")]
    said = CliRunner().invoke(main, words, catch_exceptions=False).output
    assert "1 weight merged" in said and f"{adapters.DOWN}  unchanged, the adapter adds nothing" in said


def folder_in(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def test_the_commands_and_what_they_say_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    base, source = adapters.quantized(tmp_path), written(adapters.adapter(), tmp_path / "a.onnx_adapter")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["lora", *words], catch_exceptions=False)
        return done.exit_code, done.output

    assert call("convert", str(base), str(source), "-o", "peft")[1].startswith("peft: 2 products, ranks 3 to 4, ")
    assert call("base", str(base), "-o", "base.onnx", "--lora", "*up*")[1].startswith("base.onnx: takes adapters of 1 ")
    said = call("merge", str(base), "peft", "-o", "merged.onnx")[1]
    assert "2 weights merged" in said and "dB, the adapter " in said and "dB SQNR to the adapter beside" in said
    assert json.loads(call("merge", str(base), "peft", "-o", "merged.onnx", "--force", "--json")[1])["losses"]
    assert call("convert", str(base), "peft")[0] == 2
    assert call("convert", str(base), "nothing", "-o", "x")[0] == 1
    monkeypatch.setitem(sys.modules, "torch", None)
    code, said = call("train", str(base), "--data", "x.npz", "--labels", "y", "-o", "t.onnx_adapter")
    assert (code, said) == (1, "onnxq: training needs torch, which is not installed: pip install 'onnxq[train]'\n")


def test_merging_scores_both_by_labels(tmp_path: Path, quick: None) -> None:
    base, source = adapters.quantized(tmp_path), written(adapters.adapter(), tmp_path / "a.onnx_adapter")
    y = adapters.answer(X, *adapters.weights(base, tmp_path), adapters.adapter())[0]
    np.savez(tmp_path / "d.npz", x=X, c=np.arange(len(X)))
    words = ["--data", str(tmp_path / "d.npz"), "--metric", "nll", "--labels", "c", "--logits", "y", "--json"]
    words = ["lora", "merge", str(base), str(source), "-o", str(tmp_path / "merged.onnx"), *words]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    score = json.loads(done.output)["score"]
    wanted = np.mean(np.log(np.exp(y).sum(-1)) - y[np.arange(len(X)), np.arange(len(X))])
    assert score["in_float"] == pytest.approx(wanted, rel=1e-3)
    assert score["quantized"] == pytest.approx(wanted, rel=0.2) and score["quantized"] != score["in_float"]


def test_merging_keeps_the_other_operators_of_the_domain(tmp_path: Path, quick: None) -> None:
    base, model = tmp_path / "base.onnx", Path(__file__).parents[2] / "models" / "text_transformer.onnx"
    onnxq.quantize(model, base, "nf4", target="onnxq", check=False)
    a, b = np.zeros((96, 1), np.float32), np.zeros((1, 96), np.float32)
    source = written(Adapter({"head/MatMul": Factors(a, b)}), tmp_path / "a.onnx_adapter")
    done = merge_adapter(base, source, tmp_path / "merged.onnx", accuracy_level=0)
    kinds = [{(node.domain, node.op_type) for node in onnx.load(path).graph.node} for path in (base, done.output)]
    assert ("onnxq", "Attention") in kinds[0] and kinds[0] <= kinds[1]
    assert done.check is not None and done.check.sqnr > 25
