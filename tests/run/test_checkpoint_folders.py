"""Weights go out as checkpoints of other projects, which their own loaders read to the same numbers, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from decoders import WORDS, Spelling, write
from numpy.typing import NDArray

from onnxq import formats, quantize
from onnxq.checkpoints.import_weights import import_weights
from onnxq.cli import main
from onnxq.conversion.export_folder import KINDS, export_folder
from onnxq.conversion.export_weights import export_weights
from onnxq.conversion.layers import compressed_tensors, torchao
from onnxq.errors import BadOutput, BadRecipe, NothingToDo
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.recipe import Recipe

pytestmark = pytest.mark.usefixtures("quick")
TEXT = """g (int64[n] ids) => (float[n, 64] y) {
    x = Gather (table, ids)  h = MatMul (x, w)  r = Relu (h)  y = Gemm <transB = 1> (r, v, c)
}"""
CONSTANTS = {"table": tiny.normal(64, 96, seed=4), "w": tiny.normal(96, 64), "v": tiny.normal(64, 64, seed=2)}
CONSTANTS["c"] = tiny.normal(64, seed=3)
BLOCK = Granularity(1, 32)
#: Formats and granularities that compressed-tensors and torchao have a form for: neither, one or both.
CASES = [
    *((word, BLOCK) for word in ("int2", "uint2", "int3", "int4", "uint4", "int8", "uint8", "q4_0", "q5_0", "q8_0")),
    *((word, how) for word in ("int4", "int8", "float8_e4m3") for how in (Granularity(0), Granularity())),
    *((word, None) for word in ("int4_dq", "ternary", "pow2_int4", "mxfp4", "nvfp4", "q6_k", "q3_k")),
    *((word, None) for word in ("nf4", "q4_1", "uniform3", "float8_e5m2")),
]
ONLY = {"mxfp4": ("compressed-tensors",), "nvfp4": ("compressed-tensors",)}
NONE = ("nf4", "q4_1", "uniform3", "float8_e5m2")


def small(folder: Path, word: str = "int4") -> Path:
    tiny.save(tiny.model(TEXT, CONSTANTS), folder)
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True)
    quantize(folder / "model.onnx", folder / "small.onnx", recipe, target="onnxq", check=False)
    return folder / "small.onnx"


def quantized(word: str, how: Granularity | None) -> QuantizedTensor:
    w = np.random.default_rng(0).standard_normal((48, 256)).astype(np.float32)
    w[3, 32:64] = 0
    return formats.quantize(w, word, how)


def test_which_formats_have_a_form() -> None:
    for word, how in CASES:
        q = quantized(word, how)
        for project, module in (("compressed-tensors", compressed_tensors), ("torchao", torchao)):
            has_form = word not in NONE and project in ONLY.get(word, KINDS)
            assert (module.parts("a", q) is not None) == has_form, (word, project)


def by_compressed_tensors(folder: Path, layers: list[str]) -> dict[str, NDArray]:
    """By the package's own classes for the configuration and the codes."""
    torch, package = pytest.importorskip("torch"), pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file

    assert package.__version__
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(said)
    tensors = {name: x for file in sorted(folder.glob("*.safetensors")) for name, x in load_file(file).items()}
    found = {}
    for scheme in config.config_groups.values():
        for layer in scheme.targets:
            state = {n.removeprefix(f"{layer}."): x for n, x in tensors.items() if n.startswith(f"{layer}.weight")}
            compressor = BaseCompressor.get_value_from_registry(str(getattr(scheme.format, "value", scheme.format)))
            found[layer] = compressor.decompress(state, scheme)["weight"].to(torch.float32).numpy()
    for layer in config.ignore:
        found[layer] = tensors[f"{layer}.weight"].numpy()
    assert set(found) == set(layers)
    return found


