"""Decoders like Llama of any spelling become GGUF files that llama.cpp runs: the same logits from the file alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from decoders import HEADS, HIDDEN, PAIRS, SIZE, WIDTH, WORDS, Spelling, write
from numpy.typing import NDArray
from onnx import numpy_helper
from shared import SHARED

from onnxq import quantize
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.conversion.export_weights import Exported, export_weights
from onnxq.recipe import Recipe

pytestmark = pytest.mark.usefixtures("quick")
STORIES = SHARED / "models" / "stories260k_llama.onnx"
IDS = np.random.default_rng(0).integers(0, WORDS, 24)
SPELLINGS = {
    "standard": Spelling(),
    "pairs": Spelling(by_halves=False, biased=True, slowed=True),
    "joined": Spelling(joined=True, tied=True),
    "fused": Spelling(fused=True, biased=True),
    "fused-joined": Spelling(fused=True, joined=True, by_halves=False),
}


def exported(folder: Path, how: Spelling, word: str = "int8", target: str = "ort-cpu") -> tuple[Path, Exported]:
    small = folder / "small.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(write(folder, how), small, recipe, target=target, check=False)
    return small, export_weights(small, folder / "w.gguf")


def logits(model: Path) -> NDArray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options).run(None, {"tokens": IDS[None]})[0][0]


def by_definition(path: Path, ids: NDArray) -> NDArray:
    """What the architecture "llama" computes of a file: read by gguf's own reader, and written down from its paper."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(path)
    said = {key: field.contents() for key, field in reader.fields.items()}
    w = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    size = said["llama.rope.dimension_count"]
    slow = w.get("rope_freqs.weight", np.ones(size // 2))
    turns = np.exp(
        1j * np.outer(np.arange(len(ids)), said["llama.rope.freq_base"] ** -(np.arange(0, size, 2) / size) / slow)
    )

    def norm(x: NDArray, name: str) -> NDArray:
        epsilon = said["llama.attention.layer_norm_rms_epsilon"]
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * w[f"{name}.weight"]

    def times(x: NDArray, name: str) -> NDArray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def turned(x: NDArray) -> NDArray:
        return (np.ascontiguousarray(x).view(np.complex128) * turns[:, None]).view(np.float64)

    x = w["token_embd.weight"][ids]
    for i in range(said["llama.block_count"]):
        h = norm(x, f"blk.{i}.attn_norm")
        q, k, v = (times(h, f"blk.{i}.attn_{part}").reshape(len(ids), -1, size) for part in "qkv")
        q, k = turned(q), turned(k)
        mixed = []
        for head in range(said["llama.attention.head_count"]):
            pair = head * said["llama.attention.head_count_kv"] // said["llama.attention.head_count"]
            scores = q[:, head] @ k[:, pair].T / np.sqrt(size) + np.triu(np.full((len(ids),) * 2, -np.inf), 1)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, pair])
        x = x + times(np.concatenate(mixed, -1), f"blk.{i}.attn_output")
        h = norm(x, f"blk.{i}.ffn_norm")
        gate = times(h, f"blk.{i}.ffn_gate")
        x = x + times(gate / (1 + np.exp(-gate)) * times(h, f"blk.{i}.ffn_up"), f"blk.{i}.ffn_down")
    return norm(x, "output_norm") @ w.get("output.weight", w["token_embd.weight"]).T


@pytest.mark.parametrize("name", SPELLINGS)
def test_any_spelling_becomes_a_file_of_the_same_logits(name: str, tmp_path: Path) -> None:
    how = SPELLINGS[name]
    small, done = exported(tmp_path, how)
    assert done.said[0].startswith("llama: 2 layers of width 64"), done.said
    # Codes are the same; their scales were rounded to float16.
    assert all(row.sqnr is None or row.sqnr > 60 for row in done.rows)
    assert tiny.sqnr(logits(small), by_definition(tmp_path / "w.gguf", IDS)) > 55
    names = {row.name for row in done.rows}
    assert ("output.weight" in names) == (not how.tied) and ("rope_freqs.weight" in names) == how.slowed
    assert ("blk.1.attn_k.bias" in names) == how.biased and len(names) == len(done.rows)


