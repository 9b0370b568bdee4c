"""Quantized folders in the programs they are for, unchanged: onnxruntime-genai, optimum, diffusers, transformers.js.

Needs the extra `zoo`; what runs in node needs a folder `node_modules` with `onnxruntime-node` and
`@huggingface/transformers`, which `ONNXQ_NODE_MODULES` names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import client_folders
import numpy as np
import pytest
import tiny
from client_folders import require
from javascript import node
from numpy.typing import NDArray
from sweeps import at_night

import onnxq
from onnxq.conversion.convert import convert
from onnxq.files.data_files import own_data
from onnxq.folders import genai
from onnxq.runtime import native

pytestmark = [
    pytest.mark.usefixtures("quick"),
    # Exporters and clients warn of one another's versions, and tracers of Python values.
    pytest.mark.filterwarnings("ignore"),
]

TEXT = "The quick fox"


@pytest.fixture(autouse=True, scope="module")
def offline() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a kind, exported once."""
    made: dict[str, Path] = {}

    def export(kind: str) -> Path:
        if kind not in made:
            made[kind] = getattr(client_folders, kind)(tmp_path_factory.mktemp("exported") / kind)
        return made[kind]

    return export


# onnxruntime-genai


def generate(folder: Path, forced: list[int] | None = None) -> tuple[list[int], NDArray]:
    """Tokens, greedily, and the logits they were chosen by; the tokens that follow are `forced`, if they are given."""
    og = require("onnxruntime_genai")
    model = og.Model(str(folder))
    options = og.GeneratorParams(model)
    options.set_search_options(max_length=64, do_sample=False)
    generator = og.Generator(model, options)
    generator.append_tokens([og.Tokenizer(model).encode(TEXT)])
    tokens, logits = [], []
    for step in range(12):
        logits.append(np.array(generator.get_logits())[0, -1])
        tokens.append(int(logits[-1].argmax()))
        generator.append_tokens([[tokens[-1] if forced is None else forced[step]]])
    return tokens, np.array(logits)


@pytest.mark.parametrize("target", ["ort-cpu", "onnxq"])
def test_onnxruntime_genai(exported: Callable[[str], Path], tmp_path: Path, target: str) -> None:
    if target == "onnxq" and native.path() is None:
        pytest.skip("the compiled library is not built")
    folder = exported("genai")
    result = onnxq.quantize_folder(folder, tmp_path / "out", "w8a16", target=target)
    assert (result.kind, [part.name for part in result.parts]) == ("onnxruntime-genai", ["model"])
    assert result.bytes_after < 0.4 * result.bytes_before
    tokens, logits = generate(folder)
    _, found = generate(result.output, tokens)
    assert np.isfinite(found).all() and tiny.sqnr(logits, found) > 30
    if target == "onnxq":
        library = result.output / onnxq.ops_library().name
        assert opens_elsewhere(result.output) == ""
        library.unlink()
        assert library.name in opens_elsewhere(result.output)


@pytest.mark.parametrize(("start", "end"), [("onnxq", "ort-cpu"), ("ort-cpu", "onnx"), ("ort-cpu", "onnxq")])
def test_onnxruntime_genai_on_what_convert_writes(
    exported: Callable[[str], Path], tmp_path: Path, start: str, end: str
) -> None:
    """The model of a folder, converted in place: the same weights, so nearly the same logits."""
    if "onnxq" in (start, end) and native.path() is None:
        pytest.skip("the compiled library is not built")
    folder = onnxq.quantize_folder(exported("genai"), tmp_path / "out", "w4a16", target=start).output
    tokens, logits = generate(folder)
    done = convert(folder / "model.onnx", end, tmp_path / "converted.onnx", accuracy_level=0)
    assert done.kept and not done.again
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    for file in (done.output, *own_data(done.output)):
        shutil.copy(file, moved / file.name.replace("converted.onnx", "model.onnx", file == done.output))
    if end == "onnxq":
        genai.register_library(moved, [Path("model.onnx")])
    _, found = generate(moved, tokens)
    assert np.isfinite(found).all() and tiny.sqnr(logits, found) > 30
    _, floats = generate(exported("genai"), tokens)
    assert tiny.sqnr(floats, found) > tiny.sqnr(floats, logits) - 3


def opens_elsewhere(folder: Path) -> str:
    """What onnxruntime-genai complains of, in a process that knows nothing of onnxq and in another folder."""
    code = "import sys, onnxruntime_genai; onnxruntime_genai.Model(sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False).stderr


# optimum