def by_torchao(folder: Path, layers: list[str]) -> dict[str, NDArray]:
    """By the function with which torchao reads what it saved."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from safetensors import safe_open
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            state, rest = unflatten_tensor_state_dict(tensors, opened.metadata())
        assert not rest
        found |= state
    plain = {name: x.dequantize() if type(x) is not torch.Tensor else x for name, x in found.items()}
    return {layer: plain[f"{layer}.weight"].to(torch.float32).numpy() for layer in layers}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", KINDS)
def test_their_own_loaders_read_the_same_numbers(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "safetensors", to.replace("-", "_")):
        pytest.importorskip(module)
    weights = {f"layers.{i}.proj": quantized(*case) for i, case in enumerate(CASES)}
    monkeypatch.setattr("onnxq.conversion.export_folder.weights", lambda model: [
        (f"{name}.weight", lambda q=q: q) for name, q in weights.items()])  # fmt: skip
    export_folder(small(tmp_path), to, tmp_path / "out", shard_size=50_000)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 5
    read = by_compressed_tensors if to == "compressed-tensors" else by_torchao
    found = read(tmp_path / "out", list(weights))
    for name, q in weights.items():
        np.testing.assert_array_equal(found[name], q.dequantize(), f"{name} {q.format.name} {q.granularity}")


@pytest.mark.filterwarnings("ignore")
def test_transformers_runs_the_folder_of_a_llama(tmp_path: Path) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("compressed_tensors")
    transformers = pytest.importorskip("transformers", minversion="5")  # 4 wants accelerate for it
    ids = np.random.default_rng(0).integers(0, WORDS, 24)
    for i, how in enumerate((Spelling(tied=True), Spelling(fused=True, joined=True, by_halves=False, biased=True))):
        folder = tmp_path / str(i)
        folder.mkdir()
        recipe = Recipe("int4", min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
        quantize(write(folder, how), folder / "small.onnx", recipe, check=False)
        done = export_folder(folder / "small.onnx", "compressed-tensors", folder / "out", shard_size=30_000)
        assert done.said[0].startswith("llama: 2 layers") and sum(row.format == "int4" for row in done.rows) >= 14
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        wanted = onnxruntime.InferenceSession(folder / "small.onnx", options).run(None, {"tokens": ids[None]})[0]
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "out")
        with torch.no_grad():
            found = theirs(torch.from_numpy(ids[None])).logits.numpy()
        assert tiny.sqnr(wanted, found) > 70  # tables of angles are float16 in the graph


@pytest.mark.parametrize(
    ("word", "to", "shard_size"),
    [("uint4", to, None) for to in (*KINDS, "safetensors")]
    + [("int8", to, 4000) for to in (*KINDS, "safetensors")]
    + [("mxfp4", "compressed-tensors", None), ("mxfp4", "torchao", 4000)],
)
def test_out_and_in_again(word: str, to: str, shard_size: int | None, tmp_path: Path) -> None:
    model, out = small(tmp_path, word), tmp_path / "w.safetensors"
    if to in KINDS:
        done = export_folder(model, to, out := tmp_path / "out", shard_size=shard_size)
        assert (out / "model.safetensors.index.json").exists() == (shard_size is not None)
    else:
        done = export_weights(model, out, shard_size=shard_size)
        out = done.files[-1]
        assert out.name == ("w.safetensors" if shard_size is None else "w.safetensors.index.json")
    assert all(file.is_file() for file in done.files) and (shard_size is None) == (len(done.files) < 3)
    blank = {name: np.zeros_like(array) for name, array in CONSTANTS.items()} | {"c": CONSTANTS["c"]}
    tiny.save(tiny.model(TEXT, blank), tmp_path, "blank.onnx")
    back = import_weights(tmp_path / "blank.onnx", out, tmp_path / "back.onnx", target="onnxq", check=False)
    given = {*back.match.prefixes.values(), *back.match.constants}  # a table in floats is like any other constant
    assert given >= {"table", "v", "w"} and not back.match.rounded and not back.match.missing
    feeds = {"ids": np.array([1, 63, 0])}
    from onnxq.runtime.session import Session

    (a,), (b,) = (Session(path).run(feeds) for path in (model, tmp_path / "back.onnx"))
    if word == "mxfp4" and to == "torchao":  # which has no such form: floats
        assert tiny.sqnr(a, b) > 40
    else:
        np.testing.assert_array_equal(a, b)


def test_what_is_refused_writes_nothing(tmp_path: Path) -> None:
    model = small(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(BadRecipe, match="unknown kind of checkpoint 'gptq'"):
        export_folder(model, "gptq", tmp_path / "out")
    with pytest.raises(BadRecipe, match="0 bytes"):
        export_folder(model, "torchao", tmp_path / "out", shard_size=0)
    with pytest.raises(BadRecipe, match=r"only \.safetensors can be cut"):
        export_weights(model, tmp_path / "w.gguf", shard_size=5)
    with pytest.raises(BadOutput, match="holds files that onnxq did not write"):
        export_folder(model, "torchao", tmp_path / "mine")
    with pytest.raises(BadOutput, match="one contains the other"):
        export_folder(model, "torchao", tmp_path)
    with pytest.raises(NothingToDo, match="no products or lookups on packed weights"):
        export_folder(tmp_path / "model.onnx", "torchao", tmp_path / "out")
    (tmp_path / "w-00002-of-00005.safetensors").write_text("mine")
    for shard_size in (100, 4000):  # which makes five
        try:
            export_weights(model, tmp_path / "w.safetensors", shard_size=shard_size)
        except BadOutput:
            break
    (tmp_path / "w-00002-of-00005.safetensors").unlink()
    assert [name for name in sorted(path.name for path in tmp_path.rglob("*")) if not name.startswith("w")] == before


def test_commands(tmp_path: Path) -> None:
    model, runner = small(tmp_path), CliRunner()
    words = ["convert", str(model), "--to", "compressed-tensors", "-o", str(tmp_path / "out"), "--shard-size", "4kB"]
    done = runner.invoke(main, words)
    assert done.exit_code == 0 and "64×96  int4    the same" in done.output and " files" in done.output, done.output
    done = runner.invoke(main, words)
    assert done.exit_code == 1 and "exists; give --force" in done.output
    assert runner.invoke(main, [*words, "--force"]).exit_code == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "pack-quantized" and config["config_groups"]["group_0"]["targets"] == ["table", "w", "v"]
    words = ["convert", str(model), "--to", "safetensors", "-o", str(tmp_path / "w.safetensors")]
    done = runner.invoke(main, [*words, "--shard-size", "4kB"])
    said, count = done.output.replace("\n", ""), len(list(tmp_path.glob("w-*.safetensors")))
    assert "w.safetensors.index.json: " in said and f" bytes in {count} files beside it" in said, done.output
    done = runner.invoke(main, ["convert", str(model), "--to", "gguf", "--shard-size", "4kB"])
    assert done.exit_code == 1 and ".gguf is a single file" in done.output