@pytest.mark.parametrize("name", ["standard", "pairs", "fused"])
def test_the_file_comes_back_into_its_own_model(name: str, tmp_path: Path) -> None:
    """Whatever that calls its layers: the file notes it down."""
    small, _ = exported(tmp_path, SPELLINGS[name])
    back = tmp_path / "back.onnx"
    model = next(path for path in tmp_path.glob("*.onnx") if path != small)
    done = import_weights(model, tmp_path / "w.gguf", back, check=False, options=ImportOptions(accuracy_level=0))
    assert not done.match.missing and not done.match.rounded
    assert tiny.sqnr(logits(small), logits(back)) > 60


def test_metadata_have_the_types_that_llama_cpp_asks_for(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    exported(tmp_path, SPELLINGS["fused"])
    fields = gguf.GGUFReader(tmp_path / "w.gguf").fields
    uint, real, text = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING
    wanted = {
        "general.architecture": (text, "llama"),
        "llama.block_count": (uint, 2),
        "llama.embedding_length": (uint, WIDTH),
        "llama.feed_forward_length": (uint, HIDDEN),
        "llama.attention.head_count": (uint, HEADS),
        "llama.attention.head_count_kv": (uint, PAIRS),
        "llama.rope.dimension_count": (uint, SIZE),
        "llama.rope.freq_base": (real, 10000.0),
        "llama.attention.layer_norm_rms_epsilon": (real, pytest.approx(1e-6)),
        "llama.vocab_size": (uint, WORDS),
        "tokenizer.ggml.model": (text, "none"),
    }
    assert {key: (fields[key].types[0], fields[key].contents()) for key in wanted} == wanted


@pytest.mark.parametrize("word", ["uint4", "w8a8-dynamic"])
def test_tables_of_angles_that_were_quantized_are_read_as_what_they_stand_for(word: str, tmp_path: Path) -> None:
    small, done = exported(tmp_path, Spelling(), word, "onnx" if word == "uint4" else "ort-cpu")
    assert done.said[0].startswith("llama: 2 layers"), done.said
    assert tiny.sqnr(logits(small), by_definition(tmp_path / "w.gguf", IDS)) > 20


def test_what_only_looks_like_a_llama_keeps_its_own_names(tmp_path: Path) -> None:
    _, done = exported(tmp_path, Spelling(scale=0.5))
    assert done.said[0].startswith("not of an architecture that llama.cpp runs: it has the parts of a Llama, but")
    assert not any(row.name.startswith("blk.") for row in done.rows)


def test_a_model_without_numbers_proves_nothing(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path, Spelling()))
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            tensor.CopyFrom(numpy_helper.from_array(0 * numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, tmp_path / "model.onnx")
    recipe = Recipe("int8", min_sqnr=-np.inf, keep_slow=True)
    quantize(tmp_path / "model.onnx", tmp_path / "small.onnx", recipe, check=False)
    assert "all alike" in export_weights(tmp_path / "small.onnx", tmp_path / "w.gguf").said[0]


def test_other_decoders_say_why_they_are_none(tmp_path: Path) -> None:
    from exports.language import gpt2

    quantize(gpt2(tmp_path), tmp_path / "small.onnx", Recipe("w8a16", min_sqnr=-np.inf, keep_slow=True), check=False)
    done = export_weights(tmp_path / "small.onnx", tmp_path / "w.gguf")
    why = "no constant of its graph tells how positions turn queries and keys"
    assert done.said == (f"not of an architecture that llama.cpp runs: {why}",)


def tokenizer(**changes: object) -> dict:
    """Byte pairs of GPT-2, "ab" and "abc" joined."""
    letters = [chr(33 + i) for i in range(90)]
    words = {word: i for i, word in enumerate([*letters, "ab", "abc"])}
    model = {"type": "BPE", "vocab": words, "merges": [["a", "b"], ["ab", "c"]]}
    around = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
    added = [{"id": 92, "content": "<s>", "special": True}]
    made = {"model": model, "added_tokens": added, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    return {**made, "normalizer": None, "post_processor": around} | changes


def test_a_tokenizer_beside_the_model_comes_with_it(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": "hi"}))
    _, done = exported(tmp_path, Spelling())
    assert len(done.said) == 1, done.said
    said = {key: field.contents() for key, field in gguf.GGUFReader(tmp_path / "w.gguf").fields.items()}
    assert said["tokenizer.ggml.model"] == "gpt2" and said["tokenizer.ggml.pre"] == "gpt-2"
    assert said["tokenizer.ggml.tokens"][90:] == ["ab", "abc", "<s>", "[PAD93]", "[PAD94]", "[PAD95]"]
    assert said["tokenizer.ggml.merges"] == ["a b", "ab c"] and said["tokenizer.ggml.token_type"][90:93] == [1, 1, 3]
    assert said["tokenizer.ggml.bos_token_id"] == 92 and said["tokenizer.ggml.add_bos_token"] is True
    assert said["tokenizer.chat_template"] == "hi"


SPACED = {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is not a JSON object but a list"),
        ("{}", "is not a tokenizer.json"),
        (json.dumps(tokenizer(model={"type": "WordPiece", "vocab": {}})), "of the kind WordPiece"),
        (json.dumps(tokenizer(model={"type": "BPE", "vocab": {"a": -1}, "merges": []})), "is not a tokenizer.json"),
        (json.dumps(tokenizer(model={"vocab": {"a": 4096}, "merges": []})), "has words up to 4096, its table 96 rows"),
        (json.dumps(tokenizer(normalizer={"type": "Lowercase"})), "changes texts in a way that llama.cpp does not"),
        (json.dumps(tokenizer(pre_tokenizer=SPACED)), "neither of bytes nor of pieces"),
        (json.dumps(tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [SPACED, {"type": "ByteLevel",
            "use_regex": False}]})), "cuts texts by a pattern that llama.cpp has no name for"),
        (json.dumps(tokenizer(added_tokens=[{"id": "x"}])), "is not a tokenizer.json"),
        (json.dumps(tokenizer(added_tokens=[{"id": 5, "content": "\ud800"}])), "is not a tokenizer.json"),
        (json.dumps(tokenizer(added_tokens=[{"id": 5, "content": "x" * 9000}])), "words of more than 1024 letters"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_is_none_of_llama_cpps_stays_behind(text: str, why: str, tmp_path: Path) -> None:
    from onnxq.conversion.llama import tokenizer as reading
    from onnxq.errors import OnnxqError

    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    with pytest.raises(OnnxqError) as error:
        reading.metadata(file, WORDS)
    assert why in str(error.value) and "\n" not in str(error.value)


@pytest.mark.sweep
@pytest.mark.skipif(not STORIES.is_file(), reason="real models are not here")
def test_real_weights_of_a_llama_come_back_from_gguf(tmp_path: Path) -> None:
    """Out by our writer, read by gguf's own reader, and in again: rows of heads lie as they did."""
    model, small = STORIES, tmp_path / "small.onnx"
    quantize(model, small, Recipe("q8_0", min_sqnr=-np.inf, keep_slow=True), check=False)
    done = export_weights(small, tmp_path / "w.gguf")
    assert done.said[0].startswith("llama: 5 layers of width 64")
    ids = np.random.default_rng(0).integers(0, 512, 32)
    past = {f"past_key_values.{i}.{n}": np.zeros((1, 4, 0, 8), np.float32) for i in range(5) for n in ("key", "value")}
    wanted = onnxruntime.InferenceSession(small).run(["logits"], {"input_ids": ids[None], **past})[0][0]
    assert tiny.sqnr(wanted, by_definition(tmp_path / "w.gguf", ids)) > 25
    back = import_weights(model, tmp_path / "w.gguf", tmp_path / "back.onnx", check=False)
    assert len(back.match.prefixes) >= 36 and not back.match.misfits
    found = onnxruntime.InferenceSession(tmp_path / "back.onnx").run(["logits"], {"input_ids": ids[None], **past})[0][0]
    assert tiny.sqnr(wanted, found) > 25


def test_llama_cpp_runs_the_file(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    for name, how in SPELLINGS.items():
        (tmp_path / name).mkdir()
        small, _ = exported(tmp_path / name, how)
        theirs = llama_cpp.Llama(str(tmp_path / name / "w.gguf"), n_ctx=64, logits_all=True, verbose=False)
        theirs.eval(IDS.tolist())
        # Its kernels round activations to 8 bits.
        assert tiny.sqnr(logits(small), np.array(theirs.scores[: len(IDS)])) > 30
        theirs.close()