def optimum_logits(kind: str, folder: Path, **options: Any) -> tuple[NDArray, NDArray]:
    """(tokens, logits of every step) of a greedy generation."""
    transformers, runtime = require("transformers"), require("onnxruntime", "optimum.onnxruntime")
    classes = {
        "t5": runtime.ORTModelForSeq2SeqLM,
        "gpt2": runtime.ORTModelForCausalLM,
        "whisper": runtime.ORTModelForSpeechSeq2Seq,
    }
    model = classes[kind].from_pretrained(folder, **options)
    if kind == "whisper":
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
        sound = np.sin(np.arange(16000) / 9)
        inputs = {"input_features": extractor(sound, sampling_rate=16000, return_tensors="pt").input_features}
    else:
        inputs = dict(transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt"))
    wanted = {"max_new_tokens": 8, "min_new_tokens": 8, "output_logits": True, "return_dict_in_generate": True}
    found = model.generate(**inputs, **wanted)
    return found.sequences.numpy(), np.array([step.numpy() for step in found.logits])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("t5", [{}, {"use_merged": False}]),
        pytest.param("gpt2", [{}], marks=pytest.mark.zoo),
        at_night("whisper", [{}, {"use_merged": False}]),
    ],
)
def test_optimum_generates(
    exported: Callable[[str], Path], tmp_path: Path, kind: str, options: list[dict[str, Any]]
) -> None:
    folder = exported(kind)
    # 16 bits, so that the tokens of random weights, which are nearly a draw, stay the same.
    result = onnxq.quantize_folder(folder, tmp_path / "out", "fp16")
    assert result.bytes_after < 0.7 * result.bytes_before
    small = onnxq.quantize_folder(folder, tmp_path / "small", "w8a16")
    assert small.bytes_after < 0.6 * small.bytes_before
    if kind != "gpt2":
        assert len(result.parts) == 4 and result.shared > 10
    for each in options:
        tokens, logits = optimum_logits(kind, folder, **each)
        same, found = optimum_logits(kind, result.output, **each)
        assert tokens.tolist() == same.tolist() and tiny.sqnr(logits, found) > 50
        _, first = optimum_logits(kind, small.output, **each)
        assert tiny.sqnr(logits[0], first[0]) > 25


def hidden_states(folder: Path) -> NDArray:
    transformers, runtime = require("transformers"), require("onnxruntime", "optimum.onnxruntime")
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    return runtime.ORTModelForFeatureExtraction.from_pretrained(folder)(**inputs).last_hidden_state.numpy()


def test_optimum_and_node_on_one_encoder(exported: Callable[[str], Path], tmp_path: Path) -> None:
    folder = exported("bert")
    result = onnxq.quantize_folder(folder, tmp_path / "out", "w8a16")
    wanted, found = hidden_states(folder), hidden_states(result.output)
    assert wanted.shape == found.shape and tiny.sqnr(wanted, found) > 30

    named = onnxq.quantize_folder(folder, tmp_path / "named", "w8a16", layout="transformers.js").output
    assert (named / "onnx" / "model_int8.onnx").read_bytes() == (result.output / "model.onnx").read_bytes()
    in_js = np.array(node("generate.cjs", named, "AutoModel", "int8", TEXT)).reshape(wanted.shape)
    assert tiny.sqnr(found, in_js) > 30  # other versions of onnxruntime round elsewhere

    ids = require("transformers").AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    words = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}
    feeds = {name: ["int64", [1, len(ids)], values] for name, values in words.items()}
    (tmp_path / "feeds.json").write_text(json.dumps(feeds))
    _, dims, numbers = node("run_model.cjs", result.output / "model.onnx", tmp_path / "feeds.json")["last_hidden_state"]
    assert tiny.sqnr(found, np.reshape(numbers, dims)) > 30


@pytest.mark.zoo
def test_transformers_js_generates(exported: Callable[[str], Path], tmp_path: Path) -> None:
    folder = exported("t5")
    tokens, _ = optimum_logits("t5", folder)
    named = onnxq.quantize_folder(folder, tmp_path / "named", "fp16", layout="transformers.js").output
    generated = node("generate.cjs", named, "AutoModelForSeq2SeqLM", "fp16", TEXT)
    assert generated[: tokens.shape[1]] == tokens[0].tolist()


# diffusers


@pytest.mark.zoo
@pytest.mark.night  # most of it is what diffusers imports and exports
def test_a_diffusion_pipeline(exported: Callable[[str], Path], tmp_path: Path) -> None:
    folder = exported("diffusion")
    torch, runtime = require("torch"), require("diffusers", "onnxruntime", "optimum.onnxruntime")
    result = onnxq.quantize_folder(folder, tmp_path / "out", onnxq.Recipe("w8a16", effort="quick"))
    assert [part.name for part in result.parts] == ["text_encoder", "unet", "vae_decoder", "vae_encoder"]
    images = []
    for each in (folder, result.output):
        pipeline = runtime.ORTDiffusionPipeline.from_pretrained(each)
        options = {"num_inference_steps": 2, "output_type": "np", "height": 32, "width": 32}
        images.append(pipeline("a b c", generator=torch.Generator().manual_seed(0), **options).images)
    assert images[0].shape == images[1].shape and tiny.sqnr(images[0], images[1]) > 20
